// The register tiles of a product c = a b + bias whose rows do not know each other: each result is
// one fused multiply-add after the other, over k in rising order, then plus the bias and the old c. A row's
// bits depend on the row, b and the bias alone, whatever tile it falls into. Compiled once per Highway
// target.

#if defined(DINGHY_MODEL_OPS_ROW_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DINGHY_MODEL_OPS_ROW_TILE_INL_H_
#undef DINGHY_MODEL_OPS_ROW_TILE_INL_H_
#else
#define DINGHY_MODEL_OPS_ROW_TILE_INL_H_
#endif

#include <cstdint>

#include "hwy/highway.h"
#include "model/ops/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dinghy::ops {
namespace HWY_NAMESPACE {

struct RowTileArgs {
  const float* a;  // [rows, k]
  int64_t a_stride;
  int64_t k;
  const float* b;  // [k, columns padded to whole vectors]
  int64_t b_stride;
  const float* bias;  // [columns padded], or null
  float* c;           // [rows, columns]; nothing between the rows is touched
  int64_t c_stride;
  bool accumulate;  // c += instead of c =
};

#if HWY_TARGET == HWY_AVX3
// 5 rows of 5 vectors, the 5 of b and a broadcast: 31 of 32 registers.
constexpr int kMostVectors = 5;
constexpr int RowsOf(int vectors) { return vectors >= 5 ? 5 : vectors == 4 ? 6 : 8; }
#else
// 6 rows of 2 vectors, 2 of b and a broadcast: 15 of 16 registers.
constexpr int kMostVectors = 2;
constexpr int RowsOf(int vectors) { return vectors >= 2 ? 6 : 8; }
#endif

using HalfTag = hn::Half<Tag>;
using HalfVec = hn::Vec<HalfTag>;

template <class D>
HWY_INLINE hn::Vec<D> LoadCount(D d, const float* p, int64_t count) {
  if (count >= static_cast<int64_t>(hn::MaxLanes(d))) return hn::LoadU(d, p);
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2
  return hn::MaskedLoad(hn::FirstN(d, static_cast<size_t>(count)), d, p);
#else
  return LoadTail(d, p, count);
#endif
}

template <class D>
HWY_INLINE void StoreCount(hn::Vec<D> v, D d, float* p, int64_t count) {
  if (count >= static_cast<int64_t>(hn::MaxLanes(d))) return hn::StoreU(v, d, p);
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2
  hn::BlendedStore(v, hn::FirstN(d, static_cast<size_t>(count)), d, p);
#else
  StoreTail(v, d, p, count);
#endif
}

// The bias comes last, where the sum of the products is rounded with it once.
template <class D>
HWY_INLINE void Finish(const RowTileArgs& t, D d, hn::Vec<D> sum, int64_t column, int64_t columns, float* c) {
  if (t.bias != nullptr) sum = hn::Add(sum, hn::LoadU(d, t.bias + column));
  if (t.accumulate) sum = hn::Add(sum, LoadCount(d, c + column, columns - column));
  StoreCount(sum, d, c + column, columns - column);
}

// kRows rows by `columns` columns, which kVectors vectors and, with kHalf, half a one behind them just hold.
template <int kRows, int kVectors, bool kHalf>
HWY_INLINE void RowTile(const RowTileArgs& t, int64_t row, int64_t columns) {
  const Tag d;
  const HalfTag dh;
  constexpr int64_t lanes = static_cast<int64_t>(hn::MaxLanes(Tag()));
  constexpr int kArray = kVectors > 0 ? kVectors : 1;
  const float* a = t.a + row * t.a_stride;
  const float* b = t.b;
  float* c = t.c + row * t.c_stride;
  Vec sum[kRows][kArray];
  HalfVec half[kRows];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::Zero(d);
    if constexpr (kHalf) half[r] = hn::Zero(dh);
  }
  for (int64_t i = 0; i < t.k; ++i, b += t.b_stride) {
    Vec weight[kArray];
    HalfVec half_weight;
    for (int v = 0; v < kVectors; ++v) weight[v] = hn::LoadU(d, b + v * lanes);
    if constexpr (kHalf) half_weight = hn::LoadU(dh, b + kVectors * lanes);
    for (int r = 0; r < kRows; ++r) {
      const Vec x = hn::Set(d, a[r * t.a_stride + i]);
      for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::MulAdd(x, weight[v], sum[r][v]);
      if constexpr (kHalf) half[r] = hn::MulAdd(hn::LowerHalf(dh, x), half_weight, half[r]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    float* out = c + r * t.c_stride;
    for (int v = 0; v < kVectors; ++v) {
      Finish(t, d, sum[r][v], v * lanes, columns, out);
    }
    if constexpr (kHalf) Finish(t, dh, half[r], kVectors * lanes, columns, out);
  }
}

template <int kVectors, bool kHalf>
HWY_NOINLINE void RowTiles(const RowTileArgs& t, int64_t rows, int64_t columns) {
  constexpr int kRows = RowsOf(kVectors + (kHalf ? 1 : 0));
  int64_t r = 0;
  for (; r + kRows <= rows; r += kRows) RowTile<kRows, kVectors, kHalf>(t, r, columns);
  if (r + 4 <= rows) RowTile<4, kVectors, kHalf>(t, r, columns), r += 4;
  if (r + 2 <= rows) RowTile<2, kVectors, kHalf>(t, r, columns), r += 2;
  for (; r < rows; ++r) RowTile<1, kVectors, kHalf>(t, r, columns);
}

// rows x columns of c.
HWY_INLINE void RowProduct(RowTileArgs t, int64_t rows, int64_t columns) {
  constexpr int64_t lanes = static_cast<int64_t>(hn::MaxLanes(Tag()));
  while (columns > 0) {
    int64_t vectors = columns / lanes;
    bool half = false;
    if (vectors >= kMostVectors) {
      vectors = kMostVectors;
    } else if (columns % lanes > 0) {
      half = HWY_TARGET == HWY_AVX3 && columns % lanes <= lanes / 2;
      vectors += half ? 0 : 1;
    }
    const int64_t width = HWY_MIN(columns, vectors * lanes + (half ? lanes / 2 : 0));
    switch (vectors * 2 + (half ? 1 : 0)) {
#if HWY_TARGET == HWY_AVX3
      case 10:
        RowTiles<5, false>(t, rows, width);
        break;
      case 9:
        RowTiles<4, true>(t, rows, width);
        break;
      case 8:
        RowTiles<4, false>(t, rows, width);
        break;
      case 7:
        RowTiles<3, true>(t, rows, width);
        break;
      case 6:
        RowTiles<3, false>(t, rows, width);
        break;
      case 5:
        RowTiles<2, true>(t, rows, width);
        break;
      case 3:
        RowTiles<1, true>(t, rows, width);
        break;
      case 1:
        RowTiles<0, true>(t, rows, width);
        break;
#endif
      case 4:
        RowTiles<2, false>(t, rows, width);
        break;
      default:
        RowTiles<1, false>(t, rows, width);
        break;
    }
    columns -= width;
    t.b += width;
    if (t.bias != nullptr) t.bias += width;
    t.c += width;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace dinghy::ops
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
