#include "server/replay/eval.h"

#include <gmock/gmock.h>
#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <sstream>

namespace dinghy {
namespace {

using ::testing::HasSubstr;

constexpr float kUnknown = std::numeric_limits<float>::quiet_NaN();

v1::OutputScores Scores(const std::string& output, const std::vector<float>& values,
                        const std::string& source = "") {
  v1::OutputScores scores;
  scores.set_output(output);
  scores.set_source(source);
  scores.mutable_scores()->Assign(values.begin(), values.end());
  return scores;
}

v1::Labels MakeLabels(const std::string& output, const std::vector<float>& values) {
  v1::Labels labels;
  labels.set_output(output);
  labels.mutable_values()->Assign(values.begin(), values.end());
  return labels;
}

v1::ScoreLog MakeLog(const std::string& user, const std::vector<v1::OutputScores>& outputs,
                     const std::vector<v1::OutputScores>& references, const std::vector<v1::Labels>& labels) {
  v1::ScoreLog log;
  log.mutable_request()->set_user_id(user);
  log.mutable_request()->set_request_id("of " + user);
  for (const auto& scores : outputs) *log.add_outputs() = scores;
  for (const auto& scores : references) *log.add_references() = scores;
  for (const auto& of_output : labels) *log.add_labels() = of_output;
  return log;
}

// Three requests of two users, small enough to do by hand.
std::vector<v1::ScoreLog> TinyLog() {
  return {
      MakeLog("a", {Scores("click", {0.5f, 0.25f, 0.75f})}, {Scores("click", {0.5f, 0.25f, 0.5f}, "pytorch")},
              {MakeLabels("click", {1, 0, kUnknown})}),
      MakeLog("b", {Scores("click", {0.5f, 0.125f}), Scores("buy", {2, 3})}, {},
              {MakeLabels("click", {0, 0})}),
      MakeLog("a", {Scores("click", {0.25f})}, {Scores("click", {0.125f}, "pytorch")},
              {MakeLabels("click", {1})}),
  };
}

TEST(EvalTest, MeasuresATinyLogAsByHand) {
  const auto report = Evaluate(TinyLog());
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->logs, 3);
  ASSERT_EQ(report->series.size(), 3u);

  const SeriesReport& buy = report->series[0];
  EXPECT_EQ(buy.output, "buy");
  EXPECT_EQ(buy.source, "served");
  EXPECT_EQ(buy.candidates, 2);
  EXPECT_EQ(buy.labelled, 0);
  EXPECT_FALSE(buy.auc.has_value());
  EXPECT_FALSE(buy.mean_score.has_value());

  const SeriesReport& served = report->series[1];
  EXPECT_EQ(served.output, "click");
  EXPECT_EQ(served.source, "served");
  EXPECT_EQ(served.requests, 3);
  EXPECT_EQ(served.candidates, 6);
  EXPECT_EQ(served.labelled, 5);
  EXPECT_EQ(served.positives, 2);
  // Positives 0.5 and 0.25 against negatives 0.25, 0.5 and 0.125: (1 + 0.5 + 1) + (0.5 + 0 + 1) of 6.
  EXPECT_DOUBLE_EQ(*served.auc, 4.0 / 6);
  // User a: positives 0.5, 0.25 against 0.25: 1.5 of 2; user b has no click.
  EXPECT_DOUBLE_EQ(*served.gauc, 0.75);
  EXPECT_EQ(served.users, 1);
  EXPECT_EQ(served.skipped_users, 1);
  EXPECT_NEAR(*served.logloss,
              -(std::log(0.5) + std::log(0.75) + std::log(0.5) + std::log(0.875) + std::log(0.25)) / 5,
              1e-12);
  EXPECT_DOUBLE_EQ(*served.mean_score, (0.5 + 0.25 + 0.5 + 0.125 + 0.25) / 5);
  EXPECT_EQ(served.compared, 0);
  EXPECT_FALSE(served.max_abs_difference.has_value());

