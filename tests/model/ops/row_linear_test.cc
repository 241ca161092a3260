#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

#include "model/ops/cpu.h"
#include "model/ops/gemm.h"
#include "model/ops/row_probe.h"
#include "tests/model/ops/random_floats.h"

// A refused allocation is an error of oneDNN here, and not the end of the process, under the sanitizers too.
extern "C" const char* __asan_default_options() { return "allocator_may_return_null=1"; }
extern "C" const char* __tsan_default_options() { return "allocator_may_return_null=1"; }

namespace dinghy::ops {
namespace {

struct Shape {
  int64_t in, out;
};
constexpr Shape kShapes[] = {{1, 1},   {2, 1},  {7, 3},    {16, 16},  {17, 16}, {63, 65}, {64, 64}, {65, 63},
                             {80, 40}, {40, 1}, {200, 80}, {300, 33}, {64, 80}, {7, 85},  {3, 168}};
constexpr int64_t kRowCounts[] = {0, 1, 2, 7, 16, 17, 48, 63, 64, 65, 80, 129, 200};

struct Layer {
  std::vector<float> weight, bias;
  int64_t weight_stride;
  std::unique_ptr<RowLinear> linear;
};

struct Variant {
  bool onednn;
  bool bias;
  bool accumulate;
  int64_t gap;  // floats between rows

  std::string Name() const {
    return std::string(onednn ? "OneDnn" : "Tiles") + (bias ? "Bias" : "") +
           (accumulate ? "Accumulate" : "") + "Gap" + std::to_string(gap);
  }
  friend std::ostream& operator<<(std::ostream& out, const Variant& v) { return out << v.Name(); }
};

Layer MakeLayer(const Shape& shape, const Variant& variant) {
  Layer layer;
  RandomFloats random(11);
  layer.weight_stride = shape.in + variant.gap;
  layer.weight = random(shape.out * layer.weight_stride);
  layer.bias = random(shape.out);
  const RowLinear::Options options = {
      .in = shape.in, .out = shape.out, .accumulate = variant.accumulate, .onednn = variant.onednn};
  auto created = RowLinear::Create(options, layer.weight.data(), layer.weight_stride,
                                   variant.bias ? layer.bias.data() : nullptr);
  EXPECT_TRUE(created.ok()) << created.status();
  if (created.ok()) layer.linear = *std::move(created);
  return layer;
}

class RowLinearTest : public ::testing::TestWithParam<Variant> {};

TEST_P(RowLinearTest, EqualsTheNaiveProduct) {
  const Variant& v = GetParam();
  Scratch scratch;
  for (const Shape& shape : kShapes) {
    const Layer layer = MakeLayer(shape, v);
    ASSERT_NE(layer.linear, nullptr);
    for (const int64_t rows : kRowCounts) {
      SCOPED_TRACE(testing::Message() << shape.in << " -> " << shape.out << ", " << rows << " rows");
      RandomFloats random(static_cast<uint32_t>(rows));
      const int64_t x_stride = shape.in + v.gap, y_stride = shape.out + v.gap;
      const std::vector<float> x = random(rows * x_stride);
      const std::vector<float> before = random(rows * y_stride);
      std::vector<float> y = before;
      layer.linear->Run(x.data(), x_stride, rows, y.data(), y_stride, scratch);
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t j = 0; j < y_stride; ++j) {
          if (j >= shape.out) {
            ASSERT_EQ(y[r * y_stride + j], before[r * y_stride + j]) << "between the rows";
            continue;
          }
          double sum = 0, magnitude = 0;
          const auto add = [&](double value) {
            sum += value;
            magnitude += std::abs(value);
          };
          if (v.bias) add(layer.bias[j]);
          if (v.accumulate) add(before[r * y_stride + j]);
          for (int64_t k = 0; k < shape.in; ++k) {
            add(static_cast<double>(x[r * x_stride + k]) * layer.weight[j * layer.weight_stride + k]);
          }
          ASSERT_NEAR(y[r * y_stride + j], sum, magnitude * std::ldexp(shape.in + 3.0, -24))
              << r << ", " << j;
        }
      }
    }
  }
}

