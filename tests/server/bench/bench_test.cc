#include "server/bench/bench.h"

#include <filesystem>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/test_bundle.h"

namespace dinghy {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ParseGridTest, Points) {
  const auto grid = ParseGrid("50x100,0x1");
  ASSERT_TRUE(grid.ok()) << grid.status();
  ASSERT_EQ(grid->size(), 2);
  EXPECT_EQ((*grid)[0].history, 50);
  EXPECT_EQ((*grid)[0].candidates, 100);
  EXPECT_EQ((*grid)[1].history, 0);
  EXPECT_EQ((*grid)[1].candidates, 1);
}

TEST(ParseGridTest, NamesWhatIsNoPoint) {
  for (const char* point : {"", "50", "50x", "x100", "50x100x1", "-1x5", "50x0", "ax5", "5x1000001"}) {
    const absl::Status status = ParseGrid(absl::StrCat("5x5,", point)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(status.message(),
              absl::StrCat("grid: expected HISTORYxCANDIDATES such as 50x100, comma-separated, got \"", point,
                           "\""));
  }
}

TEST(FlopsOfTest, EachKindOfWorkAsOftenAsItIsDone) {
  LayerInfo all;
  all.flops_user = 1;
  all.flops_behavior = 10;
  all.flops_candidate = 100;
  all.flops_pair = 1000;
  all.flops_behavior_pair = 10000;
  EXPECT_EQ(FlopsOf({all}, {.history = 2, .candidates = 3}), 1 + 20 + 300 + 6000 + 40000);
  EXPECT_EQ(FlopsOf({all, all}, {.history = 0, .candidates = 1}), 202);
  EXPECT_EQ(FlopsOf({}, {.history = 2, .candidates = 3}), 0);
}

class BenchTest : public ::testing::Test {
 protected:
  BenchTest() {
    const std::string test = ::testing::UnitTest::GetInstance()->current_test_info()->name();
    root_ = absl::StrCat(::testing::TempDir(), "/bench_test_", test);
    loaded_ = *LoadModel(WriteTestBundle(root_, {.version = 4, .self_attention = true}).value(), {});
  }
  ~BenchTest() override { std::filesystem::remove_all(root_); }

  std::string root_;
  std::unique_ptr<LoadedModel> loaded_;
};

TEST_F(BenchTest, ReportsEveryPoint) {
  std::string points;
  BenchOptions options;
  options.grid = {{.history = 5, .candidates = 7}, {.history = 0, .candidates = 3}};
  options.threads = 2;
  options.duration = absl::Milliseconds(5);
  options.requests = 2;
  options.on_point = [&](const BenchPoint& point) {
    absl::StrAppend(&points, point.history, "x", point.candidates, " ");
  };
  const absl::StatusOr<BenchReport> report = RunBench(*loaded_, options);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(points, "5x7 0x3 ");
  EXPECT_EQ(report->model, "shop");
  EXPECT_EQ(report->version, 4);
  EXPECT_EQ(report->numerics_id, loaded_->model->numerics_id());
  EXPECT_GT(report->ceiling.gflops, 0);
  EXPECT_GT(report->ceiling.size, 0);
  ASSERT_EQ(report->results.size(), 2);
  for (const BenchResult& result : report->results) {
    EXPECT_GE(result.runs, 10);
    EXPECT_GT(result.ms, 0);
    const double seconds = result.ms * 1e-3;
    EXPECT_NEAR(result.candidates_per_second, 2 * result.point.candidates / seconds,
                1e-6 * result.candidates_per_second);
    EXPECT_NEAR(result.gflops, 2 * FlopsOf(loaded_->model->Layers(), result.point) / seconds * 1e-9,
                1e-6 * result.gflops);
    EXPECT_NEAR(result.share, result.gflops / report->ceiling.gflops, 1e-9);
    const BenchSplit& split = result.split;
    const AttentionShares& attention = split.attention;
    EXPECT_NEAR(split.embed + split.encode + attention.pair_gemm + attention.second_gemm +
                    attention.activation + attention.pooling + split.tower,
                1, 1e-9);
    for (const double part : {split.embed, split.encode, attention.pair_gemm, split.tower}) {
      EXPECT_GT(part, 0);
    }
    ASSERT_EQ(result.layers.size(), loaded_->bundle->manifest.layers_size());
    EXPECT_EQ(result.layers[0].name, loaded_->bundle->manifest.layers(0).name());
  }

  const std::string text = ToText(*report);
  EXPECT_THAT(text, HasSubstr("shop version 4, 2 threads, caches warm, kernels fused\n"));
  EXPECT_THAT(text, HasSubstr("history  candidates"));
  const std::string json = ToJson(*report);
  EXPECT_THAT(json, HasSubstr("\"candidates\": 7"));
  EXPECT_THAT(json, HasSubstr("\"kind\": \"target_attention\""));
}

TEST_F(BenchTest, ColdRequestsToo) {
  BenchOptions options;
  options.grid = {{.history = 2, .candidates = 1}};
  options.duration = absl::ZeroDuration();
  options.cold = true;
  options.model.fused_kernels = false;
  const absl::StatusOr<BenchReport> report = RunBench(*loaded_, options);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->results[0].runs, 5);
  EXPECT_THAT(ToText(*report), HasSubstr("1 thread, caches cold, kernels onednn\n"));
}

