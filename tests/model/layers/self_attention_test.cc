#include <gtest/gtest.h>

#include <tuple>

#include "model/layers/value_readers.h"
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

// Where pooling LAST alone reads the encoder, the last block computes no other row; whoever asks for the
// layer's value still gets all rows. The score has the same bits either way.
void CompareNewestAlone(const Options& options, v1::Sequence::Pad pad = v1::Sequence::NONE) {
  RandomModel random_model = AttentionModel(options);
  random_model.manifest.mutable_sequences(0)->set_pad(pad);
  for (v1::Feature& feature : *random_model.manifest.mutable_features()) feature.mutable_id()->set_pad_row(1);
  v1::Pooling& pooling = *random_model.manifest.mutable_layers(1)->mutable_pooling();
  pooling.set_method(v1::Pooling::LAST);
  pooling.set_empty(v1::ZEROS);
  for (const bool fused : {true, false}) {
    const std::unique_ptr<Model> model = CreateModel(random_model, {.fused_kernels = fused});
    ASSERT_NE(model, nullptr);
    for (const int length : {0, 1, 2, 15, 16, 17, 33, 64, kMaxLength - 1, kMaxLength}) {
      SCOPED_TRACE(length);
      const FeatureBatch batch = RandomBatch(random_model, {.candidates = 2, .lengths = {length}}, 11);
      CompareWithReference(random_model, *model, batch);
      ops::Scratch scratch;
      ModelOutputs newest, all;
      model->Score(batch, {}, scratch, newest);
      model->Score(batch, {.debug_names = {"history"}}, scratch, all);
      EXPECT_EQ(newest.scores, all.scores);
      EXPECT_EQ(all.debug.at(0).values.size(), length * options.width);
    }
  }
}

TEST(NewestAloneTest, SameBitsInEveryWiring) {
  for (const auto wiring : {v1::SelfAttention::PRE_NORM, v1::SelfAttention::POST_NORM,
                            v1::SelfAttention::SASREC_ORIGINAL, v1::SelfAttention::BARE}) {
    for (const bool causal : {true, false}) {
      SCOPED_TRACE(::testing::Message() << "wiring " << wiring << ", causal " << causal);
      CompareNewestAlone(
          {.width = 10, .heads = 2, .blocks = 2, .wiring = wiring, .causal = causal, .final_norm = true});
    }
  }
}

TEST(NewestAloneTest, OneBlockWindowsLatentAndSharedHeads) {
  CompareNewestAlone({.width = 10});
  CompareNewestAlone({.width = 12, .heads = 4, .blocks = 2, .window = 5, .key_value_heads = 2, .latent = 6});
  CompareNewestAlone({.width = 10, .heads = 2, .blocks = 2, .causal = false, .window = 20});
  CompareNewestAlone({.width = 10, .heads = 2, .blocks = 2, .linear = true});
}

TEST(NewestAloneTest, PadsThatAreAttended) {
  for (const auto pads :
       {v1::SelfAttention::MASKED, v1::SelfAttention::ATTENDED, v1::SelfAttention::ZEROED}) {
    CompareNewestAlone({.width = 10, .heads = 2, .blocks = 2, .final_norm = true, .pads = pads},
                       v1::Sequence::LEFT);
  }
}

// Any other reader gets all rows.
TEST(NewestAloneTest, OtherReaders) {
  RandomModel random_model = AttentionModel({.width = kWidth, .heads = 2});
  v1::BundleManifest& manifest = random_model.manifest;
  manifest.mutable_layers(1)->mutable_pooling()->set_method(v1::Pooling::LAST);
  EXPECT_TRUE(NewestAloneIsRead(manifest, "history"));
  EXPECT_FALSE(NewestAloneIsRead(manifest, "nobody's"));
  for (const auto method : {v1::Pooling::MEAN, v1::Pooling::SUM}) {
    manifest.mutable_layers(1)->mutable_pooling()->set_method(method);
    EXPECT_FALSE(NewestAloneIsRead(manifest, "history"));
  }
  manifest.mutable_layers(1)->mutable_pooling()->set_method(v1::Pooling::LAST);
  const v1::BundleManifest alone = manifest;
  v1::Layer& layer = *manifest.add_layers();
  layer.set_name("other");
  layer.mutable_pooling()->set_method(v1::Pooling::LAST);
  layer.add_inputs("clicks.item");
  layer.add_inputs("history");
  EXPECT_TRUE(NewestAloneIsRead(manifest, "history"));
  layer.mutable_layer_norm();
  EXPECT_FALSE(NewestAloneIsRead(manifest, "history"));
  manifest = alone;
  manifest.add_layers()->mutable_target_attention()->add_values("history");
  EXPECT_FALSE(NewestAloneIsRead(manifest, "history"));
  manifest = alone;
  manifest.add_layers()->mutable_add()->add_terms()->add_inputs("history");
  EXPECT_FALSE(NewestAloneIsRead(manifest, "history"));
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
