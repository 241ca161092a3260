// Sums and what rests on them. A sum runs in four vectors of partial sums, then across them: an order that
// depends on the length alone.
#include "model/ops/vector_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/ops/reductions.cc"
#include <cmath>

#include "hwy/foreach_target.h"  // must precede highway.h
#include "hwy/highway.h"
#include "model/ops/vector-inl.h"
#include "model/ops/vector_math.h"

HWY_BEFORE_NAMESPACE();
namespace dinghy::ops {
namespace HWY_NAMESPACE {

// The sum over i < n of step.Full / step.Tail, each of which adds one vector to the accumulator it is given.
// A tail has to add zero in its missing lanes.
template <class Step>
HWY_INLINE float Accumulate(const Step& step, int64_t n) {
  const Tag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  Vec s0 = hn::Zero(d), s1 = hn::Zero(d), s2 = hn::Zero(d), s3 = hn::Zero(d);
  int64_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    s0 = step.Full(d, i, s0);
    s1 = step.Full(d, i + lanes, s1);
    s2 = step.Full(d, i + 2 * lanes, s2);
    s3 = step.Full(d, i + 3 * lanes, s3);
  }
  for (; i + lanes <= n; i += lanes) s0 = step.Full(d, i, s0);
  if (i < n) s1 = step.Tail(d, i, n - i, s1);
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(s0, s1), hn::Add(s2, s3))));
}

struct DotStep {
  const float* a;
  const float* b;
  HWY_INLINE Vec Full(Tag d, int64_t i, Vec sum) const {
    return hn::MulAdd(hn::LoadU(d, a + i), hn::LoadU(d, b + i), sum);
  }
  HWY_INLINE Vec Tail(Tag d, int64_t i, int64_t count, Vec sum) const {
    return hn::MulAdd(LoadTail(d, a + i, count), LoadTail(d, b + i, count), sum);
  }
};

struct SumStep {
  const float* x;
  HWY_INLINE Vec Full(Tag d, int64_t i, Vec sum) const { return hn::Add(sum, hn::LoadU(d, x + i)); }
  HWY_INLINE Vec Tail(Tag d, int64_t i, int64_t count, Vec sum) const {
    return hn::Add(sum, LoadTail(d, x + i, count));
  }
};

struct SquaredDistanceStep {
  const float* x;
  Vec from;
  HWY_INLINE Vec Full(Tag d, int64_t i, Vec sum) const {
    const Vec distance = hn::Sub(hn::LoadU(d, x + i), from);
    return hn::MulAdd(distance, distance, sum);
  }
  HWY_INLINE Vec Tail(Tag d, int64_t i, int64_t count, Vec sum) const {
    const Vec distance = hn::IfThenElseZero(hn::FirstN(d, static_cast<size_t>(count)),
                                            hn::Sub(LoadTail(d, x + i, count), from));
    return hn::MulAdd(distance, distance, sum);
  }
};

// x = exp(x - shift), and the sum of that.
struct ExpStep {
  float* x;
  Vec shift;
  HWY_INLINE Vec Full(Tag d, int64_t i, Vec sum) const {
    const Vec e = ExpOfNegative(d, hn::Sub(hn::LoadU(d, x + i), shift));
    hn::StoreU(e, d, x + i);
    return hn::Add(sum, e);
  }
  HWY_INLINE Vec Tail(Tag d, int64_t i, int64_t count, Vec sum) const {
    const Vec e = ExpOfNegative(d, hn::Sub(LoadTail(d, x + i, count), shift));
    StoreTail(e, d, x + i, count);
    return hn::Add(sum, hn::IfThenElseZero(hn::FirstN(d, static_cast<size_t>(count)), e));
  }
};

float Dot(const float* a, const float* b, int64_t n) { return Accumulate(DotStep{a, b}, n); }

float Largest(const float* x, int64_t n) {
  const Tag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  Vec largest = hn::Set(d, x[0]);
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) largest = hn::Max(largest, hn::LoadU(d, x + i));
  if (i < n) {
    const Vec tail = LoadTail(d, x + i, n - i);
    largest = hn::Max(largest, hn::IfThenElse(hn::FirstN(d, static_cast<size_t>(n - i)), tail, largest));
  }
  return hn::GetLane(hn::MaxOfLanes(d, largest));
}

void Softmax(float* x, int64_t n) {
  const Tag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const float sum = Accumulate(ExpStep{x, hn::Set(d, Largest(x, n))}, n);
  const Vec scale = hn::Set(d, 1.0f / sum);
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(hn::Mul(hn::LoadU(d, x + i), scale), d, x + i);
  if (i < n) StoreTail(hn::Mul(LoadTail(d, x + i, n - i), scale), d, x + i, n - i);
}

