#include "model/ops/pair_mlp_bf16.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "model/ops/bf16.h"
#include "tests/model/ops/pair_layer.h"
#include "tests/model/ops/random_floats.h"

namespace dinghy::ops {
namespace {

double Rounded(double x) { return RoundToBf16(static_cast<float>(x)); }

class PairMlpBf16Test : public ::testing::TestWithParam<PairActivation> {
 protected:
  // Layers of these widths, the input's first, with the last one linear. False: the machine has no bf16.
  bool MakeLayers(const std::vector<int64_t>& widths, bool product, uint32_t seed) {
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
    PairMlpBf16::Options options;
    for (const PairLayer& layer : layers_) {
      options.layers.push_back({.in = layer.in,
                                .out = layer.out,
                                .weight = layer.weight.data(),
                                .bias = layer.bias.data(),
                                .activation = layer.activation,
                                .alpha = layer.alpha.data(),
                                .norm_scale = layer.scale.data(),
                                .norm_shift = layer.shift.data()});
    }
    // The first layer's two weights come [in, out], of another stride.
    const PairLayer& first = layers_[0];
    const int64_t stride = first.out + 3;
    key_weight_.assign(first.in * stride, NAN);
    product_weight_ = key_weight_;
    const float size = 2 / std::sqrt(static_cast<float>(first.in));
    for (int64_t k = 0; k < first.in; ++k) {
      for (int64_t n = 0; n < first.out; ++n) {
        key_weight_[k * stride + n] = first.weight[n * first.in + k];
        product_weight_[k * stride + n] = random(1, -size, size)[0];
      }
    }
    options.key_weight = key_weight_.data();
    options.product_weight = product ? product_weight_.data() : nullptr;
    options.weight_stride = stride;
    product_ = product;
    stride_ = stride;
    query_ = random(first.in, -1, 1);
    mlp_ = PairMlpBf16::Create(options);
    EXPECT_EQ(mlp_ != nullptr, HasBf16());
    return mlp_ != nullptr;
  }

  std::vector<float> Scores(const float* keys, int64_t rows) {
    std::vector<uint32_t> packed(rows * mlp_->key_words() + 1, 0xABCDu);
    mlp_->PackKeys(keys, rows, packed.data());
    EXPECT_EQ(packed.back(), 0xABCDu);
    std::vector<float> scores(rows + 1, 12345.0f);
    std::vector<float> base = layers_[0].bias;
    base.push_back(NAN);  // what lies behind must not matter
    {
      Scratch::Scope scope(scratch_);
      std::fill_n(scratch_.Floats(1 << 16), 1 << 16, NAN);
    }
    mlp_->Run(packed.data(), rows, query_.data(), base.data(), scores.data(), scratch_);
    EXPECT_EQ(scores.back(), 12345.0f);
    scores.pop_back();
    return scores;
  }

  // What the definition says, in double but for the factors that are rounded.
  double Reference(const float* key) const {
    std::vector<double> x(key, key + layers_[0].in);
    for (size_t l = 0; l < layers_.size(); ++l) {
      const PairLayer& layer = layers_[l];
      const bool last = l + 1 == layers_.size();
      std::vector<double> y;
      for (int64_t j = 0; j < layer.out; ++j) {
        double sum = layer.bias[j];
        for (int64_t k = 0; k < layer.in; ++k) {
          float weight = layer.weight[j * layer.in + k];
          if (l == 0 && product_) weight = std::fma(query_[k], product_weight_[k * stride_ + j], weight);
          sum += last ? weight * x[k] : Rounded(weight) * Rounded(x[k]);
        }
        y.push_back(Apply(layer, j, sum));
      }
      x = y;
    }
    return x[0];
  }

