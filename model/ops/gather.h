// Rows of embedding tables, as floats. A table in F16 or I8 gives exactly what the F32 table of the same
// values would, bit for bit: F16 converts exactly, and I8 is the integer times its row's scale, rounded once.
//
//   GatherRows(table, ids, {.data = dst, .rows = 500, .stride = 64});
//
// Rows are prefetched, for tables that do not fit in the caches. Highway with run-time dispatch; the bits are
// those of a plain loop. Thread-safe.
#ifndef DINGHY_MODEL_OPS_GATHER_H_
#define DINGHY_MODEL_OPS_GATHER_H_

#include <cstdint>

namespace dinghy::ops {

// [rows, width], packed, borrowed; one of the three is not null. 64 bytes behind the last element of f16 and
// i8 may be read.
struct EmbeddingTable {
  const float* f32 = nullptr;
  const uint16_t* f16 = nullptr;  // the bits of IEEE 754 binary16, finite
  const int8_t* i8 = nullptr;
  const float* scale = nullptr;  // [rows], of i8
  int64_t rows = 0;
  int64_t width = 0;
};

// Where they go: [rows, the table's width], a row every `stride` floats. Nothing between rows is written.
struct GatheredRows {
  float* data = nullptr;
  int64_t rows = 0;
  int64_t stride = 0;
};

// dst row r is the table's row ids[r], which must be one of its rows.
void GatherRows(const EmbeddingTable& table, const int32_t* ids, const GatheredRows& dst);

// dst row r is the sum, or the mean, of the table's rows ids[offsets[r]] to ids[offsets[r + 1] - 1], added in
// that order; zeros where there is none.
void GatherSums(const EmbeddingTable& table, const int32_t* ids, const int32_t* offsets,
                const GatheredRows& dst);
void GatherMeans(const EmbeddingTable& table, const int32_t* ids, const int32_t* offsets,
                 const GatheredRows& dst);

}  // namespace dinghy::ops

#endif  // DINGHY_MODEL_OPS_GATHER_H_
