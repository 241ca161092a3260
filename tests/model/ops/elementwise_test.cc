#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <limits>
#include <ostream>
#include <string>
#include <vector>

#include "model/ops/vector_math.h"
#include "tests/model/ops/random_floats.h"

namespace dinghy::ops {
namespace {

constexpr int64_t kLengths[] = {0, 1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 80, 200, 1000};
constexpr float kGuard = 12345.0f;

// Every 4,001st float of both signs: all exponents, denormals among them; and some values of interest.
std::vector<float> Sweep() {
  std::vector<float> out = {0.0f,     -0.0f,        1e4f,          -1e4f,   FLT_MIN,
                            -FLT_MIN, FLT_TRUE_MIN, -FLT_TRUE_MIN, FLT_MAX, -FLT_MAX};
  for (uint32_t bits = 0; bits < 0x7f800000; bits += 4001) {
    out.push_back(std::bit_cast<float>(bits));
    out.push_back(-out.back());
  }
  // More where the functions bend.
  for (int i = -60'000; i <= 60'000; ++i) out.push_back(static_cast<float>(i) * 2e-3f);
  return out;
}

double SigmoidOf(double x) { return 1 / (1 + std::exp(-x)); }
constexpr float kSlope = 0.01f;
void LeakyReluBySlope(float* x, int64_t n) { LeakyRelu(kSlope, x, n); }
double GeluTanhOf(double x) {
  return x / 2 * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x)));
}
double SiluOf(double x) { return x / (1 + std::exp(-x)); }

struct Activation {
  const char* name;
  void (*run)(float*, int64_t);
  double (*reference)(double);
  double absolute, relative;  // the bounds that the header states

  friend std::ostream& operator<<(std::ostream& out, const Activation& a) { return out << a.name; }
};

class ActivationTest : public ::testing::TestWithParam<Activation> {};

TEST_P(ActivationTest, IsWithinItsBound) {
  const Activation& a = GetParam();
  const std::vector<float> x = Sweep();
  std::vector<float> y = x;
  a.run(y.data(), static_cast<int64_t>(y.size()));
  double worst = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double want = a.reference(x[i]);
    ASSERT_TRUE(std::isfinite(y[i])) << x[i];
    // Nothing below the least denormal can be told apart.
    const double bound =
        std::max({a.absolute, a.relative * std::abs(want), static_cast<double>(FLT_TRUE_MIN)});
    const double error = std::abs(y[i] - want);
    ASSERT_LE(error, bound) << "x " << x[i] << ", got " << y[i] << ", want " << want;
    worst = std::max(worst, error / bound);
  }
  RecordProperty("worst_in_bounds", std::to_string(worst));
}

TEST_P(ActivationTest, BitsDoNotDependOnThePosition) {
  const Activation& a = GetParam();
  for (const int64_t n : kLengths) {
    const std::vector<float> x = RandomFloats(static_cast<uint32_t>(n))(n, -20, 20);
    std::vector<float> alone = x;
    for (float& v : alone) a.run(&v, 1);
    for (int64_t shift = 0; shift < 17; ++shift) {
      std::vector<float> y(static_cast<size_t>(shift), kGuard);
      y.insert(y.end(), x.begin(), x.end());
      y.resize(y.size() + 17, kGuard);
      a.run(y.data() + shift, n);
      for (int64_t i = 0; i < static_cast<int64_t>(y.size()); ++i) {
        const bool inside = i >= shift && i < shift + n;
        ASSERT_EQ(Bits(y[i]), Bits(inside ? alone[i - shift] : kGuard))
            << n << " from " << shift << ": " << i;
      }
    }
  }
}

