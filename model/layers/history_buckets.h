// Histories are computed in padded buckets, so that the shapes of their GEMMs are few and known at load time:
// a multiple of 16 rows, at most 15 of them padding. The bucket depends on the request's own length alone.
#ifndef DINGHY_MODEL_LAYERS_HISTORY_BUCKETS_H_
#define DINGHY_MODEL_LAYERS_HISTORY_BUCKETS_H_

#include <algorithm>
#include <cstdint>

#include "model/layers/inputs.h"
#include "model/layers/layer.h"
#include "model/ops/attention.h"

namespace dinghy {

inline constexpr int64_t kBucketRows = 16;

// Rows of the bucket for a history of `length`.
inline int64_t BucketRows(int64_t length) { return (length + kBucketRows - 1) / kBucketRows * kBucketRows; }
// Its index, for length >= 1.
inline int64_t BucketIndex(int64_t length) { return (length - 1) / kBucketRows; }
// The number of buckets for histories up to max_length.
inline int64_t BucketCount(int64_t max_length) { return BucketRows(max_length) / kBucketRows; }

// Copies the rows of `inputs` to [BucketRows(rows), width], packed, with zeros behind the last.
inline float* GatherBucket(const RunContext& context, const Inputs& inputs) {
  const int64_t rows = inputs.Rows(context);
  const int64_t width = inputs.width();
  float* out = context.scratch.Floats(BucketRows(rows) * width);
  inputs.CopyTo(context, out);
  std::fill(out + rows * width, out + BucketRows(rows) * width, 0.0f);
  return out;
}

// The rows of `inputs` transposed: [width, BucketRows(rows)].
inline Value GatherTransposed(const RunContext& context, const Inputs& inputs) {
  const int64_t rows = inputs.Rows(context);
  const int64_t columns = BucketRows(rows);
  float* out = context.scratch.Floats(inputs.width() * columns);
  ops::Scratch::Scope scope(context.scratch);
  const Value gathered = inputs.Gather(context);
  ops::Transpose(gathered.data, gathered.stride, rows, inputs.width(), out, columns);
  return {out, inputs.width(), columns};
}

// What GatherTransposed gave, as the kernels of scores take it.
inline ops::TransposedKeys KeysOf(const RunContext& context) {
  const Value& keys = context.user->keys;
  return {.data = keys.data, .width = keys.rows, .columns = keys.stride};
}

}  // namespace dinghy

#endif  // DINGHY_MODEL_LAYERS_HISTORY_BUCKETS_H_
