#include <gtest/gtest.h>

#include <tuple>

#include "tests/testing/reference/compare.h"

namespace dinghy::reference {
namespace {

constexpr int kMaxLength = 70;
constexpr int kWidth = 10;

using Options = RandomModel::SelfAttentionOptions;

// One self-attention layer over two features, and its mean as the output.
RandomModel AttentionModel(const Options& options, int max_length = kMaxLength) {
  RandomModel model(7);
  model.AddSequence("clicks", max_length);
  model.AddTable("item", 30, 7);
  model.AddTable("category", 9, options.width - 7);
  model.AddId("clicks.item", v1::SEQUENCE, "item");
  model.AddId("clicks.category", v1::SEQUENCE, "category");
  *model.AddLayer("history", {"clicks.item", "clicks.category"})->mutable_self_attention() =
      model.MakeSelfAttention("history", options);
  model.AddLayer("pooled", {"history"})->mutable_pooling()->set_method(v1::Pooling::MEAN);
  *model.AddLayer("out", {"pooled"})->mutable_dense() = model.MakeDense("out", options.width, 1, v1::LINEAR);
  model.AddOutput("out", "out", v1::Output::RAW);
  return model;
}

void CompareAllLengths(const Options& options) {
  const RandomModel random_model = AttentionModel(options);
  const std::unique_ptr<Model> model = CreateModel(random_model);
  ASSERT_NE(model, nullptr);
  for (const int length : {0, 1, 2, 7, 15, 16, 17, 50, 63, 64, 65, kMaxLength}) {
    SCOPED_TRACE(length);
    CompareWithReference(random_model, *model,
                         RandomBatch(random_model, {.candidates = 2, .lengths = {length}}, 11));
  }
}

class SelfAttentionTest : public ::testing::TestWithParam<std::tuple<v1::SelfAttention::Wiring, int, bool>> {
};

TEST_P(SelfAttentionTest, MatchesReference) {
  const auto [wiring, heads, causal] = GetParam();
  CompareAllLengths(
      {.width = kWidth, .heads = heads, .positions = kMaxLength, .wiring = wiring, .causal = causal});
}

INSTANTIATE_TEST_SUITE_P(All, SelfAttentionTest,
                         ::testing::Combine(::testing::Values(v1::SelfAttention::PRE_NORM,
                                                              v1::SelfAttention::POST_NORM,
                                                              v1::SelfAttention::SASREC_ORIGINAL),
                                            ::testing::Values(1, 2), ::testing::Bool()));

TEST(SelfAttentionOptionsTest, BlocksPositionsAndFinalNorm) {
  for (const int positions : {0, kMaxLength, kMaxLength + 5}) {
    SCOPED_TRACE(positions);
    CompareAllLengths({.width = kWidth,
                       .heads = 5,
                       .blocks = 2,
                       .positions = positions,
                       .final_norm = true,
                       .origin = v1::FROM_OLDEST});
  }
}

TEST(SelfAttentionOptionsTest, LongHistoriesAndOddHeads) {
  struct Case {
    int heads, head_width;
  };
  for (const auto [heads, head_width] :
       {Case{1, 64}, Case{1, 50}, Case{2, 25}, Case{2, 32}, Case{4, 8}, Case{4, 16}}) {
    SCOPED_TRACE(::testing::Message() << heads << " heads of " << head_width);
    const RandomModel random_model = AttentionModel(
        {.width = heads * head_width, .heads = heads, .wiring = v1::SelfAttention::SASREC_ORIGINAL}, 200);
    for (const bool fused : {true, false}) {
      const std::unique_ptr<Model> model = CreateModel(random_model, {.fused_kernels = fused});
      ASSERT_NE(model, nullptr);
      for (const int length : {0, 1, 2, 15, 16, 17, 63, 65, 200}) {
        SCOPED_TRACE(length);
        CompareWithReference(random_model, *model,
                             RandomBatch(random_model, {.candidates = 2, .lengths = {length}}, 11));
      }
    }
  }
}

TEST(SelfAttentionOptionsTest, TheLongestHistory) {
  const RandomModel random_model = AttentionModel({.width = 16, .heads = 2}, 1000);
  const std::unique_ptr<Model> model = CreateModel(random_model);
  ASSERT_NE(model, nullptr);
  CompareWithReference(random_model, *model,
                       RandomBatch(random_model, {.candidates = 1, .lengths = {1000}}, 11));
}

// Floats that a request of that length holds at a time.
int64_t MemoryOf(const RandomModel& random_model, const Model& model, int length) {
  const FeatureBatch batch = RandomBatch(random_model, {.candidates = 1, .lengths = {length}}, 11);
  ops::Scratch scratch;
  ModelOutputs outputs;
  // What the first needs decides the size of the one block that the second has.
  for (int i = 0; i < 2; ++i) model.Score(batch, {}, scratch, outputs);
  return static_cast<int64_t>(scratch.capacity());
}

TEST(SelfAttentionOptionsTest, MemoryGrowsWithTheLengthNotWithItsSquare) {
  for (const bool causal : {true, false}) {
    const RandomModel random_model =
        AttentionModel({.width = 128, .heads = 2, .blocks = 2, .causal = causal}, 1000);
    for (const bool fused : {true, false}) {
      SCOPED_TRACE(::testing::Message() << "causal " << causal << ", fused " << fused);
      const std::unique_ptr<Model> model = CreateModel(random_model, {.fused_kernels = fused});
      ASSERT_NE(model, nullptr);
      const int64_t quarter = MemoryOf(random_model, *model, 250);
      const int64_t half = MemoryOf(random_model, *model, 500);
      const int64_t whole = MemoryOf(random_model, *model, 1000);
      ASSERT_GT(quarter, 1 << 18);  // else it is a scratch's least, which says nothing
      EXPECT_NEAR(static_cast<double>(whole - half), 2.0 * static_cast<double>(half - quarter),
                  0.05 * static_cast<double>(whole));
    }
  }
}

// In a causal encoder without positions, taking away the newest behavior moves no older one, to the bit.
TEST(SelfAttentionOptionsTest, CausalRowsIgnoreNewerBehaviors) {
  const RandomModel random_model = AttentionModel({.width = kWidth, .heads = 2});
  const std::unique_ptr<Model> model = CreateModel(random_model);
  ASSERT_NE(model, nullptr);
  const FeatureBatch longer = RandomBatch(random_model, {.candidates = 1, .lengths = {30}}, 11);
  FeatureBatch shorter = longer;
  shorter.sequence_lengths = {29};
  for (FeatureColumn& column : shorter.columns) column.rows.resize(29);
  ops::Scratch scratch;
  ModelOutputs all, fewer;
  const ModelScoreOptions options{.attention = false, .debug_names = {"history"}};
  model->Score(longer, options, scratch, all);
  model->Score(shorter, options, scratch, fewer);
  all.debug[0].values.resize(29 * kWidth);
  EXPECT_EQ(all.debug[0].values, fewer.debug[0].values);
}

}  // namespace
}  // namespace dinghy::reference
