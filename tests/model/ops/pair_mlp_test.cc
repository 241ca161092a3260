#include "model/ops/pair_mlp.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "model/ops/vector_math.h"
#include "tests/model/ops/pair_layer.h"
#include "tests/model/ops/random_floats.h"

namespace dinghy::ops {
namespace {

std::vector<double> RunLayer(const PairLayer& layer, const std::vector<double>& x) {
  std::vector<double> out;
  for (int64_t j = 0; j < layer.out; ++j) {
    double sum = layer.bias[j];
    for (int64_t k = 0; k < layer.in; ++k) sum += layer.weight[j * layer.in + k] * x[k];
    out.push_back(Apply(layer, j, sum));
  }
  return out;
}

// Create gives none on the baseline, where callers have oneDNN's products instead, and one everywhere else.
bool HasKernel() { return VectorTarget() == "AVX3" || VectorTarget() == "AVX2"; }

class PairMlpTest : public ::testing::TestWithParam<PairActivation> {
 protected:
  // Layers of these widths, the input's first, with the last one linear.
  void MakeLayers(const std::vector<int64_t>& widths, uint32_t seed) {
    RandomFloats random(seed);
    layers_.clear();
    for (size_t i = 0; i + 1 < widths.size(); ++i) {
      const int64_t in = widths[i], out = widths[i + 1];
      const float size = 2 / std::sqrt(static_cast<float>(in));
      layers_.push_back({.in = in,
                         .out = out,
                         .activation = i + 2 == widths.size() ? PairActivation::kLinear : GetParam(),
                         .weight = random(in * out, -size, size),
                         .bias = random(out, -1, 1),
                         .alpha = random(out, -1, 1),
                         .scale = random(out, -2, 2),
                         .shift = random(out, -1, 1)});
    }
    std::vector<PairMlp::Layer> layers;
    for (const PairLayer& layer : layers_) {
      layers.push_back({.in = layer.in,
                        .out = layer.out,
                        .weight = layer.weight.data(),
                        .bias = layer.bias.data(),
                        .activation = layer.activation,
                        .alpha = layer.alpha.data(),
                        .norm_scale = layer.scale.data(),
                        .norm_shift = layer.shift.data()});
    }
    mlp_ = PairMlp::Create(layers);
    ASSERT_EQ(mlp_ != nullptr, HasKernel());
    if (mlp_ == nullptr) return;
    // The first layer's weight as diag(query) product + key.
    const PairLayer& first = layers_[0];
    const int64_t stride = mlp_->first_stride();
    query_ = random(first.in, -2, 2);
    key_.assign(first.in * stride, 0.0f);
    product_.assign(first.in * stride, 0.0f);
    base_.assign(first.out, 0.0f);
    const std::vector<float> product = random(first.in * first.out, -0.1f, 0.1f);
    for (int64_t n = 0; n < first.out; ++n) {
      base_[n] = first.bias[n] * mlp_->first_scale();
      for (int64_t k = 0; k < first.in; ++k) {
        const double p = product[n * first.in + k];
        product_[k * stride + n] = static_cast<float>(p * mlp_->first_scale());
        key_[k * stride + n] =
            static_cast<float>((first.weight[n * first.in + k] - p * query_[k]) * mlp_->first_scale());
      }
    }
  }

  std::vector<float> Scores(const float* keys, int64_t rows) {
    std::vector<float> scores(rows + 1, 12345.0f);
    mlp_->Run({.key_weight = key_.data(),
               .product_weight = product_.data(),
               .query = query_.data(),
               .base = base_.data()},
              keys, layers_[0].in, rows, scores.data(), scratch_);
    EXPECT_EQ(scores.back(), 12345.0f);
    scores.pop_back();
    return scores;
  }

