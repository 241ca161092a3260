// Scores logged requests again and compares.
//
//   ASSIGN_OR_RETURN(ReplayResult result, Replay(logs, score, {.concurrency = 2}));
//   std::cout << ToText(result.report, options);
//   ASSIGN_OR_RETURN(EvalReport quality, Evaluate(result.logs));
//
// Where the log's bundle digest and numerics_id are also the scorer's, and the request went out as logged,
// scores must be equal to the bit, elsewhere within the tolerance.
#ifndef DINGHY_SERVER_REPLAY_REPLAY_H_
#define DINGHY_SERVER_REPLAY_REPLAY_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/score_log.pb.h"
#include "proto/scoring.pb.h"

namespace dinghy {

// Scores one request: a server's client, or a bundle in this process. Called from several threads at once,
// which Replay starts; one that runs a model itself must set up each thread as model/ops asks.
using ScoreFunction = std::function<absl::StatusOr<v1::ScoreResponse>(const v1::ScoreRequest&)>;

struct ReplayOptions {
  int concurrency = 1;  // callers, each with one request at a time
  // Requests per second, sent when they are due whether or not earlier ones have been answered, as far as
  // there are callers; latency then counts from when a request was due. 0: each caller sends its next one at
  // once.
  double rate = 0;
  // Leave the logged histories out of the requests, so that the scorer asks its store.
  bool histories_from_store = false;
  // Override what the log says; version and label exclude each other.
  std::string model;
  std::optional<int64_t> version;
  std::string label;
  // Largest absolute difference allowed where bits need not be equal; a log's own tolerance goes first.
  double tolerance = 1e-5;
  // Reference scores that the tolerance holds for too. Others, such as the truth of a simulator, are only
  // reported.
  std::vector<std::string> checked_sources = {"pytorch"};
  // Whether differing scores fail the replay; otherwise they are only reported, as for two different models.
  bool fail_on_difference = true;
  // Called after every answer, with the number of them, from any of the threads, one at a time.
  std::function<void(int64_t)> on_progress = nullptr;
};

// One score that is not what it should be.
struct Difference {
  int64_t log = 0;  // index
  std::string request_id;
  std::string output;
  std::string source;  // "logged" or a source of references
  int candidate = 0;
  float expected = 0;
  float got = 0;
};

// The comparison with the logged scores, or with those of one source of references.
struct ComparisonReport {
  std::string source;   // "logged" or a source of references
  bool checked = true;  // whether `bad` counts as a failure
  int64_t requests = 0;
  int64_t exact_requests = 0;  // of these, where bits had to be equal
  int64_t scores = 0;
  int64_t bit_equal = 0;
  double max_abs_difference = 0;
  int64_t bad = 0;  // scores beyond what is allowed, or of unequal bits where they had to be equal
  std::optional<Difference> first;  // the first of these, in the order of the log
};

struct ReplayReport {
  int64_t requests = 0;                   // sent
  int64_t candidates = 0;                 // scored
  int64_t not_replayable = 0;             // skipped: the log says that a feature was left out
  std::map<std::string, int64_t> errors;  // by code, such as "NOT_FOUND"
  std::string first_error;                // with its request
  // Requests whose scores do not line up with the log's: an output is missing or the number of scores
  // differs.
  int64_t misshapen = 0;
  std::string first_misshapen;
  int64_t newly_degraded = 0;  // answered with a degradation that the log does not have
  std::string first_degraded;
  std::map<std::string, int64_t> warnings;  // of the scorer, with how many requests got each

  // Of the logs with scores: how many name another bundle digest or numerics_id than the answer, or none.
  int64_t other_digest = 0;
  int64_t other_numerics = 0;
  std::vector<ComparisonReport> comparisons;  // "logged" first where there is any, then by source

  double seconds = 0;  // from the first request sent to the last answer
  double requests_per_second = 0;
  double candidates_per_second = 0;
  // Of the answers that are no errors.
  double p50_ms = 0, p90_ms = 0, p99_ms = 0, max_ms = 0;
};

struct ReplayResult {
  ReplayReport report;
  // One log per answer that is no error, in the order of the input: the request as sent, the new scores as
  // `outputs`, the logged ones as references of source "logged"; labels and other references kept.
  std::vector<v1::ScoreLog> logs;
};

// Errors: INVALID_ARGUMENT for options that make no sense. What goes wrong with a request is in the report.
absl::StatusOr<ReplayResult> Replay(absl::Span<const v1::ScoreLog> logs, const ScoreFunction& score,
                                    const ReplayOptions& options);

// Whether the replay did not show what it should: any error, misshapen or newly degraded answer, or, with
// fail_on_difference, a bad score in a checked comparison; or no request at all.
bool Failed(const ReplayReport& report, const ReplayOptions& options);

// For people, lines of at most about 100 columns.
std::string ToText(const ReplayReport& report, const ReplayOptions& options);

// One JSON object.
std::string ToJson(const ReplayReport& report, const ReplayOptions& options);

}  // namespace dinghy

#endif  // DINGHY_SERVER_REPLAY_REPLAY_H_