// A row among others, at every position, against the same row alone.
TEST_P(RowLinearTest, ARowDependsOnItselfAlone) {
  const Variant& v = GetParam();
  Scratch scratch;
  constexpr int64_t kRows = 200;
  for (const Shape& shape : kShapes) {
    const Layer layer = MakeLayer(shape, v);
    ASSERT_NE(layer.linear, nullptr);
    SCOPED_TRACE(testing::Message() << shape.in << " -> " << shape.out << " by " << layer.linear->Choice());
    RandomFloats random(5);
    const std::vector<float> x = random(kRows * shape.in);
    const std::vector<float> before = random(kRows * shape.out);
    std::vector<float> alone = before;
    for (int64_t r = 0; r < kRows; ++r) {
      layer.linear->Run(&x[r * shape.in], shape.in, 1, &alone[r * shape.out], shape.out, scratch);
    }
    for (const int64_t rows : kRowCounts) {
      for (const int64_t first : {int64_t{0}, kRows - rows}) {
        for (const int64_t shift : {0, 1}) {  // off the alignment of 64 bytes
          const int64_t x_stride = shape.in + v.gap, y_stride = shape.out + v.gap;
          std::vector<float> many_x(rows * x_stride + 1), many_y(rows * y_stride + 1);
          for (int64_t r = 0; r < rows; ++r) {
            std::copy_n(x.begin() + (first + r) * shape.in, shape.in, many_x.begin() + shift + r * x_stride);
            std::copy_n(before.begin() + (first + r) * shape.out, shape.out,
                        many_y.begin() + shift + r * y_stride);
          }
          layer.linear->Run(many_x.data() + shift, x_stride, rows, many_y.data() + shift, y_stride, scratch);
          for (int64_t r = 0; r < rows; ++r) {
            ASSERT_EQ(std::memcmp(&many_y[shift + r * y_stride], &alone[(first + r) * shape.out],
                                  static_cast<size_t>(shape.out) * sizeof(float)),
                      0)
                << "row " << r << " of " << rows;
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Variants, RowLinearTest,
                         ::testing::Values(Variant{true, true, false, 0}, Variant{true, false, false, 0},
                                           Variant{true, true, true, 0}, Variant{true, true, true, 5},
                                           Variant{true, false, false, 3}, Variant{false, true, false, 0},
                                           Variant{false, false, true, 5}, Variant{false, true, true, 0}),
                         [](const auto& info) { return info.param.Name(); });

TEST(RowLinearBitsTest, ABadNeighborDoesNotSpread) {
  for (const bool onednn : {false, true}) {
    const Layer layer = MakeLayer({80, 40}, {onednn, true, false, 0});
    ASSERT_NE(layer.linear, nullptr);
    Scratch scratch;
    std::vector<float> x = RandomFloats(5)(3 * 80);
    std::vector<float> clean(3 * 40), y(3 * 40);
    layer.linear->Run(x.data(), 80, 3, clean.data(), 40, scratch);
    std::fill_n(x.begin() + 80, 80, std::numeric_limits<float>::quiet_NaN());
    layer.linear->Run(x.data(), 80, 3, y.data(), 40, scratch);
    for (const int r : {0, 2}) {
      for (int j = 0; j < 40; ++j) ASSERT_EQ(Bits(y[r * 40 + j]), Bits(clean[r * 40 + j]));
    }
    EXPECT_TRUE(std::isnan(y[40]));
  }
}

TEST(RowLinearBitsTest, ThreadsGiveTheSameBits) {
  const Layer layer = MakeLayer({200, 80}, {true, true, false, 0});
  ASSERT_NE(layer.linear, nullptr);
  constexpr int64_t kRows = 130;
  const std::vector<float> x = RandomFloats(5)(kRows * 200);
  std::vector<float> expected(kRows * 80);
  Scratch scratch;
  layer.linear->Run(x.data(), 200, kRows, expected.data(), 80, scratch);
  std::vector<std::vector<float>> results(2, std::vector<float>(kRows * 80));
  std::vector<std::thread> threads;
  for (std::vector<float>& result : results) {
    threads.emplace_back([&layer, &x, &result] {
      PrepareThread();
      Scratch own;
      for (int i = 0; i < 20; ++i) layer.linear->Run(x.data(), 200, kRows, result.data(), 80, own);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::vector<float>& result : results) EXPECT_EQ(Bits(result), Bits(expected));
}

TEST(RowLinearExactRowsTest, RunsInOneBlock) {
  RandomFloats random(1);
  const std::vector<float> weight = random(40 * 80), x = random(50 * 80);
  const auto linear =
      RowLinear::Create({.in = 80, .out = 40, .onednn = true, .rows = 50}, weight.data(), 80, nullptr);
  ASSERT_TRUE(linear.ok()) << linear.status();
  EXPECT_EQ((*linear)->Choice(), "oneDNN 50");
  std::vector<float> y(50 * 40);
  Scratch scratch;
  (*linear)->Run(x.data(), 80, 50, y.data(), 40, scratch);
  for (int64_t r = 0; r < 50; ++r) {
    for (int64_t j = 0; j < 40; ++j) {
      double sum = 0;
      for (int64_t k = 0; k < 80; ++k) sum += static_cast<double>(x[r * 80 + k]) * weight[j * 80 + k];
      ASSERT_NEAR(y[r * 40 + j], sum, 80 * 0x1p-24 * 80);
    }
  }
  EXPECT_DEATH((*linear)->Run(x.data(), 80, 49, y.data(), 40, scratch), "check failed");
}

TEST(RowLinearCreateTest, RefusesShapesThatCannotBe) {
  const float one = 1;
  for (const auto& [in, out, rows, stride] :
       std::vector<std::array<int64_t, 4>>{{0, 1, 0, 1}, {1, 0, 0, 1}, {1, 1, -1, 1}, {2, 1, 0, 1}}) {
    const absl::Status status =
        RowLinear::Create({.in = in, .out = out, .onednn = true, .rows = rows}, &one, stride, &one).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("row linear "));
  }
}

TEST(RowLinearCreateTest, NamesTheShapeThatOneDnnRefuses) {
  const float one = 1;  // never read: the memory for the packed weights comes first
  const absl::Status status =
      RowLinear::Create({.in = 1, .out = int64_t{1} << 50, .onednn = true}, &one, 1, nullptr).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("x [1, 1125899906842624]: oneDNN: "));
}

TEST(RowProbeTest, SeesARowThatDiffersInOneBit) {
  const RowProbeOptions options = {.rows = 16, .in = 3, .out = 2};
  for (int64_t odd_row = -1; odd_row < options.rows; ++odd_row) {
    const bool alike = RowsAreAlike(options, [&](const float* x, float* y) {
      for (int64_t r = 0; r < options.rows; ++r) {
        for (int64_t j = 0; j < options.out; ++j) {
          y[r * 2 + j] = x[r * 3] + x[r * 3 + 1] + x[r * 3 + 2];
          if (r == odd_row && j == 1) y[r * 2 + j] = std::nextafter(y[r * 2 + j], 10.0f);
        }
      }
    });
    EXPECT_EQ(alike, odd_row == -1) << odd_row;
  }
}

TEST(RowProbeTest, SeesAnOtherOrderOfSummation) {
  for (const int64_t out : {1, 3, 40}) {
    const RowProbeOptions options = {.rows = 64, .in = 20, .out = out};
    const bool alike = RowsAreAlike(options, [&](const float* x, float* y) {
      for (int64_t r = 0; r < options.rows; ++r) {
        for (int64_t j = 0; j < out; ++j) {
          float sum = 0;
          for (int64_t k = 0; k < 20; ++k)
            sum += x[r * 20 + (r == 63 ? 19 - k : k)] * static_cast<float>(j + 1);
          y[r * out + j] = sum;
        }
      }
    });
    EXPECT_FALSE(alike) << out;
  }
}

TEST(RowProbeTest, SeesARowThatDependsOnItsNeighbor) {
  const RowProbeOptions options = {.rows = 16, .in = 1, .out = 1, .accumulate = true};
  EXPECT_FALSE(RowsAreAlike(options, [&](const float* x, float* y) {
    for (int64_t r = 0; r < 16; ++r) y[r] += x[r] + (r == 7 ? x[8] * 1e-6f : 0.0f);
  }));
  EXPECT_TRUE(RowsAreAlike(options, [&](const float* x, float* y) {
    for (int64_t r = 0; r < 16; ++r) y[r] += x[r];
  }));
}

// What the probe says of oneDNN's blocks on this machine, against a plain look at all positions: some sizes
// have odd rows under AVX2.
TEST(RowProbeTest, AgreesWithAFullLookAtOneDnn) {
  Scratch scratch;
  for (const Shape& shape : kShapes) {
    RandomFloats random(3);
    const std::vector<float> weight = random(shape.out * shape.in);
    for (const int64_t rows : {16, 24, 32, 40, 48, 64, 96, 128}) {
      const auto linear = RowLinear::Create({.in = shape.in, .out = shape.out, .onednn = true, .rows = rows},
                                            weight.data(), shape.in, nullptr);
      ASSERT_TRUE(linear.ok()) << linear.status();
      bool alike = true;
      for (int repeat = 0; repeat < 40 && alike; ++repeat) {
        const std::vector<float> row = random(shape.in);
        std::vector<float> x, y(static_cast<size_t>(rows * shape.out));
        for (int64_t r = 0; r < rows; ++r) x.insert(x.end(), row.begin(), row.end());
        (*linear)->Run(x.data(), shape.in, rows, y.data(), shape.out, scratch);
        for (int64_t r = 1; r < rows; ++r) {
          alike &= std::equal(y.begin(), y.begin() + shape.out, y.begin() + r * shape.out,
                              [](float a, float b) { return Bits(a) == Bits(b); });
        }
      }
      const RowProbeOptions options = {.rows = rows, .in = shape.in, .out = shape.out};
      EXPECT_EQ(
          RowsAreAlike(options, [&](const float* x,
                                    float* y) { (*linear)->Run(x, shape.in, rows, y, shape.out, scratch); }),
          alike)
          << shape.in << " -> " << shape.out << ", " << rows << " rows";
    }
  }
}

}  // namespace
}  // namespace dinghy::ops
