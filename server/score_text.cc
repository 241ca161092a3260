#include "server/score_text.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"

namespace dinghy {
namespace {

constexpr size_t kCandidatesShown = 20;
constexpr size_t kCandidatesExplained = 3;
constexpr int kBarWidth = 24;

std::string CandidateItem(const v1::ScoreRequest& request, const std::string& item_feature, int candidate) {
  for (const v1::Column& column : request.candidates()) {
    if (column.feature() != item_feature) continue;
    if (candidate < column.ints().values_size()) return absl::StrCat(column.ints().values(candidate));
    if (candidate < column.strings().values_size()) return column.strings().values(candidate);
  }
  return absl::StrCat("#", candidate);
}

std::string FlagText(const v1::ScoreResponse& response, int candidate) {
  if (candidate >= response.candidate_flags_size()) return "";
  std::string text;
  if (response.candidate_flags(candidate) & v1::UNKNOWN_ITEM) text += "  unknown item";
  if (response.candidate_flags(candidate) & v1::OUT_OF_VOCABULARY) text += "  out of vocabulary";
  return text;
}

void AppendExplanation(const v1::ScoreResponse& response, const v1::Explanation& explanation,
                       std::string& text) {
  absl::StrAppend(&text, "  ", explanation.sequence(), ", layer ", explanation.layer(), "\n");
  if (explanation.behaviors().empty()) {
    absl::StrAppend(&text, "    no behaviors\n");
    return;
  }
  const bool removal = explanation.behaviors(0).score_change_size() > 0;
  absl::StrAppend(&text, absl::StrFormat("    %-12s %-20s %9s", "item", "time (UTC)", "weight"));
  if (removal) {
    text.append(2 + kBarWidth, ' ');
    for (const v1::OutputScores& output : response.outputs()) {
      absl::StrAppend(&text, absl::StrFormat(" %14s", absl::StrCat("d ", output.output())));
    }
  }
  absl::StrAppend(&text, "\n");
  const float largest = std::max(std::abs(explanation.behaviors(0).weight()), 1e-30f);
  for (const v1::BehaviorAttention& behavior : explanation.behaviors()) {
    const std::string time =
        behavior.event_time_ms() == 0
            ? "-"
            : absl::FormatTime("%Y-%m-%d %H:%M:%S", absl::FromUnixMillis(behavior.event_time_ms()),
                               absl::UTCTimeZone());
    const auto bar = static_cast<size_t>(std::lround(std::abs(behavior.weight()) / largest * kBarWidth));
    absl::StrAppend(&text,
                    absl::StrFormat("    %-12s %-20s %9.4f", behavior.item(), time, behavior.weight()));
    if (bar > 0) absl::StrAppend(&text, "  ", std::string(bar, '#'));
    if (removal) text.append(bar > 0 ? kBarWidth - bar : 2 + kBarWidth, ' ');
    for (const float change : behavior.score_change())
      absl::StrAppend(&text, absl::StrFormat(" %+14.6f", change));
    absl::StrAppend(&text, "\n");
  }
}

}  // namespace

std::string ScoreText(const v1::ScoreRequest& request, const v1::ScoreResponse& response,
                      const std::string& item_feature) {
  std::string text = absl::StrFormat("model %s, version %d\n", response.model(), response.version());
  for (const v1::HistoryUse& use : response.history()) {
    absl::StrAppend(&text, "history ", use.sequence(), ": ", use.length(), " behaviors, ",
                    use.source() == v1::STORE ? "from the store" : "from the request", "\n");
  }
  for (const int reason : response.degradations()) {
    absl::StrAppend(
        &text, "degraded: ", v1::DegradationReason_Name(static_cast<v1::DegradationReason>(reason)), "\n");
  }
  for (const std::string& warning : response.warnings()) absl::StrAppend(&text, "warning: ", warning, "\n");
  for (const v1::StageTiming& timing : response.timings()) {
    absl::StrAppend(&text, absl::StrFormat("%s: %.3f ms\n", timing.stage(), timing.seconds() * 1e3));
  }
  if (response.outputs_size() == 0) return text;

  std::vector<int> order(response.outputs(0).scores_size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return response.outputs(0).scores(a) > response.outputs(0).scores(b);
  });
  absl::StrAppend(&text, absl::StrFormat("\n%9s  %-12s", "candidate", "item"));
  for (const v1::OutputScores& output : response.outputs()) {
    absl::StrAppend(&text, absl::StrFormat(" %12s", output.output()));
  }
  absl::StrAppend(&text, "\n");
  for (size_t i = 0; i < std::min(order.size(), kCandidatesShown); ++i) {
    const int candidate = order[i];
    absl::StrAppend(
        &text, absl::StrFormat("%9d  %-12s", candidate, CandidateItem(request, item_feature, candidate)));
    for (const v1::OutputScores& output : response.outputs()) {
      absl::StrAppend(&text, absl::StrFormat(" %12.6f", output.scores(candidate)));
    }
    absl::StrAppend(&text, FlagText(response, candidate), "\n");
  }
  if (order.size() > kCandidatesShown) {
    absl::StrAppend(&text, "  and ", order.size() - kCandidatesShown, " more\n");
  }

  bool removal = false;
  size_t explained = 0;
  for (const int candidate : order) {
    bool first = true;
    for (const v1::Explanation& explanation : response.explanations()) {
      if (explanation.candidate() != static_cast<uint32_t>(candidate)) continue;
      if (first && ++explained > kCandidatesExplained) break;
      if (first) {
        absl::StrAppend(&text, "\nWhat drew the attention of candidate ", candidate, ", item ",
                        CandidateItem(request, item_feature, candidate), "\n");
      }
      first = false;
      AppendExplanation(response, explanation, text);
      for (const v1::BehaviorAttention& behavior : explanation.behaviors()) {
        removal = removal || behavior.score_change_size() > 0;
      }
    }
  }
  if (removal) absl::StrAppend(&text, "\nd OUTPUT is the score less the score without this behavior.\n");
  if (explained > kCandidatesExplained) {
    absl::StrAppend(&text, "\nExplanations of ", explained - kCandidatesExplained,
                    " more candidates are in the json format.\n");
  }
  return text;
}

}  // namespace dinghy
