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

// Where a tile takes row i of b from: as it lies in memory.
struct GivenRows {
  const float* b;
  int64_t stride;

  template <class D>
  HWY_INLINE hn::Vec<D> operator()(D d, int64_t i, int64_t column) const {
    return hn::LoadU(d, b + i * stride + column);
  }
};

// What a tile does beside its products: left() steps that have nothing to do with it, at most one for each k.
struct NoJob {
  HWY_INLINE int64_t left() const { return 0; }
  HWY_INLINE void Step() const {}
};

// The sums of a tile, in registers: where a loop over them is not unrolled, GCC keeps them in memory.
template <int kRows, int kVectors, bool kHalf>
struct TileSums {
  static constexpr int kArray = kVectors > 0 ? kVectors : 1;
  static constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(Tag()));
  Vec sum[kRows][kArray];
  HalfVec half[kRows];

  HWY_INLINE void Clear() {
    HWY_UNROLL(8)
    for (int r = 0; r < kRows; ++r) {
      HWY_UNROLL(8)
      for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::Zero(Tag());
      if constexpr (kHalf) half[r] = hn::Zero(HalfTag());
    }
  }

  // Adds column i of a [kRows, k] times row i of b.
  template <class RowsOfB>
  HWY_INLINE void Add(const float* a, int64_t a_stride, const RowsOfB& b, int64_t i) {
    Vec weight[kArray];
    HalfVec half_weight;
    HWY_UNROLL(8)
    for (int v = 0; v < kVectors; ++v) weight[v] = b(Tag(), i, v * kLanes);
    if constexpr (kHalf) half_weight = b(HalfTag(), i, kVectors * kLanes);
    HWY_UNROLL(8)
    for (int r = 0; r < kRows; ++r) {
      const Vec x = hn::Set(Tag(), a[r * a_stride + i]);
      HWY_UNROLL(8)
      for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::MulAdd(x, weight[v], sum[r][v]);
      if constexpr (kHalf) half[r] = hn::MulAdd(hn::LowerHalf(HalfTag(), x), half_weight, half[r]);
    }
  }
};

// kRows rows by `columns` columns, which kVectors vectors and, with kHalf, half a one behind them just hold.
// The job is done before anything is stored.
template <int kRows, int kVectors, bool kHalf, class RowsOfB, class Job>
HWY_INLINE void RowTile(const RowTileArgs& t, int64_t row, int64_t columns, const RowsOfB& b, Job& job) {
  const Tag d;
  const HalfTag dh;
  constexpr int64_t lanes = static_cast<int64_t>(hn::MaxLanes(Tag()));
  const float* a = t.a + row * t.a_stride;
  float* c = t.c + row * t.c_stride;
  TileSums<kRows, kVectors, kHalf> sums;
  sums.Clear();
  while (job.left() > t.k) job.Step();
  const int64_t beside = job.left();
  int64_t i = 0;
  for (; i < beside; ++i) {
    sums.Add(a, t.a_stride, b, i);
    job.Step();
  }
  for (; i < t.k; ++i) sums.Add(a, t.a_stride, b, i);
  if (columns == kVectors * lanes + (kHalf ? lanes / 2 : 0) && t.bias != nullptr && !t.accumulate) {
    HWY_UNROLL(8)
    for (int r = 0; r < kRows; ++r) {
      float* out = c + r * t.c_stride;
      HWY_UNROLL(8)
      for (int v = 0; v < kVectors; ++v)
        hn::StoreU(hn::Add(sums.sum[r][v], hn::LoadU(d, t.bias + v * lanes)), d, out + v * lanes);
      if constexpr (kHalf)
        hn::StoreU(hn::Add(sums.half[r], hn::LoadU(dh, t.bias + kVectors * lanes)), dh,
                   out + kVectors * lanes);
    }
    return;
  }
  HWY_UNROLL(8)
  for (int r = 0; r < kRows; ++r) {
    float* out = c + r * t.c_stride;
    HWY_UNROLL(8)
    for (int v = 0; v < kVectors; ++v) Finish(t, d, sums.sum[r][v], v * lanes, columns, out);
    if constexpr (kHalf) Finish(t, dh, sums.half[r], kVectors * lanes, columns, out);
  }
}

template <int kVectors, bool kHalf>
HWY_NOINLINE void RowTiles(const RowTileArgs& t, int64_t rows, int64_t columns) {
  constexpr int kRows = RowsOf(kVectors + (kHalf ? 1 : 0));
  const GivenRows b{t.b, t.b_stride};
  NoJob job;
  int64_t r = 0;
  for (; r + kRows <= rows; r += kRows) RowTile<kRows, kVectors, kHalf>(t, r, columns, b, job);
  if (r + 4 <= rows) RowTile<4, kVectors, kHalf>(t, r, columns, b, job), r += 4;
  if (r + 2 <= rows) RowTile<2, kVectors, kHalf>(t, r, columns, b, job), r += 2;
  for (; r < rows; ++r) RowTile<1, kVectors, kHalf>(t, r, columns, b, job);
}

// run<kVectors, kHalf>(first column, columns) for panel after panel, each as wide as a tile can be.
template <class Run>
HWY_INLINE void ForPanels(int64_t columns, const Run& run) {
  constexpr int64_t lanes = static_cast<int64_t>(hn::MaxLanes(Tag()));
  for (int64_t first = 0; first < columns;) {
    const int64_t left = columns - first;
    int64_t vectors = left / lanes;
    bool half = false;
    if (vectors >= kMostVectors) {
      vectors = kMostVectors;
    } else if (left % lanes > 0) {
      half = HWY_TARGET == HWY_AVX3 && left % lanes <= lanes / 2;
      vectors += half ? 0 : 1;
    }
    const int64_t width = HWY_MIN(left, vectors * lanes + (half ? lanes / 2 : 0));
    switch (vectors * 2 + (half ? 1 : 0)) {
#if HWY_TARGET == HWY_AVX3
      case 10:
        run.template operator()<5, false>(first, width);
        break;
      case 9:
        run.template operator()<4, true>(first, width);
        break;
      case 8:
        run.template operator()<4, false>(first, width);
        break;
      case 7:
        run.template operator()<3, true>(first, width);
        break;
      case 6:
        run.template operator()<3, false>(first, width);
        break;
      case 5:
        run.template operator()<2, true>(first, width);
        break;
      case 3:
        run.template operator()<1, true>(first, width);
        break;
      case 1:
        run.template operator()<0, true>(first, width);
        break;
#endif
      case 4:
        run.template operator()<2, false>(first, width);
        break;
      default:
        run.template operator()<1, false>(first, width);
        break;
    }
    first += width;
  }
}

// The arguments of the same product from column `first` on.
HWY_INLINE RowTileArgs FromColumn(RowTileArgs t, int64_t first) {
  t.b += first;
  if (t.bias != nullptr) t.bias += first;
  t.c += first;
  return t;
}

// rows x columns of c.
HWY_INLINE void RowProduct(const RowTileArgs& t, int64_t rows, int64_t columns) {
  ForPanels(columns, [&]<int kVectors, bool kHalf>(int64_t first, int64_t width) {
    RowTiles<kVectors, kHalf>(FromColumn(t, first), rows, width);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace dinghy::ops
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
