// Measures of click-through-rate predictions. All are exact over the samples given; scores are finite.
//
//   std::optional<double> auc = Auc(scores, clicked);
#ifndef DINGHY_SERVER_REPLAY_METRICS_H_
#define DINGHY_SERVER_REPLAY_METRICS_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"

namespace dinghy {

// The probability that a positive (label not 0) scores above a negative, ties counted half: the Mann-Whitney
// U over positives * negatives. None where a class is missing. `labels` is as long as `scores`.
std::optional<double> Auc(absl::Span<const float> scores, absl::Span<const uint8_t> labels);

// Mean of -log p(label), with p clamped to [1e-7, 1 - 1e-7]. None without samples, or if a score is no
// probability.
std::optional<double> LogLoss(absl::Span<const float> scores, absl::Span<const uint8_t> labels);

struct GroupedAuc {
  std::optional<double> value;  // none where every user was skipped
  int64_t users = 0;            // with both classes
  int64_t skipped_users = 0;    // with one class only
};

// AUC within each user, averaged with the users' numbers of samples as weights (Zhu et al., 2017). Users with
// one class only are skipped and counted. `users[i]` is the user of sample i, any number.
GroupedAuc UserAuc(absl::Span<const float> scores, absl::Span<const uint8_t> labels,
                   absl::Span<const int64_t> users);

// The value below which `fraction` (0 to 1) of the values lie, interpolated linearly between neighbors.
// `sorted` is rising and not empty.
double Percentile(absl::Span<const double> sorted, double fraction);

}  // namespace dinghy

#endif  // DINGHY_SERVER_REPLAY_METRICS_H_
