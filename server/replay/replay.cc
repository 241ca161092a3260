#include "server/replay/replay.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <limits>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/replay/metrics.h"

namespace dinghy {
namespace {

using Clock = std::chrono::steady_clock;

constexpr char kLogged[] = "logged";

struct Answer {
  v1::ScoreRequest sent;
  absl::StatusOr<v1::ScoreResponse> response = absl::UnknownError("never sent");
  Clock::time_point done;
  double latency_ms = 0;
};

v1::ScoreRequest RequestOf(const v1::ScoreLog& log, const ReplayOptions& options) {
  v1::ScoreRequest request = log.request();
  if (options.histories_from_store) request.clear_sequences();
  if (!options.model.empty() && options.model != request.model()) {
    request.set_model(options.model);
    request.clear_version_choice();  // it was one of the other model
  }
  if (options.version.has_value()) request.set_version(*options.version);
  if (!options.label.empty()) request.set_label(options.label);
  return request;
}

// Sends the requests that `indices` names, by options.concurrency callers; answers[k] is to logs[indices[k]].
std::vector<Answer> Send(absl::Span<const v1::ScoreLog> logs, const std::vector<size_t>& indices,
                         const ScoreFunction& score, const ReplayOptions& options, Clock::time_point start) {
  std::vector<Answer> answers(indices.size());
  std::mutex mutex;
  size_t next = 0;       // guarded by mutex
  int64_t answered = 0;  // guarded by mutex
  const auto call = [&] {
    for (;;) {
      size_t mine;
      {
        const std::lock_guard lock(mutex);
        if (next == indices.size()) return;
        mine = next++;
      }
      Answer& answer = answers[mine];
      answer.sent = RequestOf(logs[indices[mine]], options);
      Clock::time_point due = Clock::now();
      if (options.rate > 0) {
        due = start + std::chrono::duration_cast<Clock::duration>(
                          std::chrono::duration<double>(static_cast<double>(mine) / options.rate));
        std::this_thread::sleep_until(due);
      }
      answer.response = score(answer.sent);
      answer.done = Clock::now();
      answer.latency_ms = std::chrono::duration<double, std::milli>(answer.done - due).count();
      const std::lock_guard lock(mutex);
      ++answered;
      if (options.on_progress) options.on_progress(answered);
    }
  };
  std::vector<std::thread> callers;
  for (int i = 0; i < options.concurrency; ++i) callers.emplace_back(call);
  for (std::thread& caller : callers) caller.join();
  return answers;
}

const v1::OutputScores* Find(const v1::ScoreResponse& response, const std::string& output) {
  for (const v1::OutputScores& scores : response.outputs()) {
    if (scores.output() == output) return &scores;
  }
  return nullptr;
}

// Compares answers with logs, one after the other.
class Comparison {
 public:
  Comparison(const ReplayOptions& options, ReplayReport& report) : options_(options), report_(report) {}