  const SeriesReport& pytorch = report->series[2];
  EXPECT_EQ(pytorch.source, "pytorch");
  EXPECT_EQ(pytorch.requests, 2);
  EXPECT_EQ(pytorch.labelled, 3);
  EXPECT_DOUBLE_EQ(*pytorch.auc, 0.5);  // 0.5 and 0.125 against 0.25
  EXPECT_EQ(pytorch.compared, 4);
  EXPECT_DOUBLE_EQ(*pytorch.max_abs_difference, 0.25);  // of the candidate without a label
  EXPECT_DOUBLE_EQ(*pytorch.mean_abs_difference, (0.25 + 0.125) / 4);
}

TEST(EvalTest, TakesLogsWithReferencesOnly) {
  const auto report =
      Evaluate({MakeLog("a", {}, {Scores("click", {0.5f, 0.25f}, "truth")}, {MakeLabels("click", {1, 0})})});
  ASSERT_TRUE(report.ok()) << report.status();
  ASSERT_EQ(report->series.size(), 1u);
  EXPECT_EQ(report->series[0].source, "truth");
  EXPECT_EQ(*report->series[0].auc, 1.0);
  EXPECT_EQ(report->series[0].compared, 0);
}

TEST(EvalTest, ABadLogIsRefusedWholeAndNamed) {
  Evaluator evaluator;
  ASSERT_TRUE(evaluator.Add(TinyLog()[0]).ok());
  const auto message = [&](const v1::ScoreLog& log) {
    const absl::Status status = evaluator.Add(log);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("log 1 (request \"of u\"): "));
    return std::string(status.message());
  };
  EXPECT_THAT(message(MakeLog("u", {Scores("click", {1, 1})}, {}, {MakeLabels("click", {1})})),
              HasSubstr("scores of output \"click\" from served: expected 1 as there are labels, got 2"));
  EXPECT_THAT(message(MakeLog("u", {}, {Scores("click", {1}, "x")}, {MakeLabels("click", {1, 0})})),
              HasSubstr("scores of output \"click\" from \"x\": expected 2 as there are labels, got 1"));
  EXPECT_THAT(message(MakeLog("u", {Scores("click", {1})}, {}, {MakeLabels("click", {0.5f})})),
              HasSubstr("labels of output \"click\": candidate 0: expected 0, 1 or NaN, got 0.5"));
  EXPECT_THAT(message(MakeLog("u", {Scores("click", {0, kUnknown})}, {}, {})),
              HasSubstr("candidate 1: expected a finite score, got nan"));
  EXPECT_THAT(message(MakeLog("u", {Scores("click", {1}), Scores("click", {1})}, {}, {})),
              HasSubstr("twice"));
  EXPECT_THAT(message(MakeLog("u", {}, {}, {MakeLabels("c", {1}), MakeLabels("c", {1})})),
              HasSubstr("twice"));
  EXPECT_THAT(message(MakeLog("u", {Scores("click", {1})}, {Scores("click", {1, 1}, "x")}, {})),
              HasSubstr("expected 1 as were served, got 2"));
  EXPECT_THAT(message(MakeLog("u", {}, {Scores("click", {1})}, {})), HasSubstr("name no source"));
  const EvalReport report = evaluator.Report();
  EXPECT_EQ(report.logs, 1);
  ASSERT_EQ(report.series.size(), 2u);
  EXPECT_EQ(report.series[0].candidates, 3);
}

TEST(EvalTest, TheTextLinesUpWithinTheTerminal) {
  const std::string text = ToText(*Evaluate(TinyLog()));
  EXPECT_THAT(text, HasSubstr("output  source        AUC      gAUC   logloss  mean score  mean label\n"
                              "buy     served          -         -         -           -           -\n"
                              "click   served   0.666667  0.750000  0.638760    0.325000    0.400000\n"));
  EXPECT_THAT(text,
              HasSubstr("output  source   compared  max |difference|  mean |difference|  AUC difference\n"
                        "click   pytorch         4          2.50e-01           9.38e-02       +0.166667\n"));
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100u) << line;
  EXPECT_EQ(ToText(*Evaluate({})), "0 logs, none of them with scores\n");
}

TEST(EvalTest, TheJsonParsesAndHoldsTheNumbers) {
  google::protobuf::Struct json;
  const std::string text = ToJson(*Evaluate(TinyLog()));
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(text, &json).ok()) << text;
  EXPECT_EQ(json.fields().at("logs").number_value(), 3);
  const auto& series = json.fields().at("series").list_value().values();
  ASSERT_EQ(series.size(), 3);
  EXPECT_TRUE(series[0].struct_value().fields().at("auc").has_null_value());
  const auto& served = series[1].struct_value().fields();
  EXPECT_NEAR(served.at("auc").number_value(), 4.0 / 6, 1e-9);
  EXPECT_EQ(served.at("positives").number_value(), 2);
  EXPECT_EQ(series[2].struct_value().fields().at("source").string_value(), "pytorch");
}

}  // namespace
}  // namespace dinghy
