#include "model/ops/softmax_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <vector>

#include "tests/model/ops/random_floats.h"

namespace dinghy::ops {
namespace {

struct Mask {
  bool causal = false;
  int64_t window = 0;
  int64_t pads = 0;
};

struct Shape {
  int64_t rows = 0;
  int64_t head_width = 0;
  int64_t value_width = 0;
};

// Query, key and value of every row, in rows that are wider than them.
struct History {
  static constexpr int64_t kGap = 3;

  explicit History(const Shape& s)
      : shape(s),
        q(RandomFloats(1)(s.rows * (s.head_width + kGap), -4, 4)),
        k(RandomFloats(2)(s.rows * (s.head_width + kGap), -2, 2)),
        v(RandomFloats(3)(s.rows * (s.value_width + kGap) + 16)) {
    for (float& value : q) value /= std::sqrt(static_cast<float>(s.head_width));
  }

  const float* Query(int64_t row) const { return q.data() + row * (shape.head_width + kGap); }
  const float* Key(int64_t row) const { return k.data() + row * (shape.head_width + kGap); }
  const float* Value(int64_t row) const { return v.data() + row * (shape.value_width + kGap); }

  Shape shape;
  std::vector<float> q, k, v;
};

// Of rows [first, rows), [rows - first, value_width + kGap], with 99 between the rows.
std::vector<float> Attend(const History& history, const Mask& mask, int64_t rows, int64_t first) {
  const Shape& shape = history.shape;
  const int64_t columns = (rows + 15) / 16 * 16;
  const int64_t stride = shape.value_width + History::kGap;
  std::vector<float> keys(static_cast<size_t>(shape.head_width * columns));
  std::vector<float> weights(static_cast<size_t>(kQueryBlock * columns + 16), 99.0f);
  std::vector<float> out(static_cast<size_t>((rows - first) * stride), 99.0f);
  Transpose(history.Key(0), shape.head_width + History::kGap, rows, shape.head_width, keys.data(), columns);
  SoftmaxAttention({.rows = rows,
                    .first = first,
                    .causal = mask.causal,
                    .window = mask.window,
                    .pads = mask.pads,
                    .q = history.Query(first),
                    .q_stride = shape.head_width + History::kGap,
                    .keys = {keys.data(), shape.head_width, columns},
                    .values = history.Value(0),
                    .values_stride = stride,
                    .value_width = shape.value_width,
                    .out = out.data(),
                    .out_stride = stride},
                   weights.data());
  for (size_t i = weights.size() - 16; i < weights.size(); ++i) EXPECT_EQ(weights[i], 99.0f);
  return out;
}

// By the definition, pad behaviors one by one; in double.
std::vector<double> Reference(const History& history, const Mask& mask, int64_t row) {
  const Shape& shape = history.shape;
  const int64_t window = mask.window > 0 ? mask.window : shape.rows + mask.pads;
  double sum = 0;
  std::vector<double> out(static_cast<size_t>(shape.value_width));
  const auto add = [&](int64_t key) {
    double score = 0;
    for (int64_t i = 0; i < shape.head_width; ++i) {
      score += static_cast<double>(history.Query(row)[i]) * static_cast<double>(history.Key(key)[i]);
    }
    sum += std::exp(score);
    for (int64_t i = 0; i < shape.value_width; ++i) {
      out[i] += std::exp(score) * static_cast<double>(history.Value(key)[i]);
    }
  };
  // Pad behavior p stands at -p, and row 0 is the one at 0; it sees others like itself.
  for (int64_t key = row > 0 && mask.pads > 0 ? 1 - mask.pads : 0; key < shape.rows; ++key) {
    if (mask.causal && key > row) continue;
    if (std::abs(row - key) < window) add(std::max<int64_t>(key, 0));
  }
  for (double& value : out) value /= sum;
  return out;
}

void Compare(const Shape& shape, const Mask& mask) {
  SCOPED_TRACE(::testing::Message() << shape.rows << " rows, heads of " << shape.head_width << " and "
                                    << shape.value_width << ", causal " << mask.causal << ", window "
                                    << mask.window << ", pads " << mask.pads);
  const History history(shape);
  const int64_t stride = shape.value_width + History::kGap;
  const std::vector<float> got = Attend(history, mask, shape.rows, 0);
  for (int64_t row = 0; row < shape.rows; ++row) {
    const std::vector<double> want = Reference(history, mask, row);
    for (int64_t i = 0; i < stride; ++i) {
      const float value = got[row * stride + i];
      if (i >= shape.value_width) {
        ASSERT_EQ(value, 99.0f);
      } else {
        ASSERT_NEAR(static_cast<double>(value), want[i], 4e-6) << "row " << row << ", column " << i;
      }
    }
  }
}

TEST(SoftmaxAttentionTest, MatchesReference) {
  for (const int64_t rows : {1, 2, 15, 16, 17, 63, 65, 200}) {
    for (const int64_t width : {1, 8, 16, 25, 32, 50, 64}) {
      for (const bool causal : {false, true}) Compare({rows, width, width}, {.causal = causal});
    }
  }
  Compare({1000, 32, 32}, {.causal = true});
  Compare({100, 7, 40}, {});
}

TEST(SoftmaxAttentionTest, Windows) {
  for (const int64_t rows : {1, 15, 16, 17, 40, 65}) {
    for (const int64_t window : {1, 2, 15, 16, 17, 18, 33, 200}) {
      for (const bool causal : {false, true}) Compare({rows, 8, 5}, {.causal = causal, .window = window});
    }
  }
}

TEST(SoftmaxAttentionTest, Pads) {
  for (const int64_t rows : {1, 2, 16, 17, 40}) {
    for (const int64_t pads : {1, 2, 60}) {
      for (const int64_t window : {0, 1, 2, 17, 30, 50}) {
        Compare({rows, 8, 5}, {.causal = true, .window = window, .pads = pads});
      }
    }
  }
}

// Far apart scores leave the nearest alone, without infinities.
TEST(SoftmaxAttentionTest, LargeScores) {
  History history({40, 4, 4});
  for (float& value : history.q) value *= 1e4f;
  for (const float value : Attend(history, {.causal = true}, 40, 0)) EXPECT_TRUE(std::isfinite(value));
}

// A row's bits are the same with the rows before it as queries or without, and with newer rows or without.
TEST(SoftmaxAttentionTest, BitsOfARow) {
  for (const Mask& mask : {Mask{.causal = true}, Mask{.causal = true, .window = 20},
                           Mask{.causal = true, .window = 40, .pads = 7}, Mask{}, Mask{.window = 21}}) {
    const History history({67, 25, 19});
    const int64_t stride = 19 + History::kGap;
    for (const int64_t rows : {1, 16, 17, 33, 50, 64, 67}) {
      const std::vector<float> all = Attend(history, mask, mask.causal ? 67 : rows, 0);
      for (const int64_t first : {rows - 1, rows / 2}) {
        const std::vector<float> some = Attend(history, mask, rows, first);
        for (int64_t i = 0; i < (rows - first) * stride; ++i) {
          ASSERT_EQ(Bits(some[i]), Bits(all[first * stride + i])) << "rows " << rows << ", first " << first;
        }
      }
    }
  }
}

}  // namespace
}  // namespace dinghy::ops
