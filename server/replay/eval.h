// Measures the scores in score logs against their labels and against each other.
//
//   Evaluator evaluator;
//   for (const v1::ScoreLog& log : logs) RETURN_IF_ERROR(evaluator.Add(log));
//   std::cout << ToText(evaluator.Report());
//
// Per output there is a series for the served scores and one for each source of reference scores. Every
// labelled candidate counts as one sample; a label that is NaN is unknown and skipped. Not thread-safe.
#ifndef DINGHY_SERVER_REPLAY_EVAL_H_
#define DINGHY_SERVER_REPLAY_EVAL_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/score_log.pb.h"

namespace dinghy {

// What the series of served scores is called.
inline constexpr char kServed[] = "served";

struct SeriesReport {
  std::string output;
  std::string source;      // kServed, or as the log names it
  int64_t requests = 0;    // with scores of this series
  int64_t candidates = 0;  // scored
  int64_t labelled = 0;    // of these, with a known label
  int64_t positives = 0;   // of the labelled
  std::optional<double> auc;
  std::optional<double> gauc;  // by user, weighted by samples
  int64_t users = 0;           // with both classes: those in gauc
  int64_t skipped_users = 0;   // with one class only
  std::optional<double> logloss;
  std::optional<double> mean_score;  // over the labelled

  // Against the served scores of the same candidates; series of references only.
  int64_t compared = 0;
  std::optional<double> max_abs_difference;
  std::optional<double> mean_abs_difference;  // of |served - reference|
};

struct EvalReport {
  int64_t logs = 0;
  std::vector<SeriesReport> series;  // by output, served first, then by source
};

class Evaluator {
 public:
  // INVALID_ARGUMENT naming the log and the output: labels or scores of unequal number, a label that is none
  // of 0, 1 and NaN, a score that is not finite, or a series twice.
  absl::Status Add(const v1::ScoreLog& log);

  EvalReport Report() const;

 private:
  struct Series {
    int64_t requests = 0;
    int64_t candidates = 0;
    // The labelled candidates.
    std::vector<float> scores;
    std::vector<uint8_t> labels;
    std::vector<int64_t> users;
    int64_t compared = 0;
    double max_abs_difference = 0;
    double sum_abs_difference = 0;
  };

  int64_t logs_ = 0;
  std::map<std::string, int64_t> users_;  // user id to number
  // By output and source; "" is served, so it comes first.
  std::map<std::pair<std::string, std::string>, Series> series_;
};

absl::StatusOr<EvalReport> Evaluate(absl::Span<const v1::ScoreLog> logs);

// A table for people, lines of at most about 100 columns.
std::string ToText(const EvalReport& report);

// One JSON object.
std::string ToJson(const EvalReport& report);

}  // namespace dinghy

#endif  // DINGHY_SERVER_REPLAY_EVAL_H_
