#include "model/ops/gather.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "tests/model/ops/random_floats.h"
#include "tests/testing/half.h"

namespace dinghy::ops {
namespace {

constexpr int64_t kSlack = 64;  // readable bytes behind a table
constexpr int64_t kTableRows = 37;
constexpr float kGuard = 12345.0f;

// Random tables of one shape in the three types, and what each holds as floats.
struct Tables {
  Tables(int64_t rows, int64_t width, uint32_t seed) {
    std::mt19937 random(seed);
    f32 = RandomFloats(seed)(rows * width, -3, 3);
    scale = RandomFloats(seed + 1)(rows, -0.1f, 0.1f);
    f16.resize(rows * width + kSlack);
    i8.resize(rows * width + kSlack);
    for (int64_t i = 0; i < rows * width; ++i) {
      f16[i] = static_cast<uint16_t>((random() & 0x83FF) | (random() % 31) << 10);
      i8[i] = static_cast<int8_t>(random());
      from_f16.push_back(HalfToFloat(f16[i]));
      from_i8.push_back(static_cast<float>(i8[i]) * scale[i / width]);
    }
    all = {{"F32", {.f32 = f32.data(), .rows = rows, .width = width}, &f32},
           {"F16", {.f16 = f16.data(), .rows = rows, .width = width}, &from_f16},
           {"I8", {.i8 = i8.data(), .scale = scale.data(), .rows = rows, .width = width}, &from_i8}};
  }
  struct One {
    std::string name;
    EmbeddingTable table;
    const std::vector<float>* floats;  // [rows, width]
  };
  std::vector<float> f32, scale, from_f16, from_i8;
  std::vector<uint16_t> f16;
  std::vector<int8_t> i8;
  std::vector<One> all;
};

std::vector<int32_t> RandomIds(int64_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < n; ++i) ids.push_back(static_cast<int32_t>(random() % kTableRows));
  if (n > 0) ids.back() = kTableRows - 1;  // whatever is read behind the table's end
  return ids;
}

constexpr int64_t kWidths[] = {1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 130};
constexpr int64_t kCounts[] = {0, 1, 2, 7, 17, 63, 64, 65};

TEST(GatherTest, RowsAreThoseOfAPlainLoop) {
  for (const int64_t width : kWidths) {
    const Tables tables(kTableRows, width, static_cast<uint32_t>(width));
    for (const Tables::One& one : tables.all) {
      for (const int64_t count : kCounts) {
        for (const int64_t gap : {0, 3}) {
          SCOPED_TRACE(::testing::Message() << one.name << " " << count << " x " << width << " + " << gap);
          const std::vector<int32_t> ids = RandomIds(count, 7);
          const int64_t stride = width + gap;
          std::vector<float> want(count * stride + 1, kGuard), got = want;
          for (int64_t r = 0; r < count; ++r) {
            for (int64_t j = 0; j < width; ++j) want[r * stride + j] = (*one.floats)[ids[r] * width + j];
          }
          GatherRows(one.table, ids.data(), {.data = got.data(), .rows = count, .stride = stride});
          ASSERT_EQ(Bits(got), Bits(want));
        }
      }
    }
  }
}

TEST(GatherTest, BagsAreSummedInOrder) {
  const std::vector<int32_t> offsets = {0, 0, 1, 3, 3, 20, 65};
  const int64_t count = static_cast<int64_t>(offsets.size()) - 1;
  const std::vector<int32_t> ids = RandomIds(offsets.back(), 9);
  for (const int64_t width : kWidths) {
    const Tables tables(kTableRows, width, static_cast<uint32_t>(width) + 100);
    for (const Tables::One& one : tables.all) {
      SCOPED_TRACE(::testing::Message() << one.name << " x " << width);
      const int64_t stride = width + 2;
      std::vector<float> sums(count * stride, kGuard), means = sums, got_sums = sums, got_means = sums;
      for (int64_t r = 0; r < count; ++r) {
        const float bag = static_cast<float>(offsets[r + 1] - offsets[r]);
        for (int64_t j = 0; j < width; ++j) {
          float sum = 0;
          for (int32_t i = offsets[r]; i < offsets[r + 1]; ++i) sum += (*one.floats)[ids[i] * width + j];
          sums[r * stride + j] = sum;
          means[r * stride + j] = bag > 1 ? sum * (1.0f / bag) : sum;
        }
      }
      GatherSums(one.table, ids.data(), offsets.data(),
                 {.data = got_sums.data(), .rows = count, .stride = stride});
      GatherMeans(one.table, ids.data(), offsets.data(),
                  {.data = got_means.data(), .rows = count, .stride = stride});
      ASSERT_EQ(Bits(got_sums), Bits(sums));
      ASSERT_EQ(Bits(got_means), Bits(means));
    }
  }
}

TEST(GatherTest, EveryHalfConvertsExactly) {
  std::vector<uint16_t> halves;
  std::vector<float> want;
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    if ((bits & 0x7C00) == 0x7C00) continue;  // no number
    halves.push_back(static_cast<uint16_t>(bits));
    want.push_back(HalfToFloat(halves.back()));
  }
  const auto count = static_cast<int64_t>(halves.size());
  std::vector<float> got(halves.size());
  const int32_t id = 0;
  halves.resize(halves.size() + kSlack);
  GatherRows({.f16 = halves.data(), .rows = 1, .width = count}, &id,
             {.data = got.data(), .rows = 1, .stride = count});
  EXPECT_EQ(Bits(got), Bits(want));
}

TEST(GatherTest, EveryByteIsScaledWithOneRounding) {
  const std::vector<float> scales = {0.0f, 1.0f, 1.0f / 127, -0.3f, 1e-40f, 2.6e36f};
  std::vector<int8_t> bytes;
  std::vector<int32_t> ids;
  std::vector<float> want;
  for (size_t r = 0; r < scales.size(); ++r) {
    ids.push_back(static_cast<int32_t>(r));
    for (int i = -128; i < 128; ++i) {
      bytes.push_back(static_cast<int8_t>(i));
      want.push_back(static_cast<float>(static_cast<double>(i) * scales[r]));
    }
  }
  std::vector<float> got(want.size());
  bytes.resize(bytes.size() + kSlack);
  const auto rows = static_cast<int64_t>(scales.size());
  GatherRows({.i8 = bytes.data(), .scale = scales.data(), .rows = rows, .width = 256}, ids.data(),
             {.data = got.data(), .rows = rows, .stride = 256});
  for (size_t i = 0; i < want.size(); ++i) EXPECT_EQ(got[i], want[i]) << i;
}

}  // namespace
}  // namespace dinghy::ops
