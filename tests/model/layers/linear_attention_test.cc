#include "model/layers/linear_attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/testing/reference/compare.h"

namespace dinghy::reference {
namespace {

// f(q) f(k) is 201 e^-200 and 201 e^-201, both 0 in float: their ratio is e all the same.
TEST(LinearAttentionTest, WeighsWhatFloatCannotHold) {
  const std::vector<float> query = {200, -300};
  const std::vector<float> keys = {-200, 100, -201, 100};
  const std::vector<float> values = {1, 10, 2, 20};
  std::vector<float> pooled(2), weights(2);
  PoolLinearByLogarithms(query.data(), 2, {keys.data(), 2, 2}, {values.data(), 2, 2}, 2, pooled.data(),
                         weights.data());
  const double first = 1 / (1 + std::exp(-1.0));
  EXPECT_NEAR(weights[0], first, 1e-7);
  EXPECT_NEAR(weights[1], 1 - first, 1e-7);
  EXPECT_NEAR(pooled[0], first + 2 * (1 - first), 1e-6);
  EXPECT_NEAR(pooled[1], 10 * pooled[0], 1e-5);
}

// Vectors of mixed signs in the hundreds, target attention and self-attention: against the reference in
// double, which holds the products.
TEST(LinearAttentionTest, LayersAreRightWhereSumsUnderflow) {
  RandomModel model(3);
  model.AddSequence("clicks", 40);
  model.AddVector("query", v1::CANDIDATE, 4);
  model.AddVector("clicks.key", v1::SEQUENCE, 4);
  model.AddVector("clicks.value", v1::SEQUENCE, 6);
  v1::TargetAttention& attention = *model.AddLayer("pooled", {})->mutable_target_attention();
  attention.add_query("query");
  attention.add_keys("clicks.key");
  attention.add_values("clicks.value");
  attention.mutable_linear();
  attention.set_heads(2);
  attention.set_normalization(v1::TargetAttention::NONE);
  attention.set_scale(1);
  attention.set_empty(v1::ZEROS);
  for (const bool causal : {false, true}) {
    const std::string name = causal ? "causal" : "all";
    *model.AddLayer(name, {"clicks.key"})->mutable_self_attention() = model.MakeSelfAttention(
        name, {.width = 4, .heads = 2, .wiring = v1::SelfAttention::BARE, .causal = causal, .linear = true});
  }
  *model.AddLayer("out", {"pooled"})->mutable_dense() = model.MakeDense("out", 6, 1, v1::LINEAR);
  model.AddOutput("out", "out", v1::Output::RAW);
  const std::unique_ptr<Model> created = CreateModel(model);
  ASSERT_NE(created, nullptr);
  for (const int length : {0, 1, 2, 17, 40}) {
    FeatureBatch batch = RandomBatch(model, {.candidates = 9, .lengths = {length}}, 5);
    // Queries large in the even columns, keys in the odd ones, the other columns far below zero.
    for (size_t i = 0; i < batch.columns[0].values.size(); ++i) {
      float& value = batch.columns[0].values[i];
      value = i % 2 == 0 ? 150 + 10 * value : -200 + 10 * value;
    }
    for (size_t i = 0; i < batch.columns[1].values.size(); ++i) {
      float& value = batch.columns[1].values[i];
      value = i % 2 == 1 ? 150 + 10 * value : -200 + 3 * value;
    }
    CompareWithReference(model, *created, batch);
  }
}

}  // namespace
}  // namespace dinghy::reference
