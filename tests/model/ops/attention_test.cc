#include "model/ops/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/model/ops/random_floats.h"

namespace dinghy::ops {
namespace {

int64_t Columns(int64_t length) { return (length + 15) / 16 * 16; }

std::vector<float> TransposedRandom(int64_t length, int64_t width, std::vector<float>& rows, uint32_t seed) {
  rows = RandomFloats(seed)(length * width);
  std::vector<float> out(static_cast<size_t>(width * Columns(length)), 99.0f);
  Transpose(rows.data(), width, length, width, out.data(), Columns(length));
  return out;
}

TEST(TransposeTest, FillsUpWithZeros) {
  for (const int64_t length : {1, 2, 15, 16, 17, 40}) {
    for (const int64_t width : {1, 3, 16, 21}) {
      std::vector<float> rows;
      const std::vector<float> got = TransposedRandom(length, width, rows, 3);
      for (int64_t i = 0; i < width; ++i) {
        for (int64_t j = 0; j < Columns(length); ++j) {
          EXPECT_EQ(got[i * Columns(length) + j], j < length ? rows[j * width + i] : 0.0f);
        }
      }
    }
  }
}

TEST(TransposeTest, TakesColumnsOfWiderRows) {
  const std::vector<float> rows = RandomFloats(1)(3 * 7);
  std::vector<float> got(2 * 16);
  Transpose(rows.data() + 4, 7, 3, 2, got.data(), 16);
  for (int64_t j = 0; j < 3; ++j) {
    EXPECT_EQ(got[j], rows[j * 7 + 4]);
    EXPECT_EQ(got[16 + j], rows[j * 7 + 5]);
  }
}

// One row at a time, and rows among others: the same bits, which are those of the naive sum of fused
// products.
TEST(DotScoresTest, EveryRowAndColumnAlone) {
  for (const int64_t length : {1, 16, 17, 63, 64, 65, 128, 200}) {
    for (const int64_t width : {1, 2, 7, 16, 33}) {
      std::vector<float> rows;
      const std::vector<float> keys = TransposedRandom(length, width, rows, 5);
      const int64_t columns = Columns(length);
      const int64_t x_stride = width + 3, stride = columns + 16;
      const std::vector<float> x = RandomFloats(6)(9 * x_stride);
      for (const int64_t count : {1, 2, 3, 4, 5, 8, 9}) {
        std::vector<float> got(static_cast<size_t>(count * stride), 99.0f);
        DotScores({keys.data(), width, columns}, x.data(), x_stride, count, got.data(), stride);
        for (int64_t r = 0; r < count; ++r) {
          for (int64_t j = 0; j < stride; ++j) {
            float want = 0;
            for (int64_t i = 0; i < width; ++i) {
              want = std::fma(x[r * x_stride + i], j < length ? rows[j * width + i] : 0.0f, want);
            }
            if (j >= columns) {
              EXPECT_EQ(got[r * stride + j], 99.0f);
            } else if (j >= length) {
              EXPECT_EQ(got[r * stride + j], 0.0f);
            } else {
              // The baseline has no fused product.
              EXPECT_NEAR(got[r * stride + j], want, 1e-5f * static_cast<float>(width));
              std::vector<float> alone(static_cast<size_t>(columns));
              if (j == 0 || j == length - 1) {
                DotScores({keys.data(), width, columns}, x.data() + r * x_stride, x_stride, 1, alone.data(),
                          columns);
                EXPECT_EQ(Bits(alone[j]), Bits(got[r * stride + j]));
              }
            }
          }
        }
      }
    }
  }
}

double Reference(ScoreActivation activation, double x) {
  const double sigmoid = 1 / (1 + std::exp(-x));
  switch (activation) {
    case ScoreActivation::kLinear:
      return x;
    case ScoreActivation::kRelu:
      return std::max(x, 0.0);
    case ScoreActivation::kSigmoid:
      return sigmoid;
    case ScoreActivation::kTanh:
      return std::tanh(x);
    case ScoreActivation::kSilu:
      return x * sigmoid;
    case ScoreActivation::kGeluErf:
      return x * std::erfc(-x / std::sqrt(2.0)) / 2;
    case ScoreActivation::kGeluTanh:
      return x / 2 * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x)));
  }
  return 0;
}

TEST(AdditiveScoresTest, EqualTheReference) {
  for (const ScoreActivation activation :
       {ScoreActivation::kLinear, ScoreActivation::kRelu, ScoreActivation::kSigmoid, ScoreActivation::kTanh,
        ScoreActivation::kSilu, ScoreActivation::kGeluErf, ScoreActivation::kGeluTanh}) {
    for (const int64_t length : {1, 16, 17, 64, 100}) {
      for (const int64_t width : {1, 5, 32}) {
        std::vector<float> rows;
        const std::vector<float> keys = TransposedRandom(length, width, rows, 8);
        const std::vector<float> base = RandomFloats(9)(width, -3, 3), vector = RandomFloats(10)(width);
        std::vector<float> got(static_cast<size_t>(Columns(length)));
        AdditiveScores(activation, {keys.data(), width, Columns(length)}, base.data(), vector.data(),
                       got.data());
        for (int64_t j = 0; j < length; ++j) {
          double want = 0;
          for (int64_t i = 0; i < width; ++i) {
            want += vector[i] * Reference(activation, static_cast<double>(base[i]) + rows[j * width + i]);
          }
          EXPECT_NEAR(got[j], want, 1e-5) << static_cast<int>(activation) << ", " << length << " x " << width;
        }
      }
    }
  }
}

// A behavior has the same score wherever it stands, whatever the bucket.
TEST(AdditiveScoresTest, PlaceDoesNotMatter) {
  const int64_t width = 19;
  const std::vector<float> key = RandomFloats(4)(width), base = RandomFloats(5)(width),
                           vector = RandomFloats(6)(width);
  std::vector<float> first;
  for (const int64_t length : {1, 17, 64, 100}) {
    std::vector<float> rows;
    for (int64_t j = 0; j < length; ++j) rows.insert(rows.end(), key.begin(), key.end());
    std::vector<float> keys(static_cast<size_t>(width * Columns(length)));
    Transpose(rows.data(), width, length, width, keys.data(), Columns(length));
    std::vector<float> got(static_cast<size_t>(Columns(length)));
    AdditiveScores(ScoreActivation::kTanh, {keys.data(), width, Columns(length)}, base.data(), vector.data(),
                   got.data());
    if (first.empty()) first.push_back(got[0]);
    for (int64_t j = 0; j < length; ++j) EXPECT_EQ(Bits(got[j]), Bits(first[0])) << j << " of " << length;
  }
}

}  // namespace
}  // namespace dinghy::ops