TEST_F(BenchTest, ThreadsOnOneRequestTogether) {
  BenchOptions options;
  options.grid = {{.history = 5, .candidates = 200}};
  options.threads = 2;
  options.split = true;
  options.cached = true;
  options.duration = absl::ZeroDuration();
  const absl::StatusOr<BenchReport> report = RunBench(*loaded_, options);
  ASSERT_TRUE(report.ok()) << report.status();
  const BenchResult& result = report->results[0];
  EXPECT_EQ(result.runs, 5);
  EXPECT_NEAR(result.candidates_per_second, 200 / (result.ms * 1e-3), 1e-6 * result.candidates_per_second);
  EXPECT_NEAR(result.gflops, FlopsOf(loaded_->model->Layers(), result.point, true) / result.ms * 1e-6,
              1e-6 * result.gflops);
  EXPECT_THAT(ToText(*report), HasSubstr("2 threads on each request together, users cached, caches warm"));
}

TEST_F(BenchTest, RefusesALongerHistoryBeforeItTimesAnything) {
  BenchOptions options;
  options.grid = {{.history = 1, .candidates = 1}, {.history = kTestMaxLength + 1, .candidates = 1}};
  options.on_point = [](const BenchPoint&) { FAIL() << "timed"; };
  EXPECT_THAT(RunBench(*loaded_, options).status().message(),
              HasSubstr("history: expected at most 10, the max_length of sequence \"clicks\", got 11"));
}

// What the clock of the steps counts is part of the call, and all of it.
TEST_F(BenchTest, StepsAreWithinTheCall) {
  const FeatureBatch batch = [&] {
    RequestEncoder& encoder = *loaded_->encoder;
    FeatureBatch encoded;
    EncodeNotes notes;
    EXPECT_TRUE(encoder.Encode(MakeTestRequest({}), encoded, notes).ok());
    return encoded;
  }();
  std::vector<double> steps(loaded_->model->Layers().size() + ModelScoreOptions::kFirstLayerStep + 1);
  ops::Scratch scratch;
  ModelOutputs plain;
  ModelOutputs timed;
  loaded_->model->Score(batch, {}, scratch, plain);
  ModelScoreOptions options;
  options.step_seconds = absl::MakeSpan(steps);
  for (int i = 0; i < 3; ++i) loaded_->model->Score(batch, options, scratch, timed);
  EXPECT_EQ(plain.scores, timed.scores);
  for (const double seconds : steps) EXPECT_GT(seconds, 0);
}

}  // namespace
}  // namespace dinghy