  std::vector<PairLayer> layers_;
  std::vector<float> key_weight_, product_weight_, query_;
  bool product_ = false;
  int64_t stride_ = 0;
  std::unique_ptr<PairMlpBf16> mlp_;
  Scratch scratch_;
};

TEST_P(PairMlpBf16Test, MatchesTheDefinitionWithRoundedFactors) {
  // An activation that is off by 1e-4, or falls on the other side of a tie, changes a factor by 2^-8 of
  // itself.
  const bool inexact = GetParam() != PairActivation::kLinear && GetParam() != PairActivation::kRelu &&
                       GetParam() != PairActivation::kPrelu;
  for (const std::vector<int64_t>& widths : std::vector<std::vector<int64_t>>{{1, 1, 1},
                                                                              {7, 9, 1},
                                                                              {16, 8, 1},
                                                                              {64, 80, 40, 1},
                                                                              {63, 65, 17, 1},
                                                                              {12, 112, 33, 1},
                                                                              {10, 24, 56, 72, 1},
                                                                              {5, 130, 3, 1},
                                                                              {33, 47, 31, 1}}) {
    for (const bool product : {false, true}) {
      if (!MakeLayers(widths, product, static_cast<uint32_t>(widths[1]))) return;
      for (const int64_t rows : {0, 1, 2, 3, 5, 7, 16, 17, 39, 40, 41, 63, 64, 65, 200}) {
        const std::vector<float> keys = RandomFloats(static_cast<uint32_t>(rows))(rows * widths[0], -2, 2);
        const std::vector<float> scores = Scores(keys.data(), rows);
        double sum = 0, most = 0;
        for (int64_t r = 0; r < rows; ++r) {
          const double error = std::abs(scores[r] - Reference(keys.data() + r * widths[0]));
          sum += error;
          most = std::max(most, error);
        }
        // With several layers a sum near a tie of the rounding may go either way.
        const double bound = widths.size() > 3 ? 1.6e-2 : inexact ? 1e-3 : 1e-5;
        ASSERT_LE(most, bound) << rows << " rows, first width " << widths[1];
        ASSERT_LE(sum, bound / 4 * static_cast<double>(rows)) << rows << " rows, first width " << widths[1];
      }
    }
  }
}

// Which tile and block a row falls into does not show.
TEST_P(PairMlpBf16Test, BitsDoNotDependOnThePosition) {
  for (const std::vector<int64_t>& widths : {std::vector<int64_t>{33, 80, 40, 1}, {10, 130, 17, 1}}) {
    if (!MakeLayers(widths, true, 3)) return;
    const int64_t in = widths[0];
    const std::vector<float> keys = RandomFloats(5)(101 * in, -2, 2);
    const std::vector<float> all = Scores(keys.data(), 101);
    for (int64_t begin = 0; begin < 101; begin += 7) {
      for (const int64_t rows : {1, 2, 3, 6, 11, 44}) {
        if (begin + rows > 101) continue;
        const std::vector<float> some = Scores(keys.data() + begin * in, rows);
        for (int64_t r = 0; r < rows; ++r)
          ASSERT_EQ(Bits(some[r]), Bits(all[begin + r])) << begin << " " << rows;
      }
    }
  }
}

TEST_P(PairMlpBf16Test, StaysFiniteFarOut) {
  if (!MakeLayers({4, 20, 3, 1}, true, 4)) return;
  for (const float size : {1e3f, 1e6f, 1e12f}) {
    const std::vector<float> keys = {size, -size, size, size, -size, size, -size, -size};
    for (const float score : Scores(keys.data(), 2)) EXPECT_TRUE(std::isfinite(score)) << size;
  }
}

INSTANTIATE_TEST_SUITE_P(Activations, PairMlpBf16Test,
                         ::testing::Values(PairActivation::kLinear, PairActivation::kRelu,
                                           PairActivation::kSigmoid, PairActivation::kTanh,
                                           PairActivation::kSilu, PairActivation::kPrelu,
                                           PairActivation::kDice));

// The kernel's sigmoid within the bound that it states: a layer that passes x, a bfloat16, through, then a
// weight of one in f32.
TEST(PairMlpBf16SigmoidTest, IsWithinItsBound) {
  const float one = 1, zero = 0;
  const auto mlp =
      PairMlpBf16::Create({.layers = {{.in = 1, .out = 1, .activation = PairActivation::kSigmoid},
                                      {.in = 1, .out = 1, .weight = &one, .bias = &zero}},
                           .key_weight = &one,
                           .product_weight = nullptr,
                           .weight_stride = 1});
  ASSERT_EQ(mlp != nullptr, HasBf16());
  if (mlp == nullptr) return;
  std::vector<float> x = {0, -0.0f, 1e4f, -1e4f, 87, -87, 88, -88, 1e30f, -1e30f};
  for (int i = -200'000; i <= 200'000; ++i) x.push_back(RoundToBf16(static_cast<float>(i) * 5e-4f));
  const float infinity = std::numeric_limits<float>::infinity();
  const auto rows = static_cast<int64_t>(x.size());
  std::vector<uint32_t> packed(x.size());
  std::vector<float> y(x.size());
  mlp->PackKeys(x.data(), rows, packed.data());
  Scratch scratch;
  mlp->Run(packed.data(), rows, nullptr, &zero, y.data(), scratch);
  for (size_t i = 0; i < x.size(); ++i)
    ASSERT_NEAR(y[i], 1 / (1 + std::exp(-static_cast<double>(x[i]))), 1e-4) << x[i];
  for (const float far : {infinity, -infinity}) {
    mlp->Run(packed.data(), 1, nullptr, &far, y.data(), scratch);
    EXPECT_EQ(y[0], far > 0 ? 1 : 0);
  }
  const float nan = std::numeric_limits<float>::quiet_NaN();
  mlp->Run(packed.data(), 1, nullptr, &nan, y.data(), scratch);
  EXPECT_TRUE(std::isnan(y[0]));
}

TEST(Bf16Test, RoundsToTheNearestAndTiesToEven) {
  EXPECT_EQ(RoundToBf16(1.0f), 1.0f);
  EXPECT_EQ(RoundToBf16(1.0f + 0x1p-8f), 1.0f);               // a tie
  EXPECT_EQ(RoundToBf16(1.0f + 0x1.8p-7f), 1.0f + 0x1p-6f);   // a tie
  EXPECT_EQ(RoundToBf16(1.0f + 0x1.02p-8f), 1.0f + 0x1p-7f);  // just above one
  EXPECT_EQ(RoundToBf16(-3.0f), -3.0f);
  EXPECT_EQ(RoundToBf16(std::numeric_limits<float>::max()), std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(RoundToBf16(std::numeric_limits<float>::quiet_NaN())));
  EXPECT_TRUE(std::isnan(RoundToBf16(std::bit_cast<float>(0x7F800001u))));
}

}  // namespace
}  // namespace dinghy::ops
