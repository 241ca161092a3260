#include <gtest/gtest.h>

#include <tuple>

#include "tests/testing/reference/compare.h"

namespace dinghy::reference {
namespace {

constexpr int kMaxLength = 70;
constexpr int kWidth = 10;

using Options = RandomModel::SelfAttentionOptions;

// One self-attention layer over two features, and its mean as the output.
RandomModel AttentionModel(const Options& options) {
  RandomModel model(7);
  model.AddSequence("clicks", kMaxLength);
  model.AddTable("item", 30, 7);
  model.AddTable("category", 9, kWidth - 7);
  model.AddId("clicks.item", v1::SEQUENCE, "item");
  model.AddId("clicks.category", v1::SEQUENCE, "category");
  *model.AddLayer("history", {"clicks.item", "clicks.category"})->mutable_self_attention() =
      model.MakeSelfAttention("history", options);
  model.AddLayer("pooled", {"history"})->mutable_pooling()->set_method(v1::Pooling::MEAN);
  *model.AddLayer("out", {"pooled"})->mutable_dense() = model.MakeDense("out", kWidth, 1, v1::LINEAR);
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
