// Whole models against the reference, and what Model returns beside scores.
#include "model/model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "tests/testing/reference/compare.h"
#include "tests/testing/reference/model_variants.h"

namespace dinghy::reference {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

class VariantTest : public ::testing::TestWithParam<Variant> {};

TEST_P(VariantTest, MatchesReference) {
  const RandomModel random_model = MakeVariant(GetParam(), {}, 1);
  const std::unique_ptr<Model> model = CreateModel(random_model);
  ASSERT_NE(model, nullptr);
  for (const int candidates : {0, 1, 2, 7, 17, 63, 64, 65}) {
    SCOPED_TRACE(::testing::Message() << candidates << " candidates");
    CompareWithReference(random_model, *model,
                         RandomBatch(random_model, {.candidates = candidates, .lengths = {17, 3}}, 3));
  }
  for (const int length : {0, 1, 2, 7, 15, 16, 17, 50, 63, 64, 65, kVariantMaxLength}) {
    SCOPED_TRACE(::testing::Message() << "length " << length);
    CompareWithReference(
        random_model, *model,
        RandomBatch(random_model, {.candidates = 3, .lengths = {length, kVariantMaxLength - length}}, 3));
  }
}

TEST_P(VariantTest, OtherWidthsAndSoftmax) {
  const RandomModel random_model =
      MakeVariant(GetParam(), {.width = 34, .attention = {40, 20, 7}, .tower = {16}, .softmax = true}, 2);
  const std::unique_ptr<Model> model = CreateModel(random_model);
  ASSERT_NE(model, nullptr);
  CompareWithReference(random_model, *model,
                       RandomBatch(random_model, {.candidates = 9, .lengths = {33, 48}}, 3));
}

INSTANTIATE_TEST_SUITE_P(All, VariantTest, ::testing::ValuesIn(AllVariants()),
                         [](const auto& info) { return VariantName(info.param); });

TEST(ModelTest, ReusesScratchAndOutputs) {
  const RandomModel random_model = MakeVariant(Variant::kDinSasrec, {}, 1);
  const std::unique_ptr<Model> model = CreateModel(random_model);
  ASSERT_NE(model, nullptr);
  ops::Scratch scratch;
  ModelOutputs reused;
  ModelScoreOptions options;
  options.attention = true;
  options.debug_names = {"tower"};
  // From large to small and back: nothing of an earlier request may stay behind.
  for (const BatchShape& shape :
       {BatchShape{70, {66, 66}}, BatchShape{2, {1, 0}}, BatchShape{0, {5, 5}}, BatchShape{33, {0, 40}}}) {
    const FeatureBatch batch = RandomBatch(random_model, shape, 9);
    model->Score(batch, options, scratch, reused);
    ops::Scratch fresh_scratch;
    ModelOutputs fresh;
    model->Score(batch, options, fresh_scratch, fresh);
    EXPECT_EQ(reused.scores, fresh.scores);
    ASSERT_THAT(reused.attention, SizeIs(2));
    for (int i = 0; i < 2; ++i) {
      EXPECT_THAT(reused.attention[i].weights, SizeIs(shape.candidates * shape.lengths[i]));
      EXPECT_EQ(reused.attention[i].weights, fresh.attention[i].weights);
      EXPECT_EQ(reused.attention[i].sequence, i);
    }
    EXPECT_EQ(reused.debug[0].values, fresh.debug[0].values);
    EXPECT_EQ(reused.debug[0].rows, shape.candidates);
  }
}

TEST(ModelTest, AttentionAndDebugOnlyOnRequest) {
  const RandomModel random_model = MakeVariant(Variant::kDin, {.softmax = true}, 1);
  const std::unique_ptr<Model> model = CreateModel(random_model);
  ASSERT_NE(model, nullptr);
  const FeatureBatch batch = RandomBatch(random_model, {.candidates = 4, .lengths = {20, 3}}, 9);
  ops::Scratch scratch;
  ModelOutputs with, without;
  ModelScoreOptions options;
  options.attention = true;
  options.debug_names = {"age", "clicks.item", "tower"};
  model->Score(batch, options, scratch, with);
  model->Score(batch, {}, scratch, without);
  EXPECT_EQ(with.scores, without.scores);
  EXPECT_THAT(without.attention, SizeIs(0));
  EXPECT_THAT(without.debug, SizeIs(0));
  ASSERT_THAT(with.attention, SizeIs(2));
  for (int c = 0; c < 4; ++c) {
    float sum = 0;
    for (int i = 0; i < 20; ++i) sum += with.attention[0].weights[c * 20 + i];
    EXPECT_NEAR(sum, 1.0f, 1e-5f);
  }
  ASSERT_THAT(with.debug, SizeIs(3));
  EXPECT_EQ(with.debug[0].rows, 1);
  EXPECT_EQ(with.debug[0].values, batch.columns[0].values);
  EXPECT_EQ(with.debug[1].rows, 20);
  EXPECT_EQ(with.debug[1].width, 8);
  EXPECT_EQ(with.debug[2].rows, 4);
}

TEST(ModelTest, KnowsItsNames) {
  const RandomModel random_model = MakeVariant(Variant::kNoHistory, {}, 1);
  const std::unique_ptr<Model> model = CreateModel(random_model);
  ASSERT_NE(model, nullptr);
  EXPECT_TRUE(model->HasName("age"));
  EXPECT_TRUE(model->HasName("tower"));
  EXPECT_FALSE(model->HasName("towe"));
  EXPECT_FALSE(model->HasName(""));
}

TEST(ModelTest, DescribesItsLayers) {
  const RandomModel random_model = MakeVariant(Variant::kDinSasrec, {}, 1);
  const std::unique_ptr<Model> model = CreateModel(random_model);
  ASSERT_NE(model, nullptr);
  const std::vector<LayerInfo> layers = model->Layers();
  ASSERT_THAT(layers, SizeIs(random_model.manifest.layers_size()));
  const auto find = [&](const std::string& name) {
    return *std::find_if(layers.begin(), layers.end(), [&](const LayerInfo& l) { return l.name == name; });
  };
  const LayerInfo history = find("clicks.history");
  EXPECT_EQ(history.kind, "self_attention");
  EXPECT_EQ(history.level, v1::SEQUENCE);
  EXPECT_EQ(history.sequence, "clicks");
  EXPECT_EQ(history.width, 12);
  EXPECT_EQ(history.flops_behavior, 2 * (4 * 2 * 12 * 12 + 2 * 2 * 12 * 15));
  EXPECT_EQ(history.flops_behavior_pair, 2 * 4 * 12);

  const LayerInfo interest = find("purchases.interest");
  EXPECT_EQ(interest.kind, "target_attention");
  EXPECT_EQ(interest.level, v1::CANDIDATE);
  EXPECT_EQ(interest.parameters, 48 * 16 + 16 + 16 * 9 + 9 + 9 + 1);
  // The decomposed form: keys' part per pair, the query's once per candidate, and pooling.
  EXPECT_EQ(interest.flops_pair, 2 * (12 * 16 + 16 * 9 + 9 + 12));
  EXPECT_EQ(interest.flops_candidate, 2 * (12 * 16) + 2 * (12 * 16));

  const LayerInfo tower = find("tower");
  EXPECT_EQ(tower.kind, "mlp");
  EXPECT_EQ(tower.flops_user, 2 * 6 * 33);
  EXPECT_EQ(tower.flops_candidate, 2 * ((12 + 4 + 48) * 33 + 33 * 10));

  // Every dense and norm weight belongs to one layer; tables to none.
  int64_t parameters = 0, expected = 0;
  for (const LayerInfo& layer : layers) parameters += layer.parameters;
  for (const auto& [name, tensor] : random_model.tensors) {
    if (name.find(".table") == std::string::npos) expected += tensor.size;
  }
  EXPECT_EQ(parameters, expected);
}

TEST(ModelTest, NumericsIdIsStableAndSeesTheProbes) {
  const RandomModel random_model = MakeVariant(Variant::kDin, {}, 1);
  const std::unique_ptr<Model> one = CreateModel(random_model);
  const std::unique_ptr<Model> two = CreateModel(random_model);
  const RandomModel other_random_model = MakeVariant(Variant::kNoHistory, {}, 1);
  const std::unique_ptr<Model> other = CreateModel(other_random_model);
  ASSERT_TRUE(one && two && other);
  EXPECT_EQ(one->numerics_id(), two->numerics_id());
  EXPECT_NE(one->numerics_id(), other->numerics_id());
  EXPECT_THAT(one->numerics_id(), SizeIs(64));
}

TEST(ModelTest, UserLevelOutputIsTheSameForAllCandidates) {
  RandomModel random_model(1);
  random_model.AddNumeric("age", v1::USER);
  random_model.AddNumeric("price", v1::CANDIDATE);
  *random_model.AddLayer("out", {"age"})->mutable_dense() = random_model.MakeDense("out", 1, 1, v1::LINEAR);
  random_model.AddOutput("out", "out", v1::Output::SIGMOID);
  const std::unique_ptr<Model> model = CreateModel(random_model);
  ASSERT_NE(model, nullptr);
  const FeatureBatch batch = RandomBatch(random_model, {.candidates = 20}, 1);
  CompareWithReference(random_model, *model, batch);
  ops::Scratch scratch;
  ModelOutputs outputs;
  model->Score(batch, {}, scratch, outputs);
  EXPECT_EQ(std::set<float>(outputs.scores[0].begin(), outputs.scores[0].end()).size(), 1u);
}

}  // namespace
}  // namespace dinghy::reference
