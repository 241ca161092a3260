#include <algorithm>

#include "model/ops/vector_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/ops/gather.cc"
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"  // must precede highway.h
#include "hwy/highway.h"
#include "model/ops/gather.h"
#include "model/ops/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dinghy::ops {
namespace HWY_NAMESPACE {

// Row r + kAhead is fetched while row r is copied: where a table does not fit in the caches, what counts is
// how many rows are on their way at a time. From 8 to 32 all are alike on Zen 4.
constexpr int64_t kAhead = 16;

HWY_INLINE void PrefetchBytes(const void* begin, int64_t bytes) {
  constexpr int64_t kLine = 64;
  const char* p = static_cast<const char*>(begin);
  for (int64_t b = 0; b < bytes; b += kLine) hwy::Prefetch(p + b);
  hwy::Prefetch(p + bytes - 1);  // a row need not begin where a line does
}

// The three kinds of table: At(r) has Load, a vector of columns from j on, and LoadTail, of which only the
// first `count` lanes are used.
struct F32Table {
  struct Row {
    const float* row;
    HWY_INLINE Vec Load(Tag d, int64_t j) const { return hn::LoadU(d, row + j); }
    HWY_INLINE Vec LoadTail(Tag d, int64_t j, int64_t count) const {
      return HWY_NAMESPACE::LoadTail(d, row + j, count);
    }
  };
  HWY_INLINE Row At(int64_t r) const { return {table.f32 + r * table.width}; }
  HWY_INLINE void Prefetch(int64_t r) const {
    PrefetchBytes(table.f32 + r * table.width, table.width * int64_t{sizeof(float)});
  }
  EmbeddingTable table;
};

struct F16Table {
  struct Row {
    const hwy::float16_t* row;
    HWY_INLINE Vec Load(Tag d, int64_t j) const {
      const hn::Rebind<hwy::float16_t, Tag> d16;
      return hn::PromoteTo(d, hn::LoadU(d16, row + j));
    }
    HWY_INLINE Vec LoadTail(Tag d, int64_t j, int64_t) const { return Load(d, j); }
  };
  HWY_INLINE Row At(int64_t r) const {
    return {reinterpret_cast<const hwy::float16_t*>(table.f16 + r * table.width)};
  }
  HWY_INLINE void Prefetch(int64_t r) const {
    PrefetchBytes(table.f16 + r * table.width, table.width * int64_t{sizeof(uint16_t)});
  }
  EmbeddingTable table;
};

struct I8Table {
  struct Row {
    const int8_t* row;
    Vec scale;
    HWY_INLINE Vec Load(Tag d, int64_t j) const {
      const hn::Rebind<int8_t, Tag> d8;
      const hn::RebindToSigned<Tag> d32;
      return hn::Mul(hn::ConvertTo(d, hn::PromoteTo(d32, hn::LoadU(d8, row + j))), scale);
    }
    HWY_INLINE Vec LoadTail(Tag d, int64_t j, int64_t) const { return Load(d, j); }
  };
  HWY_INLINE Row At(int64_t r) const { return {table.i8 + r * table.width, hn::Set(Tag(), table.scale[r])}; }
  HWY_INLINE void Prefetch(int64_t r) const {
    PrefetchBytes(table.i8 + r * table.width, table.width);
    hwy::Prefetch(table.scale + r);
  }
  EmbeddingTable table;
};

template <class Table>
void CopyRows(const Table& source, const int32_t* ids, const GatheredRows& dst) {
  const Tag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t width = source.table.width;
  for (int64_t r = 0; r < std::min(kAhead, dst.rows); ++r) source.Prefetch(ids[r]);
  for (int64_t r = 0; r < dst.rows; ++r) {
    if (r + kAhead < dst.rows) source.Prefetch(ids[r + kAhead]);
    const auto row = source.At(ids[r]);
    float* out = dst.data + r * dst.stride;
    int64_t j = 0;
    for (; j + lanes <= width; j += lanes) hn::StoreU(row.Load(d, j), d, out + j);
    if (j < width) StoreTail(row.LoadTail(d, j, width - j), d, out + j, width - j);
  }
}

// out = out * scale; the sums of a bag, which is by then in the first-level cache.
HWY_INLINE void ScaleRow(float scale, float* out, int64_t width) {
  const Tag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const Vec s = hn::Set(d, scale);
  int64_t j = 0;
  for (; j + lanes <= width; j += lanes) hn::StoreU(hn::Mul(hn::LoadU(d, out + j), s), d, out + j);
  if (j < width) StoreTail(hn::Mul(LoadTail(d, out + j, width - j), s), d, out + j, width - j);
}

template <class Table>
void PoolRows(const Table& source, const int32_t* ids, const int32_t* offsets, bool mean,
              const GatheredRows& dst) {
  const Tag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t width = source.table.width;
  const int32_t last = dst.rows > 0 ? offsets[dst.rows] : 0;
  for (int64_t r = 0; r < dst.rows; ++r) {
    const int32_t begin = offsets[r];
    const int32_t end = offsets[r + 1];
    float* out = dst.data + r * dst.stride;
    std::memset(out, 0, static_cast<size_t>(width) * sizeof(float));
    for (int32_t i = begin; i < end; ++i) {
      if (i + kAhead < last) source.Prefetch(ids[i + kAhead]);
      const auto row = source.At(ids[i]);
      int64_t j = 0;
      for (; j + lanes <= width; j += lanes) {
        hn::StoreU(hn::Add(row.Load(d, j), hn::LoadU(d, out + j)), d, out + j);
      }
      if (j < width) {
        const int64_t count = width - j;
        StoreTail(hn::Add(row.LoadTail(d, j, count), LoadTail(d, out + j, count)), d, out + j, count);
      }
    }
    if (mean && end - begin > 1) ScaleRow(1.0f / static_cast<float>(end - begin), out, width);
  }
}

void GatherRows(const EmbeddingTable& table, const int32_t* ids, const GatheredRows& dst) {
  if (table.f32 != nullptr) return CopyRows(F32Table{table}, ids, dst);
  if (table.f16 != nullptr) return CopyRows(F16Table{table}, ids, dst);
  CopyRows(I8Table{table}, ids, dst);
}

void GatherBags(const EmbeddingTable& table, const int32_t* ids, const int32_t* offsets, bool mean,
                const GatheredRows& dst) {
  if (table.f32 != nullptr) return PoolRows(F32Table{table}, ids, offsets, mean, dst);
  if (table.f16 != nullptr) return PoolRows(F16Table{table}, ids, offsets, mean, dst);
  PoolRows(I8Table{table}, ids, offsets, mean, dst);
}

}  // namespace HWY_NAMESPACE
}  // namespace dinghy::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dinghy::ops {

HWY_EXPORT(GatherRows);
HWY_EXPORT(GatherBags);

void GatherRows(const EmbeddingTable& table, const int32_t* ids, const GatheredRows& dst) {
  HWY_DYNAMIC_DISPATCH(GatherRows)(table, ids, dst);
}
void GatherSums(const EmbeddingTable& table, const int32_t* ids, const int32_t* offsets,
                const GatheredRows& dst) {
  HWY_DYNAMIC_DISPATCH(GatherBags)(table, ids, offsets, /*mean=*/false, dst);
}
void GatherMeans(const EmbeddingTable& table, const int32_t* ids, const int32_t* offsets,
                 const GatheredRows& dst) {
  HWY_DYNAMIC_DISPATCH(GatherBags)(table, ids, offsets, /*mean=*/true, dst);
}

}  // namespace dinghy::ops
#endif  // HWY_ONCE