TEST_P(ActivationTest, NanStaysNan) {
  for (const int64_t n : {1, 16, 21}) {
    std::vector<float> x(static_cast<size_t>(n), std::numeric_limits<float>::quiet_NaN());
    GetParam().run(x.data(), n);
    for (const float v : x) EXPECT_TRUE(std::isnan(v));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Functions, ActivationTest,
    ::testing::Values(Activation{"Relu", Relu, [](double x) { return x > 0 ? x : 0.0; }, 0, 0},
                      Activation{"Sigmoid", Sigmoid, SigmoidOf, 2e-7, 0},
                      Activation{"Tanh", Tanh, [](double x) { return std::tanh(x); }, 4e-7, 0},
                      Activation{"Silu", Silu, SiluOf, 0, 1e-6},
                      Activation{"LeakyRelu", LeakyReluBySlope,
                                 [](double x) { return x > 0 ? x : kSlope * x; }, 0, 1e-7},
                      Activation{"GeluErf", GeluErf,
                                 [](double x) { return x * std::erfc(-x / std::sqrt(2.0)) / 2; }, 5e-7, 2e-7},
                      Activation{"GeluTanh", GeluTanh, GeluTanhOf, 5e-7, 2e-7},
                      Activation{"EluPlusOne", EluPlusOne,
                                 [](double x) { return x > 0 ? x + 1 : std::exp(x); }, 2e-38, 3e-7}),
    [](const auto& info) { return info.param.name; });

// Each element as its column says, whatever stands beside it.
TEST(RowActivationTest, FollowsItsColumn) {
  for (const int64_t n : {1, 2, 7, 15, 16, 17, 33, 64, 80}) {
    RandomFloats random(static_cast<uint32_t>(n));
    const std::vector<float> alpha = random(n, -1, 1), scale = random(n, -2, 2), shift = random(n, -1, 1);
    for (const int64_t rows : {0, 1, 5}) {
      const std::vector<float> x = random(rows * n, -30, 30);
      std::vector<float> prelu = x, dice = x, affine = x;
      PreluRows(prelu.data(), rows, n, alpha.data());
      DiceRows(dice.data(), rows, n, alpha.data(), scale.data(), shift.data());
      ScaleShiftRows(affine.data(), rows, n, scale.data(), shift.data());
      for (int64_t i = 0; i < rows * n; ++i) {
        const int64_t j = i % n;
        const double v = x[i];
        const double p = SigmoidOf(v * scale[j] + shift[j]);
        ASSERT_NEAR(prelu[i], v > 0 ? v : alpha[j] * v, 1e-6 * std::abs(v));
        ASSERT_NEAR(dice[i], p * v + alpha[j] * (1 - p) * v, 1e-6 * std::max(1.0, std::abs(v)));
        ASSERT_NEAR(affine[i], v * scale[j] + shift[j], 1e-5);
        float alone = x[i];
        DiceRows(&alone, 1, 1, &alpha[j], &scale[j], &shift[j]);
        ASSERT_EQ(Bits(alone), Bits(dice[i]));
      }
    }
  }
}

TEST(ActivationEdgeTest, ZeroAndSaturation) {
  std::vector<float> x = {0, 100, -100, 1e30f};
  std::vector<float> y = x;
  Sigmoid(y.data(), 4);
  EXPECT_EQ(y[0], 0.5f);
  EXPECT_EQ(y[1], 1.0f);
  EXPECT_LT(y[2], 1e-37f);
  EXPECT_EQ(y[3], 1.0f);
  y = x;
  Tanh(y.data(), 4);
  EXPECT_EQ(y[0], 0.0f);
  EXPECT_EQ(y[1], 1.0f);
  EXPECT_EQ(y[2], -1.0f);
  y = x;
  Silu(y.data(), 4);
  EXPECT_EQ(y[0], 0.0f);
  EXPECT_EQ(y[3], 1e30f);
}

// Runs `run` with rising lengths and shifted arrays; the result has to lie within two roundings of `want`,
// and be the same bits at every shift.
template <class Run, class Want>
void CheckZip(const Run& run, const Want& want) {
  for (const int64_t n : kLengths) {
    RandomFloats random(static_cast<uint32_t>(n + 1));
    const std::vector<float> x = random(n), y = random(n);
    std::vector<float> first;
    for (int64_t shift = 0; shift < 17; ++shift) {
      std::vector<float> xs(static_cast<size_t>(16 - shift % 16)), ys(static_cast<size_t>(shift), kGuard);
      const int64_t x_shift = static_cast<int64_t>(xs.size());
      xs.insert(xs.end(), x.begin(), x.end());
      ys.insert(ys.end(), y.begin(), y.end());
      ys.resize(ys.size() + 17, kGuard);
      run(xs.data() + x_shift, ys.data() + shift, n);
      const std::vector<float> got(ys.begin() + shift, ys.begin() + shift + n);
      if (shift == 0) first = got;
      ASSERT_EQ(Bits(got), Bits(first));
      for (int64_t i = 0; i < shift; ++i) ASSERT_EQ(ys[i], kGuard);
      for (size_t i = static_cast<size_t>(shift + n); i < ys.size(); ++i) ASSERT_EQ(ys[i], kGuard);
    }
    for (int64_t i = 0; i < n; ++i) {
      ASSERT_NEAR(first[i], want(static_cast<double>(x[i]), static_cast<double>(y[i])), 0x1p-22) << i;
    }
  }
}

TEST(ElementwiseTest, AddTo) {
  CheckZip([](const float* x, float* y, int64_t n) { AddTo(x, y, n); },
           [](double x, double y) { return x + y; });
}

TEST(ElementwiseTest, MultiplyBy) {
  CheckZip([](const float* x, float* y, int64_t n) { MultiplyBy(x, y, n); },
           [](double x, double y) { return x * y; });
}

TEST(ElementwiseTest, Scale) {
  CheckZip([](const float*, float* y, int64_t n) { Scale(0.75f, y, n); },
           [](double, double y) { return 0.75 * y; });
}

TEST(ElementwiseTest, ScaleAddInPlace) {
  CheckZip([](const float* x, float* y, int64_t n) { ScaleAdd(x, 1.5f, y, y, n); },
           [](double x, double y) { return x * 1.5 + y; });
  CheckZip([](const float* x, float* y, int64_t n) { ScaleAdd(y, 1.5f, x, y, n); },
           [](double x, double y) { return y * 1.5 + x; });
}

TEST(ElementwiseTest, AddScaledColumnsAndRows) {
  for (const int64_t rows : {0, 1, 2, 7, 65}) {
    for (const int64_t n : kLengths) {
      if (n == 0) continue;
      RandomFloats random(9);
      const std::vector<float> base = random(rows * n), p = random(rows * n);
      const std::vector<float> by_column = random(n), by_row = random(rows);
      std::vector<float> columns(rows * n + 17, kGuard), scaled_rows = columns;
      AddScaledColumns(base.data(), p.data(), by_column.data(), columns.data(), rows, n);
      AddScaledRows(base.data(), p.data(), by_row.data(), scaled_rows.data(), rows, n);
      for (int64_t i = 0; i < rows * n; ++i) {
        ASSERT_NEAR(columns[i], base[i] + static_cast<double>(by_column[i % n]) * p[i], 0x1p-22);
        ASSERT_NEAR(scaled_rows[i], base[i] + static_cast<double>(by_row[i / n]) * p[i], 0x1p-22);
      }
      for (size_t i = static_cast<size_t>(rows * n); i < columns.size(); ++i) {
        ASSERT_EQ(columns[i], kGuard);
        ASSERT_EQ(scaled_rows[i], kGuard);
      }
    }
  }
}

}  // namespace
}  // namespace dinghy::ops