  void Add(int64_t index, const v1::ScoreLog& log, const v1::ScoreResponse& response) {
    const bool same_digest = !log.bundle_digest().empty() && log.bundle_digest() == response.bundle_digest();
    const bool same_numerics = !log.numerics_id().empty() && log.numerics_id() == response.numerics_id();
    if (log.outputs_size() > 0) {
      report_.other_digest += !same_digest;
      report_.other_numerics += !same_numerics;
    }
    const bool exact = same_digest && same_numerics && !options_.histories_from_store;
    const std::string name = absl::StrCat("log ", index, " (request \"", log.request().request_id(), "\")");

    std::string misshapen;
    const auto compare = [&](const v1::OutputScores& expected, const std::string& source, bool bits) {
      const v1::OutputScores* const got = Find(response, expected.output());
      if (got == nullptr) {
        misshapen = absl::StrCat("expected output \"", expected.output(), "\", got none of that name");
      } else if (got->scores_size() != expected.scores_size()) {
        misshapen = absl::StrCat("output \"", expected.output(), "\": expected ", expected.scores_size(),
                                 " scores, got ", got->scores_size());
      } else {
        CompareScores(index, log, expected, *got, source, bits);
      }
    };
    std::vector<std::string> sources;
    const auto count = [&](const std::string& source, bool bits) {
      if (std::find(sources.begin(), sources.end(), source) != sources.end()) return;
      sources.push_back(source);
      ComparisonReport& report = Of(source);
      ++report.requests;
      report.exact_requests += bits;
    };
    for (const v1::OutputScores& expected : log.outputs()) {
      count(kLogged, exact);
      compare(expected, kLogged, exact);
    }
    const auto& asked = log.request().outputs();
    for (const v1::OutputScores& expected : log.references()) {
      if (expected.source() == kLogged && log.outputs_size() > 0) continue;  // of an earlier replay
      if (!asked.empty() && std::find(asked.begin(), asked.end(), expected.output()) == asked.end()) continue;
      count(expected.source(), false);
      compare(expected, expected.source(), false);
    }
    if (!misshapen.empty() && ++report_.misshapen == 1) {
      report_.first_misshapen = absl::StrCat(name, ": ", misshapen);
    }
    if (response.degradations_size() > 0 && log.degradations_size() == 0 && ++report_.newly_degraded == 1) {
      report_.first_degraded = absl::StrCat(name, ": ", v1::DegradationReason_Name(response.degradations(0)));
    }
    for (const std::string& warning : response.warnings()) ++report_.warnings[warning];
  }

  void Finish() {
    for (auto& [source, report] : by_source_) report_.comparisons.push_back(std::move(report));
    std::stable_partition(report_.comparisons.begin(), report_.comparisons.end(),
                          [](const ComparisonReport& report) { return report.source == kLogged; });
  }

 private:
  ComparisonReport& Of(const std::string& source) {
    const auto [it, added] = by_source_.try_emplace(source);
    if (added) {
      const auto& checked = options_.checked_sources;
      it->second.source = source;
      it->second.checked =
          options_.fail_on_difference &&
          (source == kLogged || std::find(checked.begin(), checked.end(), source) != checked.end());
    }
    return it->second;
  }

  void CompareScores(int64_t index, const v1::ScoreLog& log, const v1::OutputScores& expected,
                     const v1::OutputScores& got, const std::string& source, bool bits) {
    ComparisonReport& report = Of(source);
    const double tolerance = log.has_tolerance() ? log.tolerance() : options_.tolerance;
    for (int i = 0; i < expected.scores_size(); ++i) {
      const float e = expected.scores(i), g = got.scores(i);
      const bool equal = std::bit_cast<uint32_t>(e) == std::bit_cast<uint32_t>(g);
      double difference = std::abs(static_cast<double>(e) - static_cast<double>(g));
      if (std::isnan(difference)) difference = equal ? 0 : std::numeric_limits<double>::infinity();
      ++report.scores;
      report.bit_equal += equal;
      report.max_abs_difference = std::max(report.max_abs_difference, difference);
      if (bits ? equal : difference <= tolerance) continue;
      if (++report.bad > 1) continue;
      report.first = Difference{.log = index,
                                .request_id = log.request().request_id(),
                                .output = expected.output(),
                                .source = source,
                                .candidate = i,
                                .expected = e,
                                .got = g};
    }
  }

