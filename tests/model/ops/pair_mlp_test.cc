#include "model/ops/pair_mlp.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <tuple>
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

// The activation, and whether the first layer goes by sums of pairs where the machine can.
class PairMlpTest : public ::testing::TestWithParam<std::tuple<PairActivation, bool>> {
 protected:
  static PairActivation Activation() { return std::get<0>(GetParam()); }
  static bool PairSums() { return std::get<1>(GetParam()); }

  // Layers of these widths, the input's first, with the last one linear.
  void MakeLayers(const std::vector<int64_t>& widths, uint32_t seed) {
    RandomFloats random(seed);
    layers_.clear();
    for (size_t i = 0; i + 1 < widths.size(); ++i) {
      const int64_t in = widths[i], out = widths[i + 1];
      const float size = 2 / std::sqrt(static_cast<float>(in));
      layers_.push_back({.in = in,
                         .out = out,
                         .activation = i + 2 == widths.size() ? PairActivation::kLinear : Activation(),
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
    // The first layer's weight as diag(query) product + key.
    const PairLayer& first = layers_[0];
    query_ = random(first.in, -2, 2);
    std::vector<float> key(first.in * first.out), product(first.in * first.out);
    for (int64_t k = 0; k < first.in; ++k) {
      for (int64_t n = 0; n < first.out; ++n) {
        const float p = random(1, -0.1f, 0.1f)[0];
        product[k * first.out + n] = p;
        key[k * first.out + n] =
            static_cast<float>(first.weight[n * first.in + k] - static_cast<double>(p) * query_[k]);
      }
    }
    mlp_ = PairMlp::Create({.layers = layers,
                            .key_weight = key.data(),
                            .product_weight = product.data(),
                            .weight_stride = first.out,
                            .pair_sums = PairSums()});
    ASSERT_EQ(mlp_ != nullptr, HasKernel());
  }

  std::vector<float> Scores(const float* keys, int64_t rows) {
    std::vector<float> scores(rows + 1, 12345.0f);
    std::vector<float> packed(rows * mlp_->key_floats());
    mlp_->PackKeys(keys, rows, packed.data());
    mlp_->Run(packed.data(), rows, query_.data(), layers_[0].bias.data(), scores.data(), scratch_);
    EXPECT_EQ(scores.back(), 12345.0f);
    scores.pop_back();
    return scores;
  }

  std::vector<PairLayer> layers_;
  std::unique_ptr<PairMlp> mlp_;
  std::vector<float> query_;
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

// Inputs of unlike sizes, whose weights are the smaller the larger they are: each counts as much as another.
TEST_P(PairMlpTest, LargeInputsDoNotDrownSmallOnes) {
  const int64_t in = 24, out = 20, rows = 9;
  RandomFloats random(6);
  std::vector<float> size;
  for (int64_t k = 0; k < in; ++k) size.push_back(std::ldexp(1.0f, static_cast<int>(k % 7) * 6 - 18));
  std::vector<float> key = random(in * out, -0.2f, 0.2f), product = random(in * out, -0.2f, 0.2f);
  std::vector<float> keys = random(rows * in, -1, 1);
  query_ = random(in, -3, 3);
  for (int64_t k = 0; k < in; ++k) {
    for (int64_t n = 0; n < out; ++n) {
      key[k * out + n] /= size[k];
      product[k * out + n] /= size[k];
    }
    for (int64_t r = 0; r < rows; ++r) keys[r * in + k] *= size[k];
  }
  layers_.clear();
  for (const int64_t width : {out, int64_t{1}}) {
    layers_.push_back({.in = width == 1 ? out : in,
                       .out = width,
                       .activation = width == 1 ? PairActivation::kLinear : Activation(),
                       .weight = random(width == 1 ? out : in * out, -0.2f, 0.2f),
                       .bias = random(width, -1, 1),
                       .alpha = random(width, -1, 1),
                       .scale = random(width, -2, 2),
                       .shift = random(width, -1, 1)});
  }
  for (const bool with_product : {true, false}) {
    for (int64_t k = 0; k < in; ++k) {
      for (int64_t n = 0; n < out; ++n)
        layers_[0].weight[n * in + k] =
            key[k * out + n] + (with_product ? product[k * out + n] * query_[k] : 0);
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
    mlp_ = PairMlp::Create({.layers = layers,
                            .key_weight = key.data(),
                            .product_weight = with_product ? product.data() : nullptr,
                            .weight_stride = out,
                            .pair_sums = PairSums()});
    if (mlp_ == nullptr) return;
    const std::vector<float> scores = Scores(keys.data(), rows);
    for (int64_t r = 0; r < rows; ++r) {
      std::vector<double> x(keys.begin() + r * in, keys.begin() + (r + 1) * in);
      for (const PairLayer& layer : layers_) x = RunLayer(layer, x);
      ASSERT_NEAR(scores[r], x[0], 1e-5) << "row " << r << (with_product ? "" : " without a product");
    }
  }
}

// A row of zeros is what is added to the products, exactly.
TEST_P(PairMlpTest, ZerosAreExact) {
  MakeLayers({16, 40, 1}, 8);
  if (mlp_ == nullptr) return;
  std::vector<float> keys(3 * 16, 0.0f);
  const std::vector<float> scores = Scores(keys.data(), 3);
  std::vector<double> x(16, 0.0);
  for (const PairLayer& layer : layers_) x = RunLayer(layer, x);
  for (const float score : scores) ASSERT_NEAR(score, x[0], 2e-6);
}

INSTANTIATE_TEST_SUITE_P(Activations, PairMlpTest,
                         ::testing::Combine(::testing::Values(PairActivation::kLinear, PairActivation::kRelu,
                                                              PairActivation::kSigmoid, PairActivation::kTanh,
                                                              PairActivation::kSilu, PairActivation::kPrelu,
                                                              PairActivation::kDice),
                                            ::testing::Bool()));

// The kernel's sigmoid within the bound that it states: one layer that passes x through, then a weight of
// one.
TEST(PairMlpSigmoidTest, IsWithinItsBound) {
  const float one = 1, zero = 0;
  const auto mlp = PairMlp::Create({.layers = {{.in = 1, .out = 1, .activation = PairActivation::kSigmoid},
                                               {.in = 1, .out = 1, .weight = &one, .bias = &zero}},
                                    .key_weight = &one,
                                    .weight_stride = 1});
  ASSERT_EQ(mlp != nullptr, HasKernel());
  if (mlp == nullptr) return;
  std::vector<float> x = {0, -0.0f, 1e4f, -1e4f, 87, -87, 88, -88, 1e30f, -1e30f};
  for (int i = -200'000; i <= 200'000; ++i) x.push_back(static_cast<float>(i) * 5e-4f);
  const auto rows = static_cast<int64_t>(x.size());
  std::vector<float> packed(rows * mlp->key_floats()), y(rows);
  mlp->PackKeys(x.data(), rows, packed.data());
  Scratch scratch;
  mlp->Run(packed.data(), rows, nullptr, &zero, y.data(), scratch);
  for (size_t i = 0; i < x.size(); ++i)
    ASSERT_NEAR(y[i], 1 / (1 + std::exp(-static_cast<double>(x[i]))), 3e-7) << x[i];
}

}  // namespace
}  // namespace dinghy::ops
