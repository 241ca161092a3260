// Features and the layers that work row by row: dense, mlp, add, multiply, layer norm, activation, pooling.
#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/testing/reference/compare.h"

namespace dinghy::reference {
namespace {

v1::InputList List(const std::vector<std::string>& names) {
  v1::InputList out;
  for (const std::string& name : names) out.add_inputs(name);
  return out;
}

// Features of all levels and kinds; `item` is shared by three of them.
RandomModel FeatureModel(uint32_t seed, int max_length) {
  RandomModel model(seed);
  model.AddSequence("clicks", max_length);
  model.AddSequence("purchases", max_length);
  model.AddTable("item", 23, 7);
  model.AddTable("tag", 11, 3);
  model.AddTable("time", 5, 7);
  model.AddNumeric("age", v1::USER);
  model.AddId("item", v1::CANDIDATE, "item");
  model.AddId("clicks.item", v1::SEQUENCE, "item");
  model.AddId("interests", v1::USER, "tag", v1::IdFeature::BAG_MEAN);
  model.AddId("tags", v1::CANDIDATE, "tag", v1::IdFeature::BAG_SUM);
  model.AddVector("picture", v1::CANDIDATE, 5);
  model.AddTimeSince("clicks.time", "time");
  model.AddNumeric("price", v1::CANDIDATE);
  model.AddId("clicks.tags", v1::SEQUENCE, "tag", v1::IdFeature::BAG_MEAN);
  model.AddId("purchases.item", v1::SEQUENCE, "item");
  model.AddVector("profile", v1::USER, 4);
  return model;
}

void AddRowwiseLayers(RandomModel& model) {
  // User only; candidates only, side by side and apart; mixed, with the user's columns between.
  *model.AddLayer("user_dense", {"interests", "age"})->mutable_dense() =
      model.MakeDense("user_dense", 4, 9, v1::TANH);
  *model.AddLayer("candidate_dense", {"tags", "picture"})->mutable_dense() =
      model.MakeDense("candidate_dense", 8, 17, v1::SILU, /*bias=*/false);
  *model.AddLayer("mixed", {"item", "user_dense", "price", "profile", "candidate_dense"})
       ->mutable_mlp()
       ->add_layers() = model.MakeDense("mixed.0", 7 + 9 + 1 + 4 + 17, 33, v1::RELU);
  v1::Mlp& mlp = *model.manifest.mutable_layers(2)->mutable_mlp();
  *mlp.add_layers() = model.MakeDense("mixed.1", 33, 16, v1::SIGMOID);
  *mlp.add_layers() = model.MakeDense("mixed.2", 16, 1, v1::LINEAR);
  *model.AddLayer("behavior", {"profile", "clicks.item", "clicks.tags"})->mutable_dense() =
      model.MakeDense("behavior", 14, 7, v1::LINEAR);
  *model.AddLayer("user_mlp", {"user_dense"})->mutable_mlp()->add_layers() =
      model.MakeDense("user_mlp", 9, 7, v1::RELU);

  // Terms of one level, of mixed levels, and lists with a user's piece inside.
  v1::Add& add = *model.AddLayer("add", {})->mutable_add();
  for (const char* name : {"clicks.item", "clicks.time", "behavior"}) *add.add_terms() = List({name});
  v1::Add& add_user = *model.AddLayer("add_user", {})->mutable_add();
  *add_user.add_terms() = List({"user_mlp"});
  *add_user.add_terms() = List({"tags", "profile"});
  *add_user.add_terms() = List({"item"});
  v1::Multiply& multiply = *model.AddLayer("multiply", {})->mutable_multiply();
  *multiply.add_terms() = List({"item"});
  *multiply.add_terms() = List({"interests", "profile"});
  v1::Multiply& multiply_user = *model.AddLayer("multiply_user", {})->mutable_multiply();
  *multiply_user.add_terms() = List({"user_mlp"});
  *multiply_user.add_terms() = List({"interests", "profile"});

  *model.AddLayer("norm", {"item", "profile", "tags"})->mutable_layer_norm() = model.MakeNorm("norm", 14);
  *model.AddLayer("behavior_norm", {"add"})->mutable_layer_norm() = model.MakeNorm("behavior_norm", 7);
  for (const v1::Activation activation : {v1::LINEAR, v1::RELU, v1::SIGMOID, v1::TANH, v1::SILU,
                                          v1::LEAKY_RELU, v1::PRELU, v1::DICE, v1::GELU_ERF, v1::GELU_TANH}) {
    const std::string name = absl::StrCat("activation_", v1::Activation_Name(activation));
    v1::ActivationLayer& layer = *model.AddLayer(name, {"norm", "price"})->mutable_activation();
    layer.set_function(activation);
    *layer.mutable_parameters() = model.MakeParameters(name, activation, 15);
    // In dense layers, with a batch norm before; of one column, of whole vectors, and with one alpha for all.
    for (const int width : {1, 7, 16, 37}) {
      const std::string dense_name = absl::StrCat(name, "_", width);
      v1::Dense& dense = *model.AddLayer(dense_name, {"norm", "age"})->mutable_dense();
      dense = model.MakeDense(dense_name, 15, width, activation, /*bias=*/width != 7);
      *dense.mutable_norm() = model.MakeBatchNorm(dense_name + ".bn", width, /*affine=*/width != 16);
      *dense.mutable_parameters() = model.MakeParameters(dense_name, activation, width,
                                                         /*shared_alpha=*/width == 37, /*norm=*/width != 1);
    }
  }
  *model.AddLayer("batch_norm", {"item", "profile", "tags"})->mutable_batch_norm() =
      model.MakeBatchNorm("batch_norm", 14);
  *model.AddLayer("behavior_batch_norm", {"add"})->mutable_batch_norm() =
      model.MakeBatchNorm("behavior_batch_norm", 7, /*affine=*/false);

  // Inner products within and between levels.
  const auto add_dot = [&model](const std::string& name, const std::vector<std::string>& left,
                                const std::vector<std::string>& right) {
    v1::Dot& dot = *model.AddLayer(name, {})->mutable_dot();
    for (const std::string& input : left) dot.add_left(input);
    for (const std::string& input : right) dot.add_right(input);
  };
  add_dot("dot_candidates", {"item", "tags", "profile"}, {"norm"});
  add_dot("dot_user_candidate", {"user_mlp"}, {"item"});
  add_dot("dot_mixed", {"item"}, {"tags", "profile"});
  add_dot("dot_user", {"profile", "interests"}, {"user_mlp"});
  add_dot("dot_behaviors", {"clicks.item"}, {"user_mlp"});
  for (const auto method : {v1::Pooling::SUM, v1::Pooling::MEAN, v1::Pooling::LAST}) {
    model.AddLayer(absl::StrCat("pooling_", static_cast<int>(method)), {"clicks.tags", "add"})
        ->mutable_pooling()
        ->set_method(method);
  }
  model.AddLayer("purchases", {"purchases.item"})->mutable_pooling()->set_method(v1::Pooling::MEAN);
  model.AddOutput("click", "mixed", v1::Output::SIGMOID);
  model.AddOutput("raw", "mixed", v1::Output::RAW);
}

class RowwiseTest : public ::testing::TestWithParam<std::tuple<int, int>> {};

TEST_P(RowwiseTest, MatchesReference) {
  const auto [candidates, length] = GetParam();
  RandomModel random_model = FeatureModel(/*seed=*/1, /*max_length=*/130);
  AddRowwiseLayers(random_model);
  const std::unique_ptr<Model> model = CreateModel(random_model);
  ASSERT_NE(model, nullptr);
  const FeatureBatch batch =
      RandomBatch(random_model, {.candidates = candidates, .lengths = {length, (length * 3 + 1) % 131}}, 5);
  CompareWithReference(random_model, *model, batch);
}

INSTANTIATE_TEST_SUITE_P(Candidates, RowwiseTest,
                         ::testing::Combine(::testing::Values(0, 1, 2, 7, 17, 63, 64, 65, 130),
                                            ::testing::Values(7)));
INSTANTIATE_TEST_SUITE_P(Lengths, RowwiseTest,
                         ::testing::Combine(::testing::Values(3),
                                            ::testing::Values(0, 1, 2, 15, 16, 17, 50, 63, 64, 65, 130)));

TEST(FeatureLookupTest, EmptyBagsAreZero) {
  RandomModel random_model(3);
  random_model.AddTable("tag", 4, 5);
  random_model.AddId("sum", v1::CANDIDATE, "tag", v1::IdFeature::BAG_SUM);
  random_model.AddId("mean", v1::USER, "tag", v1::IdFeature::BAG_MEAN);
  *random_model.AddLayer("out", {"sum", "mean"})->mutable_dense() =
      random_model.MakeDense("out", 10, 1, v1::LINEAR);
  random_model.AddOutput("out", "out", v1::Output::RAW);
  const std::unique_ptr<Model> model = CreateModel(random_model);
  ASSERT_NE(model, nullptr);
  FeatureBatch batch;
  batch.candidates = 3;
  batch.columns = {{.rows = {1, 3}, .offsets = {0, 0, 2, 2}, .values = {}},
                   {.rows = {}, .offsets = {0, 0}, .values = {}}};
  CompareWithReference(random_model, *model, batch);

  ops::Scratch scratch;
  ModelOutputs outputs;
  model->Score(batch, {.attention = false, .debug_names = {"sum", "mean"}}, scratch, outputs);
  EXPECT_EQ(std::vector<float>(outputs.debug[0].values.begin(), outputs.debug[0].values.begin() + 5),
            std::vector<float>(5, 0.0f));
  EXPECT_EQ(outputs.debug[1].values, std::vector<float>(5, 0.0f));
  EXPECT_EQ(outputs.scores[0][0], outputs.scores[0][2]);
  EXPECT_NE(outputs.scores[0][0], outputs.scores[0][1]);
}

}  // namespace
}  // namespace dinghy::reference
