#include "model/ops/attention.h"

#include "model/ops/vector_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/ops/attention.cc"
#include <algorithm>

#include "hwy/foreach_target.h"  // must precede highway.h
#include "hwy/highway.h"
#include "model/ops/activation-inl.h"
#include "model/ops/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dinghy::ops {
namespace HWY_NAMESPACE {

// kRows rows of x, kVectors vectors of columns from j.
template <int kRows, int kVectors>
HWY_INLINE void DotTile(const TransposedKeys& keys, const float* x, int64_t x_stride, int64_t j,
                        float* scores, int64_t scores_stride) {
  const Tag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  Vec sum[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::Zero(d);
  }
  const float* column = keys.data + j;
  for (int64_t i = 0; i < keys.width; ++i, column += keys.columns) {
    Vec key[kVectors];
    for (int v = 0; v < kVectors; ++v) key[v] = hn::LoadU(d, column + v * lanes);
    for (int r = 0; r < kRows; ++r) {
      const Vec value = hn::Set(d, x[r * x_stride + i]);
      for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::MulAdd(value, key[v], sum[r][v]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      hn::StoreU(sum[r][v], d, scores + r * scores_stride + j + v * lanes);
    }
  }
}

// Few rows take more vectors at a time, so that enough sums are under way.
template <int kRows, int kMost>
HWY_INLINE void DotRows(const TransposedKeys& keys, const float* x, int64_t x_stride, float* scores,
                        int64_t scores_stride) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(Tag()));
  int64_t j = 0;
  for (; j + kMost * lanes <= keys.columns; j += kMost * lanes) {
    DotTile<kRows, kMost>(keys, x, x_stride, j, scores, scores_stride);
  }
  for (; j + 2 * lanes <= keys.columns; j += 2 * lanes) {
    DotTile<kRows, 2>(keys, x, x_stride, j, scores, scores_stride);
  }
  for (; j < keys.columns; j += lanes) DotTile<kRows, 1>(keys, x, x_stride, j, scores, scores_stride);
}

void DotScores(const TransposedKeys& keys, const float* x, int64_t x_stride, int64_t rows, float* scores,
               int64_t scores_stride) {
  int64_t r = 0;
  for (; r + 4 <= rows; r += 4) {
    DotRows<4, 2>(keys, x + r * x_stride, x_stride, scores + r * scores_stride, scores_stride);
  }
  for (; r < rows; ++r) {
    DotRows<1, 8>(keys, x + r * x_stride, x_stride, scores + r * scores_stride, scores_stride);
  }
}

template <int kVectors, class Op>
HWY_INLINE void AdditiveTile(const Op& op, const TransposedKeys& keys, const float* base, const float* vector,
                             int64_t j, float* scores) {
  const Tag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  Vec sum[kVectors];
  for (int v = 0; v < kVectors; ++v) sum[v] = hn::Zero(d);
  const float* column = keys.data + j;
  for (int64_t i = 0; i < keys.width; ++i, column += keys.columns) {
    const Vec query = hn::Set(d, base[i]);
    const Vec weight = hn::Set(d, vector[i]);
    for (int v = 0; v < kVectors; ++v) {
      const Vec x = op(d, hn::Add(query, hn::LoadU(d, column + v * lanes)));
      sum[v] = hn::MulAdd(weight, x, sum[v]);
    }
  }
  for (int v = 0; v < kVectors; ++v) hn::StoreU(sum[v], d, scores + j + v * lanes);
}

template <class Op>
HWY_INLINE void Additive(const Op& op, const TransposedKeys& keys, const float* base, const float* vector,
                         float* scores) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(Tag()));
  int64_t j = 0;
  for (; j + 4 * lanes <= keys.columns; j += 4 * lanes) AdditiveTile<4>(op, keys, base, vector, j, scores);
  for (; j < keys.columns; j += lanes) AdditiveTile<1>(op, keys, base, vector, j, scores);
}

void AdditiveScores(ScoreActivation activation, const TransposedKeys& keys, const float* base,
                    const float* vector, float* scores) {
  switch (activation) {
    case ScoreActivation::kLinear:
      return Additive(LinearOp(), keys, base, vector, scores);
    case ScoreActivation::kRelu:
      return Additive(ReluOp(), keys, base, vector, scores);
    case ScoreActivation::kSigmoid:
      return Additive(SigmoidOp(), keys, base, vector, scores);
    case ScoreActivation::kTanh:
      return Additive(TanhOp(), keys, base, vector, scores);
    case ScoreActivation::kSilu:
      return Additive(SiluOp(), keys, base, vector, scores);
    case ScoreActivation::kGeluErf:
      return Additive(GeluErfOp(), keys, base, vector, scores);
    case ScoreActivation::kGeluTanh:
      return Additive(GeluTanhOp(), keys, base, vector, scores);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace dinghy::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dinghy::ops {

HWY_EXPORT(DotScores);
HWY_EXPORT(AdditiveScores);

void Transpose(const float* x, int64_t stride, int64_t rows, int64_t n, float* y, int64_t columns) {
  // In squares of one cache line's width, so that neither side is walked a line an element.
  constexpr int64_t kSquare = 16;
  for (int64_t r = 0; r < columns; r += kSquare) {
    for (int64_t i = 0; i < n; ++i) {
      float* out = y + i * columns + r;
      for (int64_t k = 0; k < kSquare; ++k) out[k] = r + k < rows ? x[(r + k) * stride + i] : 0.0f;
    }
  }
}

void DotScores(const TransposedKeys& keys, const float* x, int64_t x_stride, int64_t rows, float* scores,
               int64_t scores_stride) {
  HWY_DYNAMIC_DISPATCH(DotScores)(keys, x, x_stride, rows, scores, scores_stride);
}
void AdditiveScores(ScoreActivation activation, const TransposedKeys& keys, const float* base,
                    const float* vector, float* scores) {
  HWY_DYNAMIC_DISPATCH(AdditiveScores)(activation, keys, base, vector, scores);
}

}  // namespace dinghy::ops
#endif  // HWY_ONCE