void LayerNormRows(const float* x, int64_t rows, int64_t n, const float* weight, const float* bias,
                   float epsilon, float* y) {
  const Tag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const float count = static_cast<float>(n);
  for (int64_t r = 0; r < rows; ++r, x += n, y += n) {
    const Vec mean = hn::Set(d, Accumulate(SumStep{x}, n) / count);
    const float variance = Accumulate(SquaredDistanceStep{x, mean}, n) / count;
    const Vec scale = hn::Set(d, 1.0f / std::sqrt(variance + epsilon));
    int64_t i = 0;
    for (; i + lanes <= n; i += lanes) {
      const Vec normal = hn::Mul(hn::Sub(hn::LoadU(d, x + i), mean), scale);
      hn::StoreU(hn::MulAdd(normal, hn::LoadU(d, weight + i), hn::LoadU(d, bias + i)), d, y + i);
    }
    if (i < n) {
      const Vec normal = hn::Mul(hn::Sub(LoadTail(d, x + i, n - i), mean), scale);
      const Vec v = hn::MulAdd(normal, LoadTail(d, weight + i, n - i), LoadTail(d, bias + i, n - i));
      StoreTail(v, d, y + i, n - i);
    }
  }
}

// Four vectors of columns at a time, so that their sums stay in registers over all rows.
void WeightedSumRows(const float* x, int64_t stride, const float* weight, int64_t rows, int64_t n,
                     float* out) {
  const Tag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t j = 0;
  for (; j + 4 * lanes <= n; j += 4 * lanes) {
    Vec s0 = hn::Zero(d), s1 = hn::Zero(d), s2 = hn::Zero(d), s3 = hn::Zero(d);
    const float* p = x + j;
    for (int64_t i = 0; i < rows; ++i, p += stride) {
      const Vec w = hn::Set(d, weight[i]);
      s0 = hn::MulAdd(w, hn::LoadU(d, p), s0);
      s1 = hn::MulAdd(w, hn::LoadU(d, p + lanes), s1);
      s2 = hn::MulAdd(w, hn::LoadU(d, p + 2 * lanes), s2);
      s3 = hn::MulAdd(w, hn::LoadU(d, p + 3 * lanes), s3);
    }
    hn::StoreU(s0, d, out + j);
    hn::StoreU(s1, d, out + j + lanes);
    hn::StoreU(s2, d, out + j + 2 * lanes);
    hn::StoreU(s3, d, out + j + 3 * lanes);
  }
  for (; j + lanes <= n; j += lanes) {
    Vec sum = hn::Zero(d);
    for (int64_t i = 0; i < rows; ++i) {
      sum = hn::MulAdd(hn::Set(d, weight[i]), hn::LoadU(d, x + i * stride + j), sum);
    }
    hn::StoreU(sum, d, out + j);
  }
  if (j < n) {
    Vec sum = hn::Zero(d);
    for (int64_t i = 0; i < rows; ++i) {
      sum = hn::MulAdd(hn::Set(d, weight[i]), LoadTail(d, x + i * stride + j, n - j), sum);
    }
    StoreTail(sum, d, out + j, n - j);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace dinghy::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dinghy::ops {

HWY_EXPORT(Dot);
HWY_EXPORT(Largest);
HWY_EXPORT(Softmax);
HWY_EXPORT(LayerNormRows);
HWY_EXPORT(WeightedSumRows);

float Dot(const float* a, const float* b, int64_t n) { return HWY_DYNAMIC_DISPATCH(Dot)(a, b, n); }
float Largest(const float* x, int64_t n) { return HWY_DYNAMIC_DISPATCH(Largest)(x, n); }
void Softmax(float* x, int64_t n) { HWY_DYNAMIC_DISPATCH(Softmax)(x, n); }
void LayerNormRows(const float* x, int64_t rows, int64_t n, const float* weight, const float* bias,
                   float epsilon, float* y) {
  HWY_DYNAMIC_DISPATCH(LayerNormRows)(x, rows, n, weight, bias, epsilon, y);
}
void WeightedSumRows(const float* x, int64_t stride, const float* weight, int64_t rows, int64_t n,
                     float* out) {
  HWY_DYNAMIC_DISPATCH(WeightedSumRows)(x, stride, weight, rows, n, out);
}

}  // namespace dinghy::ops
#endif  // HWY_ONCE