  const ReplayOptions& options_;
  ReplayReport& report_;
  std::map<std::string, ComparisonReport> by_source_;
};

v1::ScoreLog NewLog(const v1::ScoreLog& log, const Answer& answer) {
  const v1::ScoreResponse& response = *answer.response;
  v1::ScoreLog out;
  *out.mutable_request() = answer.sent;
  out.mutable_request()->set_model(response.model());
  out.mutable_request()->set_version(response.version());
  out.set_received_time_ms(log.received_time_ms());
  out.set_bundle_digest(response.bundle_digest());
  out.set_numerics_id(response.numerics_id());
  *out.mutable_outputs() = response.outputs();
  *out.mutable_candidate_flags() = response.candidate_flags();
  *out.mutable_degradations() = response.degradations();
  *out.mutable_timings() = response.timings();
  *out.mutable_labels() = log.labels();
  for (const v1::OutputScores& logged : log.outputs()) {
    v1::OutputScores* const reference = out.add_references();
    *reference = logged;
    reference->set_source(kLogged);
  }
  for (const v1::OutputScores& reference : log.references()) {
    // A log that was itself written by a replay: its newer scores take the name.
    if (reference.source() != kLogged || log.outputs_size() == 0) *out.add_references() = reference;
  }
  if (log.has_tolerance()) out.set_tolerance(log.tolerance());
  return out;
}

absl::Status CheckOptions(const ReplayOptions& options) {
  if (options.concurrency < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("replay: concurrency: expected 1 or more, got ", options.concurrency));
  }
  if (!(options.rate >= 0) || std::isinf(options.rate)) {
    return absl::InvalidArgumentError(absl::StrCat("replay: rate: expected 0 or more, got ", options.rate));
  }
  if (!(options.tolerance >= 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("replay: tolerance: expected 0 or more, got ", options.tolerance));
  }
  if (options.version.has_value() && !options.label.empty()) {
    return absl::InvalidArgumentError("replay: expected a version or a label, got both");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ReplayResult> Replay(absl::Span<const v1::ScoreLog> logs, const ScoreFunction& score,
                                    const ReplayOptions& options) {
  if (absl::Status status = CheckOptions(options); !status.ok()) return status;
  ReplayResult result;
  ReplayReport& report = result.report;
  std::vector<size_t> indices;
  for (size_t i = 0; i < logs.size(); ++i) {
    if (!logs[i].not_replayable()) indices.push_back(i);
  }
  report.requests = static_cast<int64_t>(indices.size());
  report.not_replayable = static_cast<int64_t>(logs.size() - indices.size());

  const Clock::time_point start = Clock::now();
  const std::vector<Answer> answers = Send(logs, indices, score, options, start);

  Comparison comparison(options, report);
  std::vector<double> latencies;
  Clock::time_point end = start;
  for (size_t k = 0; k < indices.size(); ++k) {
    const Answer& answer = answers[k];
    const v1::ScoreLog& log = logs[indices[k]];
    end = std::max(end, answer.done);
    if (!answer.response.ok()) {
      ++report.errors[absl::StatusCodeToString(answer.response.status().code())];
      if (report.first_error.empty()) {
        report.first_error = absl::StrCat("log ", indices[k], " (request \"", log.request().request_id(),
                                          "\"): ", answer.response.status().ToString());
      }
      continue;
    }
    latencies.push_back(answer.latency_ms);
    if (answer.response->outputs_size() > 0) report.candidates += answer.response->outputs(0).scores_size();
    comparison.Add(static_cast<int64_t>(indices[k]), log, *answer.response);
    result.logs.push_back(NewLog(log, answer));
  }
  comparison.Finish();

  report.seconds = std::chrono::duration<double>(end - start).count();
  if (report.seconds > 0) {
    report.requests_per_second = static_cast<double>(latencies.size()) / report.seconds;
    report.candidates_per_second = static_cast<double>(report.candidates) / report.seconds;
  }
  if (!latencies.empty()) {
    std::sort(latencies.begin(), latencies.end());
    report.p50_ms = Percentile(latencies, 0.5);
    report.p90_ms = Percentile(latencies, 0.9);
    report.p99_ms = Percentile(latencies, 0.99);
    report.max_ms = latencies.back();
  }
  return result;
}

bool Failed(const ReplayReport& report, const ReplayOptions& options) {
  if (report.requests == 0 || !report.errors.empty() || report.misshapen > 0 || report.newly_degraded > 0)
    return true;
  return options.fail_on_difference && std::any_of(report.comparisons.begin(), report.comparisons.end(),
                                                   [](const ComparisonReport& comparison) {
                                                     return comparison.checked && comparison.bad > 0;
                                                   });
}

}  // namespace dinghy
