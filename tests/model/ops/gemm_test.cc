#include "model/ops/gemm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

#include "model/ops/cpu.h"
#include "tests/model/ops/random_floats.h"

namespace dinghy::ops {
namespace {

struct Product {
  std::vector<float> a, b, bias, c;

  Product(const Gemm::Options& o, uint32_t seed) {
    RandomFloats random(seed);
    a = random(o.m * o.a_stride);
    b = random((o.transpose_b ? o.n : o.k) * o.b_stride);
    bias = random(o.n);
    c = random(o.m * o.c_stride);
  }
};

// The rounding error of a sum of k products in any order is below (k + 3) 2^-24 times the sum of magnitudes.
void ExpectProduct(const Gemm::Options& o, const Product& before, const std::vector<float>& c) {
  for (int64_t i = 0; i < o.m; ++i) {
    for (int64_t j = 0; j < o.c_stride; ++j) {
      const double old = before.c[i * o.c_stride + j];
      const double got = c[i * o.c_stride + j];
      if (j >= o.n) {
        ASSERT_EQ(got, old) << "between the rows: " << i << ", " << j;
        continue;
      }
      double sum = 0, magnitude = 0;
      const auto add = [&](double v) {
        sum += v;
        magnitude += std::abs(v);
      };
      if (o.bias) add(before.bias[j]);
      if (o.accumulate) add(old);
      for (int64_t k = 0; k < o.k; ++k) {
        const double b = before.b[o.transpose_b ? j * o.b_stride + k : k * o.b_stride + j];
        add(before.a[i * o.a_stride + k] * b);
      }
      ASSERT_NEAR(got, sum, magnitude * std::ldexp(o.k + 3.0, -24)) << i << ", " << j;
    }
  }
}

struct Variant {
  bool transpose_b, bias, accumulate;
  int64_t gap;  // floats between the rows of all operands

  std::string Name() const {
    return std::string(transpose_b ? "Transposed" : "Plain") + (bias ? "Bias" : "") +
           (accumulate ? "Accumulate" : "") + "Gap" + std::to_string(gap);
  }
  friend std::ostream& operator<<(std::ostream& out, const Variant& v) { return out << v.Name(); }
};

class GemmTest : public ::testing::TestWithParam<Variant> {};

TEST_P(GemmTest, EqualsTheNaiveProduct) {
  const Variant& v = GetParam();
  const int64_t sizes[][3] = {{1, 1, 1},    {1, 1, 80},   {1, 40, 1},    {7, 1, 1},
                              {1, 200, 64}, {2, 1, 7},    {7, 2, 16},    {16, 17, 1},
                              {17, 1, 65},  {63, 64, 65}, {64, 80, 40},  {50, 80, 64},
                              {65, 63, 2},  {80, 200, 7}, {200, 33, 80}, {1, 64, 200}};
  Scratch scratch;
  for (const auto& [m, n, k] : sizes) {
    const Gemm::Options o = {.m = m,
                             .n = n,
                             .k = k,
                             .a_stride = k + v.gap,
                             .b_stride = (v.transpose_b ? k : n) + v.gap,
                             .c_stride = n + v.gap,
                             .transpose_b = v.transpose_b,
                             .bias = v.bias,
                             .accumulate = v.accumulate};
    SCOPED_TRACE(testing::Message() << "m " << m << " n " << n << " k " << k);
    const auto gemm = Gemm::Create(o);
    ASSERT_TRUE(gemm.ok()) << gemm.status();
    const Product product(o, 7);
    std::vector<float> c = product.c;
    (*gemm)->Run(product.a.data(), product.b.data(), v.bias ? product.bias.data() : nullptr, c.data(),
                 scratch);
    ExpectProduct(o, product, c);
  }
}

INSTANTIATE_TEST_SUITE_P(Variants, GemmTest,
                         ::testing::Values(Variant{false, false, false, 0}, Variant{true, false, false, 0},
                                           Variant{false, true, false, 0}, Variant{true, true, true, 0},
                                           Variant{false, false, true, 0}, Variant{false, false, false, 5},
                                           Variant{true, true, false, 5}, Variant{true, false, true, 16},
                                           Variant{false, true, true, 3}),
                         [](const auto& info) { return info.param.Name(); });

TEST(GemmBitsTest, NeitherThreadNorAlignmentMatters) {
  const Gemm::Options o = {.m = 50, .n = 80, .k = 64, .a_stride = 64, .b_stride = 80, .c_stride = 80};
  const auto gemm = Gemm::Create(o);
  ASSERT_TRUE(gemm.ok()) << gemm.status();
  const Product product(o, 3);
  Scratch scratch;
  std::vector<float> expected(product.c.size());
  (*gemm)->Run(product.a.data(), product.b.data(), nullptr, expected.data(), scratch);
  std::vector<std::vector<float>> results(2);
  std::vector<std::thread> threads;
  for (std::vector<float>& result : results) {
    threads.emplace_back([&gemm, &product, &result] {
      PrepareThread();
      Scratch own;
      const size_t a_size = product.a.size(), b_size = product.b.size(), c_size = product.c.size();
      for (int shift = 0; shift < 16; ++shift) {
        float* a = own.Floats(a_size + 16) + shift;
        float* b = own.Floats(b_size + 16) + 15 - shift;
        float* c = own.Floats(c_size + 16) + shift;
        std::copy(product.a.begin(), product.a.end(), a);
        std::copy(product.b.begin(), product.b.end(), b);
        (*gemm)->Run(a, b, nullptr, c, own);
        result.insert(result.end(), c, c + c_size);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::vector<float>& result : results) {
    for (size_t i = 0; i < result.size(); ++i) {
      ASSERT_EQ(Bits(result[i]), Bits(expected[i % expected.size()])) << i;
    }
  }
}

TEST(GemmCreateTest, RefusesShapesThatCannotBe) {
  const Gemm::Options good = {.m = 2, .n = 3, .k = 4, .a_stride = 4, .b_stride = 3, .c_stride = 3};
  ASSERT_TRUE(Gemm::Create(good).ok());
  std::vector<Gemm::Options> bad(7, good);
  bad[0].m = 0;
  bad[1].n = 0;
  bad[2].k = -1;
  bad[3].a_stride = 3;
  bad[4].b_stride = 2;
  bad[5].c_stride = 2;
  bad[6].transpose_b = true;  // rows of b are 4 wide then
  for (const Gemm::Options& o : bad) {
    const absl::Status status = Gemm::Create(o).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("matrix product ["));
  }
}

}  // namespace
}  // namespace dinghy::ops
