// Softmax attention (Vaswani et al., 2017) of a history's rows over each other, one head at a time:
// out = softmax(q k^T) v over the keys that each row may see.
//
//   ops::Transpose(k, stride, rows, head_width, transposed, columns);
//   ops::SoftmaxAttention({.rows = rows, .causal = true, ...}, weights);
//
// Queries go in blocks of 16 rows, whose scores alone are kept, so that memory grows with the history's
// length and not with its square; where the model is causal, keys behind a block are never multiplied.
//
// A row's bits depend on its own query and place and on the keys and values that it sees alone, not on
// `first` or on how many rows come after it: each score and each output is one fused multiply-add after the
// other, in rising order, and the weights that are added are those of keys 0, 1, ... in fixed lanes. The
// exponential's relative error is below 2e-7. Thread-safe.
#ifndef DINGHY_MODEL_OPS_SOFTMAX_ATTENTION_H_
#define DINGHY_MODEL_OPS_SOFTMAX_ATTENTION_H_

#include <cstdint>

#include "model/ops/attention.h"

namespace dinghy::ops {

inline constexpr int64_t kQueryBlock = 16;

struct SoftmaxAttentionArgs {
  int64_t rows = 0;   // of the history
  int64_t first = 0;  // rows from here on are queries
  bool causal = false;
  int64_t window = 0;  // a row sees those at a distance below it; 0: all
  // Above 0: row 0 stands for so many equal rows at distances 1, 2, ... before row 1, and sees only itself.
  int64_t pads = 0;

  const float* q = nullptr;  // [rows - first, keys.width], scaled already
  int64_t q_stride = 0;
  TransposedKeys keys = {};       // of `rows` keys, zero behind them
  const float* values = nullptr;  // [rows, value_width], 64 readable bytes behind the last
  int64_t values_stride = 0;
  int64_t value_width = 0;
  float* out = nullptr;  // [rows - first, value_width]
  int64_t out_stride = 0;
};

// weights: [kQueryBlock, keys.columns], overwritten. rows > first >= 0; pads only with `causal`.
void SoftmaxAttention(const SoftmaxAttentionArgs& args, float* weights);

}  // namespace dinghy::ops

#endif  // DINGHY_MODEL_OPS_SOFTMAX_ATTENTION_H_
