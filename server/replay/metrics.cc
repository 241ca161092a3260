#include "server/replay/metrics.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace dinghy {
namespace {

// AUC of the samples that `order` names; reorders it.
std::optional<double> AucOf(absl::Span<const float> scores, absl::Span<const uint8_t> labels,
                            absl::Span<size_t> order) {
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return scores[a] < scores[b]; });
  // Twice U, in whole numbers: a positive wins 2 against each lower negative and 1 against each equal one.
  uint64_t positives = 0, negatives = 0, twice_wins = 0;
  for (size_t i = 0; i < order.size();) {
    uint64_t tied_positives = 0, tied_negatives = 0;
    const float score = scores[order[i]];
    for (; i < order.size() && scores[order[i]] == score; ++i) {
      ++(labels[order[i]] != 0 ? tied_positives : tied_negatives);
    }
    twice_wins += tied_positives * (2 * negatives + tied_negatives);
    positives += tied_positives;
    negatives += tied_negatives;
  }
  if (positives == 0 || negatives == 0) return std::nullopt;
  return static_cast<double>(twice_wins) /
         (2.0 * static_cast<double>(positives) * static_cast<double>(negatives));
}

}  // namespace

std::optional<double> Auc(absl::Span<const float> scores, absl::Span<const uint8_t> labels) {
  std::vector<size_t> order(scores.size());
  std::iota(order.begin(), order.end(), size_t{0});
  return AucOf(scores, labels, absl::MakeSpan(order));
}

std::optional<double> LogLoss(absl::Span<const float> scores, absl::Span<const uint8_t> labels) {
  constexpr double kSmallest = 1e-7;
  if (scores.empty()) return std::nullopt;
  double sum = 0;
  for (size_t i = 0; i < scores.size(); ++i) {
    if (!(scores[i] >= 0 && scores[i] <= 1)) return std::nullopt;
    const double p = std::clamp<double>(scores[i], kSmallest, 1 - kSmallest);
    sum -= std::log(labels[i] != 0 ? p : 1 - p);
  }
  return sum / static_cast<double>(scores.size());
}

GroupedAuc UserAuc(absl::Span<const float> scores, absl::Span<const uint8_t> labels,
                   absl::Span<const int64_t> users) {
  std::vector<size_t> order(scores.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return users[a] < users[b]; });
  GroupedAuc result;
  double sum = 0, weight = 0;
  for (size_t begin = 0; begin < order.size();) {
    size_t end = begin;
    while (end < order.size() && users[order[end]] == users[order[begin]]) ++end;
    const auto auc = AucOf(scores, labels, absl::MakeSpan(order).subspan(begin, end - begin));
    if (auc.has_value()) {
      ++result.users;
      sum += *auc * static_cast<double>(end - begin);
      weight += static_cast<double>(end - begin);
    } else {
      ++result.skipped_users;
    }
    begin = end;
  }
  if (weight > 0) result.value = sum / weight;
  return result;
}

double Percentile(absl::Span<const double> sorted, double fraction) {
  const double position = fraction * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(position);
  if (below + 1 >= sorted.size()) return sorted.back();
  return sorted[below] + (position - static_cast<double>(below)) * (sorted[below + 1] - sorted[below]);
}

}  // namespace dinghy