  std::vector<PairLayer> layers_;
  std::unique_ptr<PairMlp> mlp_;
  std::vector<float> key_, product_, query_, base_;
  Scratch scratch_;
};

TEST_P(PairMlpTest, MatchesTheDefinition) {
  for (const std::vector<int64_t>& widths : std::vector<std::vector<int64_t>>{{1, 1, 1},
                                                                              {7, 9, 1},
                                                                              {16, 8, 1},
                                                                              {64, 80, 40, 1},
                                                                              {63, 65, 17, 1},
                                                                              {12, 112, 33, 1},
                                                                              {10, 24, 56, 72, 1},
                                                                              {5, 130, 3, 1}}) {
    MakeLayers(widths, static_cast<uint32_t>(widths[1]));
    if (mlp_ == nullptr) return;
    for (const int64_t rows : {0, 1, 2, 3, 5, 7, 16, 17, 39, 40, 41, 63, 64, 65, 200}) {
      const std::vector<float> keys = RandomFloats(static_cast<uint32_t>(rows))(rows * widths[0], -2, 2);
      const std::vector<float> scores = Scores(keys.data(), rows);
      for (int64_t r = 0; r < rows; ++r) {
        std::vector<double> x(keys.begin() + r * widths[0], keys.begin() + (r + 1) * widths[0]);
        for (const PairLayer& layer : layers_) x = RunLayer(layer, x);
        ASSERT_NEAR(scores[r], x[0], 1e-5) << "row " << r << " of " << rows << ", first width " << widths[1];
      }
    }
  }
}

// Which tile and block a row falls into does not show.
TEST_P(PairMlpTest, BitsDoNotDependOnThePosition) {
  MakeLayers({33, 80, 40, 1}, 3);
  if (mlp_ == nullptr) return;
  const std::vector<float> keys = RandomFloats(5)(101 * 33, -2, 2);
  const std::vector<float> all = Scores(keys.data(), 101);
  for (int64_t begin = 0; begin < 101; begin += 7) {
    for (const int64_t rows : {1, 2, 6, 11, 44}) {
      if (begin + rows > 101) continue;
      const std::vector<float> some = Scores(keys.data() + begin * 33, rows);
      for (int64_t r = 0; r < rows; ++r)
        ASSERT_EQ(Bits(some[r]), Bits(all[begin + r])) << begin << " " << rows;
    }
  }
}

TEST_P(PairMlpTest, StaysFiniteFarOut) {
  MakeLayers({4, 20, 3, 1}, 4);
  if (mlp_ == nullptr) return;
  for (const float size : {1e3f, 1e6f, 1e12f}) {
    const std::vector<float> keys = {size, -size, size, size, -size, size, -size, -size};
    for (const float score : Scores(keys.data(), 2)) EXPECT_TRUE(std::isfinite(score)) << size;
  }
}

INSTANTIATE_TEST_SUITE_P(Activations, PairMlpTest,
                         ::testing::Values(PairActivation::kLinear, PairActivation::kRelu,
                                           PairActivation::kSigmoid, PairActivation::kTanh,
                                           PairActivation::kSilu, PairActivation::kPrelu,
                                           PairActivation::kDice));

// The kernel's sigmoid within the bound that it states: one layer that passes x through, then a weight of
// one.
TEST(PairMlpSigmoidTest, IsWithinItsBound) {
  const float one = 1, zero = 0;
  const auto mlp = PairMlp::Create({{.in = 1, .out = 1, .activation = PairActivation::kSigmoid},
                                    {.in = 1, .out = 1, .weight = &one, .bias = &zero}});
  ASSERT_EQ(mlp != nullptr, HasKernel());
  if (mlp == nullptr) return;
  std::vector<float> x = {0, -0.0f, 1e4f, -1e4f, 87, -87, 88, -88, 1e30f, -1e30f};
  for (int i = -200'000; i <= 200'000; ++i) x.push_back(static_cast<float>(i) * 5e-4f);
  std::vector<float> weight(mlp->first_stride(), 0.0f), y(x.size());
  weight[0] = mlp->first_scale();
  Scratch scratch;
  mlp->Run({.key_weight = weight.data(), .base = &zero}, x.data(), 1, static_cast<int64_t>(x.size()),
           y.data(), scratch);
  for (size_t i = 0; i < x.size(); ++i)
    ASSERT_NEAR(y[i], 1 / (1 + std::exp(-static_cast<double>(x[i]))), 3e-7) << x[i];
}

}  // namespace
}  // namespace dinghy::ops
