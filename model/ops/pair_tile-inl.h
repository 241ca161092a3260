// A register tile whose multiplications are fewer than its products, for processors that add beside their
// fused multiply-adds. Of two inputs i and j (Winograd, "A new algorithm for inner product", 1968)
//   x_i w_i + x_j w_j = (x_i + w_j) (x_j + w_i) - x_i x_j - w_i w_j,
// whose last two terms are sums over a row of x and over a column of w, made once. Zen 4 has one 512-bit
// fused multiply-add and one addition a cycle: two in five columns by sums keep both busy, the rest by plain
// products. i and j lie half of the inputs apart.
//
// The sums of x and w want factors of one size, or the difference cancels: rows and weights come scaled by
// powers of two to less than 1, and so the error is that of products of numbers below 1, summed.
// Compiled once per Highway target.

#if defined(DINGHY_MODEL_OPS_PAIR_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DINGHY_MODEL_OPS_PAIR_TILE_INL_H_
#undef DINGHY_MODEL_OPS_PAIR_TILE_INL_H_
#else
#define DINGHY_MODEL_OPS_PAIR_TILE_INL_H_
#endif

#include <bit>
#include <cstdint>

#include "hwy/highway.h"
#include "model/ops/row_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dinghy::ops {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_AVX3

// Of so many vectors of columns, how many go by sums: the first ones.
constexpr int SummedVectors(int vectors) { return (vectors * 2 + 2) / 5; }

// Of rows that are zeros, or as good as that.
constexpr float kLeastPower = -60;

HWY_INLINE Vec TimesPowerOfTwo(Tag d, Vec v, float power) {
  return Vec{_mm512_scalef_ps(v.raw, hn::Set(d, power).raw)};
}
HWY_INLINE HalfVec TimesPowerOfTwo(HalfTag d, HalfVec v, float power) {
  return HalfVec{_mm256_scalef_ps(v.raw, hn::Set(d, power).raw)};
}

// out [n] = x times `scale` (null: 1) and 2^-power, for the power at or above `least` that makes all less
// than
// 1. The power.
inline float ScaleRow(const float* x, const float* scale, int64_t n, float least, float* out) {
  const Tag d;
  constexpr int64_t lanes = static_cast<int64_t>(hn::MaxLanes(Tag()));
  Vec largest = hn::Zero(d);
  for (int64_t i = 0; i < n; i += lanes) {
    Vec v = LoadCount(d, x + i, n - i);
    if (scale != nullptr) v = hn::Mul(v, LoadCount(d, scale + i, n - i));
    StoreCount(v, d, out + i, n - i);
    largest = hn::Max(largest, hn::Abs(v));
  }
  const auto bits = std::bit_cast<int32_t>(hn::GetLane(hn::MaxOfLanes(d, largest)));
  const float power = HWY_MAX(least, static_cast<float>((bits >> 23) - 126));
  for (int64_t i = 0; i < n; i += lanes) {
    StoreCount(TimesPowerOfTwo(d, LoadCount(d, out + i, n - i), -power), d, out + i, n - i);
  }
  return power;
}

// packed [in + 2]: x [in] as scaled, the sum of its x_i x_j, and the power of its scale.
inline void PackRow(const float* x, const float* scale, int64_t in, float* packed) {
  const Tag d;
  constexpr int64_t lanes = static_cast<int64_t>(hn::MaxLanes(Tag()));
  const float power = ScaleRow(x, scale, in, kLeastPower, packed);
  const int64_t half = in / 2;
  Vec sum = hn::Zero(d);
  for (int64_t i = 0; i < half; i += lanes) {
    const int64_t left = half - i;
    sum = hn::MulAdd(LoadCount(d, packed + i, left), LoadCount(d, packed + half + i, left), sum);
  }
  packed[in] = hn::GetLane(hn::SumOfLanes(d, sum));
  packed[in + 1] = power;
}

// made [in, stride] = diag(query) product + key 2^-power, and column_sums [stride]: of its w_i w_j. Whole
// vectors, and perhaps half a one.
struct MakeArgs {
  const float* key;
  const float* product;
  const float* query;
  float power;
  int64_t in;
  int64_t stride;
  float* made;
  float* column_sums;
};
template <class D>
HWY_INLINE void MakeColumns(D d, const MakeArgs& m, int64_t column) {
  const auto make = [&](int64_t i) HWY_ATTR {
    const int64_t at = i * m.stride + column;
    const auto weight = hn::MulAdd(hn::Set(d, m.query[i]), hn::LoadU(d, m.product + at),
                                   TimesPowerOfTwo(d, hn::LoadU(d, m.key + at), -m.power));
    hn::StoreU(weight, d, m.made + at);
    return weight;
  };
  const int64_t half = m.in / 2;
  auto sum = hn::Zero(d);
  for (int64_t i = 0; i < half; ++i) sum = hn::MulAdd(make(i), make(i + half), sum);
  if (m.in % 2 != 0) make(m.in - 1);
  hn::StoreU(sum, d, m.column_sums + column);
}
HWY_INLINE void MakeWeight(const MakeArgs& m) {
  constexpr int64_t lanes = static_cast<int64_t>(hn::MaxLanes(Tag()));
  int64_t column = 0;
  for (; column + lanes <= m.stride; column += lanes) MakeColumns(Tag(), m, column);
  if (column < m.stride) MakeColumns(HalfTag(), m, column);
}

