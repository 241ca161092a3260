#include "server/replay/replay.h"

#include <gmock/gmock.h>
#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <condition_variable>
#include <limits>
#include <mutex>
#include <set>
#include <sstream>

#include "server/replay/eval.h"

namespace dinghy {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

// A scorer whose score of a candidate depends on its id, the user and the length of the inline history.
v1::ScoreResponse Respond(const v1::ScoreRequest& request) {
  v1::ScoreResponse response;
  response.set_request_id(request.request_id());
  response.set_model(request.model().empty() ? "shop" : request.model());
  response.set_version(request.version() == 0 ? 3 : request.version());
  response.set_bundle_digest("digest");
  response.set_numerics_id("numerics");
  v1::OutputScores* const scores = response.add_outputs();
  scores->set_output("click");
  const int length = request.sequences().empty() ? 0 : request.sequences(0).event_time_ms_size();
  for (const int64_t id : request.candidates(0).ints().values()) {
    scores->add_scores(1.0f /
                       static_cast<float>(2 + id + static_cast<int64_t>(request.user_id().size()) + length));
  }
  return response;
}

v1::ScoreLog MakeLog(int number, int candidates) {
  v1::ScoreLog log;
  v1::ScoreRequest& request = *log.mutable_request();
  request.set_request_id("r" + std::to_string(number));
  request.set_model("shop");
  request.set_version(3);
  request.set_user_id("u");
  v1::SequenceData* const clicks = request.add_sequences();
  clicks->set_sequence("clicks");
  clicks->add_event_time_ms(5);
  v1::Column* const items = request.add_candidates();
  items->set_feature("item");
  v1::Labels* const labels = log.add_labels();
  labels->set_output("click");
  for (int c = 0; c < candidates; ++c) {
    items->mutable_ints()->add_values(number + c);
    labels->add_values(c % 2);
  }
  const v1::ScoreResponse response = Respond(request);
  *log.mutable_outputs() = response.outputs();
  log.set_bundle_digest(response.bundle_digest());
  log.set_numerics_id(response.numerics_id());
  v1::OutputScores* const reference = log.add_references();
  *reference = response.outputs(0);
  reference->set_source("pytorch");
  return log;
}

std::vector<v1::ScoreLog> MakeLogs(int count) {
  std::vector<v1::ScoreLog> logs;
  for (int i = 0; i < count; ++i) logs.push_back(MakeLog(i, 1 + i % 4));
  return logs;
}

ReplayResult RunReplay(const std::vector<v1::ScoreLog>& logs, const ReplayOptions& options = {},
                       const ScoreFunction& score = Respond) {
  auto result = Replay(logs, score, options);
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? *std::move(result) : ReplayResult();
}

const ComparisonReport& Logged(const ReplayResult& result) { return result.report.comparisons.at(0); }

TEST(ReplayTest, EqualScoresPass) {
  const std::vector<v1::ScoreLog> logs = MakeLogs(20);
  for (const int concurrency : {1, 3}) {
    ReplayOptions options;
    options.concurrency = concurrency;
    const ReplayResult result = RunReplay(logs, options);
    EXPECT_FALSE(Failed(result.report, options));
    EXPECT_EQ(result.report.requests, 20);
    EXPECT_EQ(result.report.candidates, 50);
    ASSERT_EQ(result.report.comparisons.size(), 2u);
    EXPECT_EQ(Logged(result).source, "logged");
    EXPECT_EQ(Logged(result).exact_requests, 20);
    EXPECT_EQ(Logged(result).scores, 50);
    EXPECT_EQ(Logged(result).bit_equal, 50);
    EXPECT_EQ(result.report.comparisons[1].source, "pytorch");
    EXPECT_EQ(result.report.comparisons[1].exact_requests, 0);
    ASSERT_EQ(result.logs.size(), 20u);
    for (int i = 0; i < 20; ++i) EXPECT_EQ(result.logs[i].request().request_id(), "r" + std::to_string(i));
  }
}

// `Respond` with the last score of request r7 moved to the next float.
absl::StatusOr<v1::ScoreResponse> OneBitOff(const v1::ScoreRequest& request) {
  v1::ScoreResponse response = Respond(request);
  if (request.request_id() == "r7") {
    auto& scores = *response.mutable_outputs(0)->mutable_scores();
    scores[scores.size() - 1] = std::nextafter(scores[scores.size() - 1], 1.0f);
  }
  return response;
}

TEST(ReplayTest, OneBitFailsWhereBitsMustBeEqual) {
  const std::vector<v1::ScoreLog> logs = MakeLogs(10);
  const ReplayResult result = RunReplay(logs, {}, OneBitOff);
  EXPECT_TRUE(Failed(result.report, {}));
  EXPECT_EQ(Logged(result).bad, 1);
  EXPECT_EQ(Logged(result).bit_equal, Logged(result).scores - 1);
  ASSERT_TRUE(Logged(result).first.has_value());
  const Difference& first = *Logged(result).first;
  EXPECT_EQ(first.log, 7);
  EXPECT_EQ(first.request_id, "r7");
  EXPECT_EQ(first.output, "click");
  EXPECT_EQ(first.candidate, 3);
  EXPECT_EQ(first.expected, logs[7].outputs(0).scores(3));
  EXPECT_EQ(first.got, std::nextafter(first.expected, 1.0f));
  EXPECT_EQ(result.report.comparisons[1].bad, 0);  // PyTorch's are within the tolerance
  EXPECT_THAT(ToText(result.report, {}),
              HasSubstr("first bad score: log 7 (request \"r7\"), output \"click\", "
                        "candidate 3:\n  expected "));
  ReplayOptions report_only;
  report_only.fail_on_difference = false;
  EXPECT_FALSE(Failed(RunReplay(logs, report_only, OneBitOff).report, report_only));
}

TEST(ReplayTest, ElsewhereTheToleranceHolds) {
  std::vector<v1::ScoreLog> logs = MakeLogs(10);
  for (v1::ScoreLog& log : logs) log.set_numerics_id("another");
  ReplayOptions options;
  ReplayResult result = RunReplay(logs, options, OneBitOff);
  EXPECT_FALSE(Failed(result.report, options));
  EXPECT_EQ(Logged(result).exact_requests, 0);
  EXPECT_EQ(result.report.other_numerics, 10);
  EXPECT_EQ(result.report.other_digest, 0);
  options.tolerance = 0;
  EXPECT_TRUE(Failed(RunReplay(logs, options, OneBitOff).report, options));
  logs[7].set_tolerance(1e-3);  // a log's own goes first
  EXPECT_FALSE(Failed(RunReplay(logs, options, OneBitOff).report, options));
  for (v1::ScoreLog& log : logs) log.clear_bundle_digest();
  EXPECT_EQ(RunReplay(logs).report.other_digest, 10);
}

TEST(ReplayTest, ChecksTheSourcesAskedFor) {
  std::vector<v1::ScoreLog> logs = MakeLogs(6);
  for (v1::ScoreLog& log : logs) {  // such as a converter writes: references only
    log.clear_outputs();
    log.clear_bundle_digest();
    v1::OutputScores* const truth = log.add_references();
    *truth = log.references(0);
    truth->set_source("truth");
    truth->set_scores(0, 0.9f);
  }
  ReplayOptions options;
  ReplayResult result = RunReplay(logs, options);
  EXPECT_FALSE(Failed(result.report, options));
  EXPECT_EQ(result.report.other_digest, 0);  // there is nothing to be equal with
  ASSERT_EQ(result.report.comparisons.size(), 2u);
  EXPECT_EQ(result.report.comparisons[0].source, "pytorch");
  EXPECT_TRUE(result.report.comparisons[0].checked);
  EXPECT_EQ(result.report.comparisons[1].source, "truth");
  EXPECT_FALSE(result.report.comparisons[1].checked);
  EXPECT_EQ(result.report.comparisons[1].bad, 6);
  EXPECT_NEAR(result.report.comparisons[1].max_abs_difference, 0.9 - 1.0 / 9, 1e-6);
  options.checked_sources = {"pytorch", "truth"};
  EXPECT_TRUE(Failed(RunReplay(logs, options).report, options));

  logs[2].mutable_references(0)->set_scores(1, 0.9f);
  options.checked_sources = {"pytorch"};
  result = RunReplay(logs, options);
  EXPECT_TRUE(Failed(result.report, options));
  EXPECT_EQ(result.report.comparisons[0].first->log, 2);
  EXPECT_EQ(result.report.comparisons[0].first->candidate, 1);
}

TEST(ReplayTest, SendsRequestsAsLoggedOrChanged) {
  const std::vector<v1::ScoreLog> logs = MakeLogs(1);
  std::vector<v1::ScoreRequest> sent;
  const ScoreFunction score = [&](const v1::ScoreRequest& request) {
    sent.push_back(request);
    return Respond(request);
  };
  RunReplay(logs, {}, score);
  ReplayOptions store;
  store.histories_from_store = true;
  const ReplayResult from_store = RunReplay(logs, store, score);
  ReplayOptions version;
  version.version = 9;
  const ReplayResult other_version = RunReplay(logs, version, score);
  ReplayOptions model;
  model.model = "other";
  RunReplay(logs, model, score);
  ReplayOptions label;
  label.label = "canary";
  RunReplay(logs, label, score);
  ASSERT_EQ(sent.size(), 5u);
  EXPECT_EQ(sent[0].SerializeAsString(), logs[0].request().SerializeAsString());
  EXPECT_EQ(sent[1].sequences_size(), 0);
  EXPECT_EQ(sent[2].version(), 9);
  EXPECT_EQ(sent[3].model(), "other");
  EXPECT_EQ(sent[3].version_choice_case(), v1::ScoreRequest::VERSION_CHOICE_NOT_SET);
  EXPECT_EQ(sent[4].label(), "canary");
  // The store may hold another history, so its scores need not have equal bits.
  EXPECT_EQ(Logged(from_store).exact_requests, 0);
  EXPECT_EQ(other_version.logs[0].request().version(), 9);
}

TEST(ReplayTest, CountsErrorsByCodeAndGoesOn) {
  const ScoreFunction score = [](const v1::ScoreRequest& request) -> absl::StatusOr<v1::ScoreResponse> {
    if (request.request_id() == "r1") return absl::NotFoundError("model \"shop\"");
    if (request.request_id() > "r3") return absl::UnavailableError("gone");
    return Respond(request);
  };
  const ReplayResult result = RunReplay(MakeLogs(6), {}, score);
  EXPECT_TRUE(Failed(result.report, {}));
  EXPECT_THAT(result.report.errors, ElementsAre(Pair("NOT_FOUND", 1), Pair("UNAVAILABLE", 2)));
  EXPECT_EQ(result.report.first_error, "log 1 (request \"r1\"): NOT_FOUND: model \"shop\"");
  EXPECT_EQ(result.logs.size(), 3u);
  EXPECT_EQ(Logged(result).requests, 3);
  EXPECT_THAT(ToText(result.report, {}), HasSubstr("errors: 2 UNAVAILABLE\n"));
}

TEST(ReplayTest, AnAnswerOfAnotherShapeFails) {
  const ScoreFunction fewer = [](const v1::ScoreRequest& request) {
    v1::ScoreResponse response = Respond(request);
    response.mutable_outputs(0)->mutable_scores()->RemoveLast();
    return response;
  };
  const ScoreFunction renamed = [](const v1::ScoreRequest& request) {
    v1::ScoreResponse response = Respond(request);
    response.mutable_outputs(0)->set_output("buy");
    return response;
  };
  ReplayResult result = RunReplay(MakeLogs(2), {}, fewer);
  EXPECT_TRUE(Failed(result.report, {}));
  EXPECT_EQ(result.report.misshapen, 2);
  EXPECT_EQ(result.report.first_misshapen,
            "log 0 (request \"r0\"): output \"click\": expected 1 scores, got 0");
  result = RunReplay(MakeLogs(2), {}, renamed);
  EXPECT_TRUE(Failed(result.report, {}));
  EXPECT_THAT(result.report.first_misshapen, HasSubstr("expected output \"click\", got none of that name"));
}

TEST(ReplayTest, ReferencesOfOutputsNotAskedForAreLeftOut) {
  v1::ScoreLog log = MakeLog(1, 2);
  log.mutable_request()->add_outputs("click");
  log.mutable_references(0)->set_output("buy");
  const ReplayResult result = RunReplay({log});
  EXPECT_FALSE(Failed(result.report, {}));
  EXPECT_EQ(result.report.comparisons.size(), 1u);
}

TEST(ReplayTest, ANaNIsNeverWithinTheTolerance) {
  std::vector<v1::ScoreLog> logs = MakeLogs(1);
  logs[0].clear_numerics_id();
  const ReplayResult result = RunReplay(logs, {}, [](const v1::ScoreRequest& request) {
    v1::ScoreResponse response = Respond(request);
    response.mutable_outputs(0)->set_scores(0, std::numeric_limits<float>::quiet_NaN());
    return response;
  });
  EXPECT_TRUE(Failed(result.report, {}));
  EXPECT_EQ(Logged(result).bad, 1);
  EXPECT_TRUE(std::isinf(Logged(result).max_abs_difference));
}

TEST(ReplayTest, ANewDegradationFailsAndALoggedOneDoesNot) {
  const ScoreFunction degraded = [](const v1::ScoreRequest& request) {
    v1::ScoreResponse response = Respond(request);
    response.add_degradations(v1::HISTORY_UNAVAILABLE);
    response.add_warnings("feature \"x\" is unknown");
    return response;
  };
  std::vector<v1::ScoreLog> logs = MakeLogs(3);
  logs[0].add_degradations(v1::HISTORY_UNAVAILABLE);
  const ReplayResult result = RunReplay(logs, {}, degraded);
  EXPECT_TRUE(Failed(result.report, {}));
  EXPECT_EQ(result.report.newly_degraded, 2);
  EXPECT_EQ(result.report.first_degraded, "log 1 (request \"r1\"): HISTORY_UNAVAILABLE");
  EXPECT_THAT(result.report.warnings, ElementsAre(Pair("feature \"x\" is unknown", 3)));
  EXPECT_FALSE(Failed(RunReplay({logs[0]}, {}, degraded).report, {}));
}

TEST(ReplayTest, LogsThatLackAFeatureAreSkippedAndCounted) {
  std::vector<v1::ScoreLog> logs = MakeLogs(3);
  logs[1].set_not_replayable(true);
  const ReplayResult result = RunReplay(logs);
  EXPECT_EQ(result.report.requests, 2);
  EXPECT_EQ(result.report.not_replayable, 1);
  EXPECT_FALSE(Failed(result.report, {}));
  EXPECT_EQ(result.logs[1].request().request_id(), "r2");
  EXPECT_TRUE(Failed(RunReplay({}).report, {}));  // nothing was shown
  EXPECT_THAT(ToText(RunReplay({}).report, {}),
              HasSubstr("nothing to replay: expected at least 1 log, got 0"));
  EXPECT_TRUE(Failed(RunReplay({logs[1]}).report, {}));
}

TEST(ReplayTest, NewLogsKeepLabelsAndReferencesAndCanBeEvaluated) {
  std::vector<v1::ScoreLog> logs = MakeLogs(8);
  for (v1::ScoreLog& log : logs) log.mutable_outputs(0)->set_scores(0, 0.75f);
  const ReplayResult result = RunReplay(logs);
  ASSERT_EQ(result.logs.size(), 8u);
  const v1::ScoreLog& log = result.logs[3];
  EXPECT_EQ(log.outputs(0).SerializeAsString(), Respond(logs[3].request()).outputs(0).SerializeAsString());
  ASSERT_EQ(log.references_size(), 2);
  EXPECT_EQ(log.references(0).source(), "logged");
  EXPECT_EQ(log.references(0).scores(0), 0.75f);
  EXPECT_EQ(log.references(1).source(), "pytorch");
  EXPECT_EQ(log.labels_size(), 1);
  EXPECT_EQ(log.numerics_id(), "numerics");
  const auto report = Evaluate(result.logs);
  ASSERT_TRUE(report.ok()) << report.status();
  ASSERT_EQ(report->series.size(), 3u);
  EXPECT_EQ(report->series[1].source, "logged");
  EXPECT_EQ(report->series[1].compared, 20);
  EXPECT_EQ(*report->series[2].max_abs_difference, 0);

  // Again: "logged" are then the newer ones.
  const ReplayResult again = RunReplay(result.logs);
  EXPECT_FALSE(Failed(again.report, {}));
  EXPECT_EQ(again.logs[3].SerializeAsString(), RunReplay(result.logs).logs[3].SerializeAsString());
  ASSERT_EQ(again.logs[3].references_size(), 2);
  EXPECT_EQ(again.logs[3].references(0).scores(0), log.outputs(0).scores(0));
}

TEST(ReplayTest, RunsAsManyCallersAsAskedFor) {
  // Every call waits until three are under way: with fewer callers this would never end.
  std::mutex mutex;
  std::condition_variable arrived;
  int count = 0;
  ReplayOptions options;
  options.concurrency = 3;
  std::vector<int64_t> progress;
  options.on_progress = [&](int64_t answered) { progress.push_back(answered); };
  const ReplayResult result = RunReplay(MakeLogs(3), options, [&](const v1::ScoreRequest& request) {
    std::unique_lock lock(mutex);
    ++count;
    arrived.notify_all();
    arrived.wait(lock, [&] { return count == 3; });
    return Respond(request);
  });
  EXPECT_EQ(result.report.requests, 3);
  EXPECT_THAT(progress, ElementsAre(1, 2, 3));
}

TEST(ReplayTest, ARateIsKeptFromAbove) {
  ReplayOptions options;
  options.rate = 2000;
  options.concurrency = 2;
  const ReplayResult result = RunReplay(MakeLogs(21), options);
  EXPECT_EQ(result.report.requests, 21);
  EXPECT_GE(result.report.seconds, 20 / 2000.0);  // the last one was not due earlier
  EXPECT_FALSE(Failed(result.report, options));
}

TEST(ReplayTest, ReportsLatenciesInOrder) {
  const ReplayReport report = RunReplay(MakeLogs(50)).report;
  EXPECT_GT(report.seconds, 0);
  EXPECT_GT(report.requests_per_second, 0);
  EXPECT_NEAR(report.candidates_per_second / report.requests_per_second,
              static_cast<double>(report.candidates) / static_cast<double>(report.requests), 1e-9);
  EXPECT_GT(report.p50_ms, 0);
  EXPECT_LE(report.p50_ms, report.p90_ms);
  EXPECT_LE(report.p90_ms, report.p99_ms);
  EXPECT_LE(report.p99_ms, report.max_ms);
}

TEST(ReplayTest, RefusesOptionsThatMakeNoSense) {
  const auto message = [](const std::function<void(ReplayOptions&)>& change) {
    ReplayOptions options;
    change(options);
    const auto result = Replay({}, Respond, options);
    EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(result.status().message());
  };
  EXPECT_THAT(message([](auto& o) { o.concurrency = 0; }),
              HasSubstr("concurrency: expected 1 or more, got 0"));
  EXPECT_THAT(message([](auto& o) { o.rate = -1; }), HasSubstr("rate: expected 0 or more, got -1"));
  EXPECT_THAT(message([](auto& o) { o.tolerance = std::nan(""); }), HasSubstr("tolerance"));
  EXPECT_THAT(message([](auto& o) { o.version = 1, o.label = "stable"; }), HasSubstr("got both"));
}

TEST(ReplayTest, PrintsTextAndJson) {
  const ReplayResult result = RunReplay(MakeLogs(10), {}, OneBitOff);
  const std::string text = ToText(result.report, {});
  EXPECT_THAT(text, HasSubstr("10 requests, 23 candidates in "));
  EXPECT_THAT(text, HasSubstr("logged         equal bits          10      23         22"));
  EXPECT_THAT(text, HasSubstr("\nFAILED\n"));
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 110u) << line;

  google::protobuf::Struct json;
  const std::string printed = ToJson(result.report, {});
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(printed, &json).ok()) << printed;
  EXPECT_FALSE(json.fields().at("ok").bool_value());
  EXPECT_EQ(json.fields().at("requests").number_value(), 10);
  const auto& logged = json.fields().at("comparisons").list_value().values(0).struct_value().fields();
  EXPECT_EQ(logged.at("bad").number_value(), 1);
  EXPECT_EQ(logged.at("first_bad").struct_value().fields().at("request_id").string_value(), "r7");
  EXPECT_THAT(ToText(RunReplay(MakeLogs(2)).report, {}), HasSubstr("\nOK\n"));
}

}  // namespace
}  // namespace dinghy
