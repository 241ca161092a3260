// Scores of one query for all behaviors of a history. The keys lie transposed, a behavior a column, so that
// the sum over a key's width needs no reduction across lanes.
//
//   ops::Transpose(keys, width, length, width, transposed, columns);        // once per request
//   ops::DotScores({transposed, width, columns}, query, width, 1, scores, columns);
//
// A score's bits depend on its own query, key and weights alone: sums run over the width, rising, each
// product fused with the sum. Thread-safe.
#ifndef DINGHY_MODEL_OPS_ATTENTION_H_
#define DINGHY_MODEL_OPS_ATTENTION_H_

#include <cstdint>

namespace dinghy::ops {

// [width, columns], packed. `columns` is a multiple of 16, the lanes of the widest target.
struct TransposedKeys {
  const float* data = nullptr;
  int64_t width = 0;
  int64_t columns = 0;
};

// y [n, columns] = x^T for x [rows, n] with `stride` floats from row to row; columns from `rows` on are zero.
void Transpose(const float* x, int64_t stride, int64_t rows, int64_t n, float* y, int64_t columns);

// scores[r, j] = sum over i of x[r, i] * keys[i, j], for x [rows, keys.width] with a stride; scores
// [rows, keys.columns] with one of its own.
void DotScores(const TransposedKeys& keys, const float* x, int64_t x_stride, int64_t rows, float* scores,
               int64_t scores_stride);

// The activations of AdditiveScores.
enum class ScoreActivation { kLinear, kRelu, kSigmoid, kTanh, kSilu, kGeluErf, kGeluTanh };

// scores[j] = sum over i of vector[i] * activation(base[i] + keys[i, j]); base and vector [keys.width],
// scores [keys.columns]. Additive attention (Bahdanau et al., 2015).
void AdditiveScores(ScoreActivation activation, const TransposedKeys& keys, const float* base,
                    const float* vector, float* scores);

}  // namespace dinghy::ops

#endif  // DINGHY_MODEL_OPS_ATTENTION_H_
