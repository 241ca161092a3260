#include "model/ops/softmax_attention.h"

#include "model/ops/vector_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/ops/softmax_attention.cc"
#include <algorithm>
#include <limits>

#include "hwy/foreach_target.h"  // must precede highway.h
#include "hwy/highway.h"
#include "model/ops/row_tile-inl.h"
#include "model/ops/vector-inl.h"

#ifndef DINGHY_MODEL_OPS_SOFTMAX_ATTENTION_ONCE
#define DINGHY_MODEL_OPS_SOFTMAX_ATTENTION_ONCE
namespace dinghy::ops {

struct KeyRange {
  int64_t begin, end;
};

inline KeyRange KeysOf(const SoftmaxAttentionArgs& args, int64_t row) {
  const int64_t window = args.window > 0 ? args.window : args.rows;
  return {std::max<int64_t>(0, row - window + 1), args.causal ? row + 1 : std::min(args.rows, row + window)};
}

// How often key 0 counts for a row that sees it.
inline int64_t CountOfPad(const SoftmaxAttentionArgs& args, int64_t row) {
  if (row == 0 || args.pads < 2) return 1;
  return args.window > 0 ? std::min(args.pads, args.window - row) : args.pads;
}

}  // namespace dinghy::ops
#endif

HWY_BEFORE_NAMESPACE();
namespace dinghy::ops {
namespace HWY_NAMESPACE {

// x = exp(x - the largest), over whole vectors; returns the sum.
HWY_INLINE float ExpRow(float* x, int64_t n) {
  const Tag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  Vec most = hn::LoadU(d, x);
  for (int64_t i = lanes; i < n; i += lanes) most = hn::Max(most, hn::LoadU(d, x + i));
  most = hn::MaxOfLanes(d, most);
  Vec sum = hn::Zero(d);
  for (int64_t i = 0; i < n; i += lanes) {
    const Vec e = ExpOfNegative(d, hn::Sub(hn::LoadU(d, x + i), most));
    hn::StoreU(e, d, x + i);
    sum = hn::Add(sum, e);
  }
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

HWY_INLINE void ScaleRow(float scale, float* x, int64_t n) {
  const Tag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t i = 0; i < n; i += lanes) {
    StoreCount(hn::Mul(LoadCount(d, x + i, n - i), hn::Set(d, scale)), d, x + i, n - i);
  }
}

// Rows [row, row + count), count <= kQueryBlock.
void AttendBlock(const SoftmaxAttentionArgs& args, int64_t row, int64_t count, float* weights) {
  // What any row of the block sees, from a whole number of vectors on, so that a key's lane is always the
  // same.
  const int64_t begin = KeysOf(args, row).begin / kQueryBlock * kQueryBlock;
  const int64_t end = KeysOf(args, row + count - 1).end;
  const int64_t columns = (end - begin + kQueryBlock - 1) / kQueryBlock * kQueryBlock;
  RowProduct({.a = args.q + (row - args.first) * args.q_stride,
              .a_stride = args.q_stride,
              .k = args.keys.width,
              .b = args.keys.data + begin,
              .b_stride = args.keys.columns,
              .bias = nullptr,
              .c = weights,
              .c_stride = args.keys.columns,
              .accumulate = false},
             count, columns);
  float sums[kQueryBlock];
  for (int64_t r = 0; r < count; ++r) {
    float* scores = weights + r * args.keys.columns;
    const KeyRange seen = KeysOf(args, row + r);
    constexpr float kUnseen = -std::numeric_limits<float>::infinity();
    std::fill(scores, scores + (seen.begin - begin), kUnseen);
    std::fill(scores + (seen.end - begin), scores + columns, kUnseen);
    sums[r] = ExpRow(scores, columns);
    const int64_t pads = seen.begin == 0 ? CountOfPad(args, row + r) : 1;
    if (pads > 1) {
      sums[r] += static_cast<float>(pads - 1) * scores[0];
      scores[0] *= static_cast<float>(pads);
    }
  }
  float* out = args.out + (row - args.first) * args.out_stride;
  RowProduct({.a = weights,
              .a_stride = args.keys.columns,
              .k = end - begin,
              .b = args.values + begin * args.values_stride,
              .b_stride = args.values_stride,
              .bias = nullptr,
              .c = out,
              .c_stride = args.out_stride,
              .accumulate = false},
             count, args.value_width);
  for (int64_t r = 0; r < count; ++r) ScaleRow(1.0f / sums[r], out + r * args.out_stride, args.value_width);
}

void SoftmaxAttention(const SoftmaxAttentionArgs& args, float* weights) {
  for (int64_t row = args.first; row < args.rows;) {
    const int64_t next = std::min(args.rows, (row / kQueryBlock + 1) * kQueryBlock);
    AttendBlock(args, row, next - row, weights);
    row = next;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace dinghy::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dinghy::ops {

HWY_EXPORT(SoftmaxAttention);

void SoftmaxAttention(const SoftmaxAttentionArgs& args, float* weights) {
  HWY_DYNAMIC_DISPATCH(SoftmaxAttention)(args, weights);
}

}  // namespace dinghy::ops
#endif  // HWY_ONCE
