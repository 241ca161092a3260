#include <gtest/gtest.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <limits>
#include <vector>

#include "model/ops/vector_math.h"
#include "tests/model/ops/random_floats.h"

namespace dinghy::ops {
namespace {

constexpr int64_t kLengths[] = {1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 80, 127, 200, 1000};

// The same data at 17 distances from an aligned address: `run` has to give the same bits, and to leave alone
// what lies around.
template <class Run>
std::vector<float> AtEveryAlignment(const std::vector<float>& data, const Run& run) {
  std::vector<float> first;
  for (size_t shift = 0; shift < 17; ++shift) {
    std::vector<float> moved(shift, 77.0f);
    moved.insert(moved.end(), data.begin(), data.end());
    moved.resize(moved.size() + 17, 77.0f);
    const std::vector<float> result = run(moved.data() + shift);
    if (shift == 0) first = result;
    EXPECT_EQ(Bits(result), Bits(first)) << "shift " << shift;
    for (size_t i = 0; i < shift; ++i) EXPECT_EQ(moved[i], 77.0f);
    for (size_t i = shift + data.size(); i < moved.size(); ++i) EXPECT_EQ(moved[i], 77.0f);
  }
  return first;
}

TEST(DotTest, EqualsTheNaiveSum) {
  EXPECT_EQ(Dot(nullptr, nullptr, 0), 0.0f);
  for (const int64_t n : kLengths) {
    RandomFloats random(static_cast<uint32_t>(n));
    const std::vector<float> a = random(n), b = random(n);
    double want = 0, magnitude = 0;
    for (int64_t i = 0; i < n; ++i) {
      want += static_cast<double>(a[i]) * b[i];
      magnitude += std::abs(static_cast<double>(a[i]) * b[i]);
    }
    const std::vector<float> got =
        AtEveryAlignment(a, [&](float* p) { return std::vector{Dot(p, b.data(), n)}; });
    EXPECT_NEAR(got[0], want, magnitude * std::ldexp(n + 1.0, -24)) << n;
  }
}

std::vector<float> SoftmaxOf(std::vector<float> x) {
  return AtEveryAlignment(x, [&](float* p) {
    std::copy(x.begin(), x.end(), p);
    Softmax(p, static_cast<int64_t>(x.size()));
    return std::vector<float>(p, p + x.size());
  });
}

TEST(SoftmaxTest, EqualsTheReference) {
  for (const float width : {0.1f, 5.0f, 60.0f, 1e4f}) {
    for (const int64_t n : kLengths) {
      const std::vector<float> x = RandomFloats(static_cast<uint32_t>(n))(n, -width, width);
      const std::vector<float> got = SoftmaxOf(x);
      double largest = x[0], sum = 0, total = 0;
      for (const float v : x) largest = std::max<double>(largest, v);
      for (const float v : x) sum += std::exp(v - largest);
      for (int64_t i = 0; i < n; ++i) {
        const double want = std::exp(x[i] - largest) / sum;
        // The difference to the largest is rounded before exp is taken of it.
        ASSERT_NEAR(got[i], want, want * (1e-6 + (largest - x[i]) * 0x1p-24) + 2e-38) << width << ", " << n;
        total += got[i];
      }
      EXPECT_NEAR(total, 1, 1e-6);
    }
  }
}

TEST(SoftmaxTest, ExtremeInputs) {
  EXPECT_EQ(SoftmaxOf({-3.0f}), std::vector<float>{1.0f});
  EXPECT_EQ(SoftmaxOf({FLT_MAX, -FLT_MAX, FLT_MAX}), (std::vector<float>{0.5f, 0.0f, 0.5f}));
  // Masked positions weigh nothing at all, and a masked row of equals is uniform.
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(SoftmaxOf({0.0f, -1e9f, 0.0f, -infinity}), (std::vector<float>{0.5f, 0.0f, 0.5f, 0.0f}));
  EXPECT_EQ(SoftmaxOf(std::vector<float>(8, -1e9f)), std::vector<float>(8, 0.125f));
  const std::vector<float> bad = SoftmaxOf({1.0f, std::nanf(""), 2.0f});
  for (const float v : bad) EXPECT_TRUE(std::isnan(v));
}

TEST(SoftmaxTest, TheLargestMayStandAnywhere) {
  for (const int64_t n : kLengths) {
    for (int64_t i = 0; i < n; ++i) {
      std::vector<float> x(static_cast<size_t>(n), -200.0f);
      x[i] = -50.0f;
      Softmax(x.data(), n);
      for (int64_t j = 0; j < n; ++j) ASSERT_EQ(x[j], i == j ? 1.0f : 0.0f) << n << ": " << i << ", " << j;
    }
  }
}

TEST(LayerNormTest, EqualsTheReference) {
  for (const float mean : {0.0f, 30.0f}) {
    for (const int64_t n : kLengths) {
      RandomFloats random(static_cast<uint32_t>(n));
      constexpr int64_t kRows = 3;
      constexpr float kEpsilon = 1e-5f;
      const std::vector<float> x = random(kRows * n, mean - 1, mean + 1), weight = random(n),
                               bias = random(n);
      const std::vector<float> got = AtEveryAlignment(x, [&](float* p) {
        std::copy(x.begin(), x.end(), p);
        std::vector<float> apart(x.size());
        LayerNormRows(p, kRows, n, weight.data(), bias.data(), kEpsilon, apart.data());
        LayerNormRows(p, kRows, n, weight.data(), bias.data(), kEpsilon, p);
        std::vector<float> in_place(p, p + x.size());
        EXPECT_EQ(Bits(in_place), Bits(apart));
        return in_place;
      });
      for (int64_t r = 0; r < kRows; ++r) {
        double average = 0, variance = 0;
        for (int64_t i = 0; i < n; ++i) average += x[r * n + i] / static_cast<double>(n);
        for (int64_t i = 0; i < n; ++i)
          variance += std::pow(x[r * n + i] - average, 2) / static_cast<double>(n);
        const double scale = 1 / std::sqrt(variance + kEpsilon);
        for (int64_t i = 0; i < n; ++i) {
          const double want = (x[r * n + i] - average) * scale * weight[i] + bias[i];
          // The mean is known to a rounding of its own size, which the division by the deviation magnifies.
          ASSERT_NEAR(got[r * n + i], want, 3e-6 + 3e-7 * mean * scale) << n << ": " << r << ", " << i;
        }
      }
    }
  }
}

TEST(LayerNormTest, AConstantRowGivesTheBias) {
  const std::vector<float> weight(20, 3.0f), bias = RandomFloats(1)(20);
  std::vector<float> x(20, 0.25f);
  LayerNormRows(x.data(), 1, 20, weight.data(), bias.data(), 1e-12f, x.data());
  EXPECT_EQ(x, bias);
}

TEST(WeightedSumRowsTest, EqualsTheNaiveSum) {
  for (const int64_t rows : {0, 1, 2, 7, 65, 200}) {
    for (const int64_t n : kLengths) {
      RandomFloats random(static_cast<uint32_t>(rows * 2000 + n));
      const int64_t stride = n + 3;
      const std::vector<float> weight = random(rows);
      const std::vector<float> x = random(rows * stride);
      const std::vector<float> got =
          AtEveryAlignment(std::vector<float>(static_cast<size_t>(n), 5.0f), [&](float* p) {
            WeightedSumRows(x.data(), stride, weight.data(), rows, n, p);
            return std::vector<float>(p, p + n);
          });
      for (int64_t j = 0; j < n; ++j) {
        double want = 0;
        for (int64_t i = 0; i < rows; ++i) want += static_cast<double>(weight[i]) * x[i * stride + j];
        ASSERT_NEAR(got[j], want, std::ldexp(rows * (rows + 1.0), -24)) << rows << ", " << n << ": " << j;
      }
    }
  }
}

// A column's sum must not depend on which vector or tail it falls into.
TEST(WeightedSumRowsTest, AColumnDependsOnItselfAlone) {
  constexpr int64_t kRows = 33, kStride = 100;
  RandomFloats random(4);
  const std::vector<float> weight = random(kRows), x = random(kRows * kStride);
  for (const int64_t n : {1, 5, 16, 40, 64, 79, 100}) {
    std::vector<float> all(static_cast<size_t>(n));
    WeightedSumRows(x.data(), kStride, weight.data(), kRows, n, all.data());
    for (int64_t j = 0; j < n; ++j) {
      float one = 0;
      WeightedSumRows(x.data() + j, kStride, weight.data(), kRows, 1, &one);
      ASSERT_EQ(Bits(all[j]), Bits(one)) << n << ": " << j;
    }
  }
}

}  // namespace
}  // namespace dinghy::ops