// As RowTile, with rows of `a` that end with two more values: the sum of the row's x_i x_j, and the power of
// two that its results are to be multiplied with with `power` more. column_sums: of the w_i w_j of
// the summed columns; written instead where `b` makes the weight.
template <int kRows, int kVectors, bool kHalf, class Job>
HWY_INLINE void PairTile(const RowTileArgs& t, float power, const float* column_sums, int64_t row, Job& job) {
  const Tag d;
  const HalfTag dh;
  constexpr int64_t lanes = static_cast<int64_t>(hn::MaxLanes(Tag()));
  constexpr int kSummed = SummedVectors(kVectors);
  const int64_t half = t.k / 2;
  const GivenRows b{t.b, t.b_stride};
  const float* a = t.a + row * t.a_stride;
  TileSums<kRows, kVectors, kHalf> sums;
  sums.Clear();
  const auto add = [&](int64_t i) HWY_ATTR {
    const int64_t j = i + half;
    Vec x_i[kRows], x_j[kRows];
    HWY_UNROLL(8)
    for (int r = 0; r < kRows; ++r) {
      x_i[r] = hn::Set(d, a[r * t.a_stride + i]);
      x_j[r] = hn::Set(d, a[r * t.a_stride + j]);
    }
    HWY_UNROLL(8)
    for (int v = 0; v < kVectors; ++v) {
      Vec w_i = b(d, i, v * lanes), w_j = b(d, j, v * lanes);
      // Else they are loaded for each row anew, more than the processor can.
      asm("" : "+v"(w_i.raw), "+v"(w_j.raw));
      HWY_UNROLL(8)
      for (int r = 0; r < kRows; ++r) {
        Vec& sum = sums.sum[r][v];
        if (v < kSummed) {
          sum = hn::MulAdd(hn::Add(x_i[r], w_j), hn::Add(x_j[r], w_i), sum);
        } else {
          sum = hn::MulAdd(x_j[r], w_j, hn::MulAdd(x_i[r], w_i, sum));
        }
      }
    }
    if constexpr (kHalf) {
      const HalfVec w_i = b(dh, i, kVectors * lanes), w_j = b(dh, j, kVectors * lanes);
      HWY_UNROLL(8)
      for (int r = 0; r < kRows; ++r) {
        sums.half[r] = hn::MulAdd(hn::LowerHalf(dh, x_j[r]), w_j,
                                  hn::MulAdd(hn::LowerHalf(dh, x_i[r]), w_i, sums.half[r]));
      }
    }
  };
  while (job.left() > half) job.Step();
  const int64_t beside = job.left();
  int64_t i = 0;
  for (; i < beside; ++i) {
    add(i);
    job.Step();
  }
  for (; i < half; ++i) add(i);
  if (t.k % 2 != 0) sums.Add(a, t.a_stride, b, t.k - 1);
  HWY_UNROLL(8)
  for (int r = 0; r < kRows; ++r) {
    const float* end = a + r * t.a_stride + t.k;
    float* out = t.c + (row + r) * t.c_stride;
    const float row_power = end[1] + power;
    HWY_UNROLL(8)
    for (int v = 0; v < kVectors; ++v) {
      Vec sum = sums.sum[r][v];
      if (v < kSummed) sum = hn::Sub(hn::Sub(sum, hn::Set(d, end[0])), hn::LoadU(d, column_sums + v * lanes));
      hn::StoreU(hn::Add(TimesPowerOfTwo(d, sum, row_power), hn::LoadU(d, t.bias + v * lanes)), d,
                 out + v * lanes);
    }
    if constexpr (kHalf) {
      const HalfVec sum = TimesPowerOfTwo(dh, sums.half[r], row_power);
      hn::StoreU(hn::Add(sum, hn::LoadU(dh, t.bias + kVectors * lanes)), dh, out + kVectors * lanes);
    }
  }
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace dinghy::ops
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
