// Activation functions over arrays.
#include "model/ops/vector_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/ops/activations.cc"
#include "hwy/foreach_target.h"  // must precede highway.h
#include "hwy/highway.h"
#include "model/ops/activation-inl.h"
#include "model/ops/vector-inl.h"
#include "model/ops/vector_math.h"

HWY_BEFORE_NAMESPACE();
namespace dinghy::ops {
namespace HWY_NAMESPACE {

template <class Op>
HWY_INLINE void Map(const Op& op, float* x, int64_t n) {
  const Tag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(op(d, hn::LoadU(d, x + i)), d, x + i);
  if (i < n) StoreTail(op(d, LoadTail(d, x + i, n - i)), d, x + i, n - i);
}

// Row by row; `op(d, x, columns)` where columns are the vectors of each parameter.
template <class Op, int kParameters>
HWY_INLINE void MapRows(const Op& op, float* x, int64_t rows, int64_t n,
                        const float* const (&parameters)[kParameters]) {
  const Tag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t r = 0; r < rows; ++r, x += n) {
    Vec columns[kParameters];
    int64_t i = 0;
    for (; i + lanes <= n; i += lanes) {
      for (int p = 0; p < kParameters; ++p) columns[p] = hn::LoadU(d, parameters[p] + i);
      hn::StoreU(op(d, hn::LoadU(d, x + i), columns), d, x + i);
    }
    if (i < n) {
      for (int p = 0; p < kParameters; ++p) columns[p] = LoadTail(d, parameters[p] + i, n - i);
      StoreTail(op(d, LoadTail(d, x + i, n - i), columns), d, x + i, n - i);
    }
  }
}

struct PreluOp {
  HWY_INLINE Vec operator()(Tag d, Vec x, const Vec* alpha) const {
    return hn::IfThenElse(hn::Gt(x, hn::Zero(d)), x, hn::Mul(alpha[0], x));
  }
};
struct DiceOp {
  HWY_INLINE Vec operator()(Tag d, Vec x, const Vec* columns) const {
    const Vec p = SigmoidOp()(d, hn::MulAdd(x, columns[1], columns[2]));
    const Vec rest = hn::Mul(columns[0], hn::Sub(hn::Set(d, 1.0f), p));
    return hn::Mul(x, hn::Add(p, rest));
  }
};
struct ScaleShiftOp {
  HWY_INLINE Vec operator()(Tag, Vec x, const Vec* columns) const {
    return hn::MulAdd(x, columns[0], columns[1]);
  }
};

void Relu(float* x, int64_t n) { Map(ReluOp(), x, n); }
void LeakyRelu(float slope, float* x, int64_t n) { Map(LeakyReluOp{hn::Set(Tag(), slope)}, x, n); }
void GeluErf(float* x, int64_t n) { Map(GeluErfOp(), x, n); }
void GeluTanh(float* x, int64_t n) { Map(GeluTanhOp(), x, n); }
void PreluRows(float* x, int64_t rows, int64_t n, const float* alpha) {
  MapRows(PreluOp(), x, rows, n, {alpha});
}
void DiceRows(float* x, int64_t rows, int64_t n, const float* alpha, const float* norm_scale,
              const float* norm_shift) {
  MapRows(DiceOp(), x, rows, n, {alpha, norm_scale, norm_shift});
}
void ScaleShiftRows(float* x, int64_t rows, int64_t n, const float* scale, const float* shift) {
  MapRows(ScaleShiftOp(), x, rows, n, {scale, shift});
}
void Sigmoid(float* x, int64_t n) { Map(SigmoidOp(), x, n); }
void Tanh(float* x, int64_t n) { Map(TanhOp(), x, n); }
void Silu(float* x, int64_t n) { Map(SiluOp(), x, n); }
void ShiftedEluPlusOne(float shift, float* x, int64_t n) { Map(EluPlusOneOp{shift}, x, n); }

}  // namespace HWY_NAMESPACE
}  // namespace dinghy::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dinghy::ops {

HWY_EXPORT(Relu);
HWY_EXPORT(Sigmoid);
HWY_EXPORT(Tanh);
HWY_EXPORT(Silu);
HWY_EXPORT(LeakyRelu);
HWY_EXPORT(GeluErf);
HWY_EXPORT(ShiftedEluPlusOne);
HWY_EXPORT(GeluTanh);
HWY_EXPORT(PreluRows);
HWY_EXPORT(DiceRows);
HWY_EXPORT(ScaleShiftRows);

void Relu(float* x, int64_t n) { HWY_DYNAMIC_DISPATCH(Relu)(x, n); }
void Sigmoid(float* x, int64_t n) { HWY_DYNAMIC_DISPATCH(Sigmoid)(x, n); }
void Tanh(float* x, int64_t n) { HWY_DYNAMIC_DISPATCH(Tanh)(x, n); }
void Silu(float* x, int64_t n) { HWY_DYNAMIC_DISPATCH(Silu)(x, n); }
void LeakyRelu(float slope, float* x, int64_t n) { HWY_DYNAMIC_DISPATCH(LeakyRelu)(slope, x, n); }
void GeluErf(float* x, int64_t n) { HWY_DYNAMIC_DISPATCH(GeluErf)(x, n); }
void ShiftedEluPlusOne(float shift, float* x, int64_t n) {
  HWY_DYNAMIC_DISPATCH(ShiftedEluPlusOne)(shift, x, n);
}
void EluPlusOne(float* x, int64_t n) { ShiftedEluPlusOne(0.0f, x, n); }
void GeluTanh(float* x, int64_t n) { HWY_DYNAMIC_DISPATCH(GeluTanh)(x, n); }
void PreluRows(float* x, int64_t rows, int64_t n, const float* alpha) {
  HWY_DYNAMIC_DISPATCH(PreluRows)(x, rows, n, alpha);
}
void DiceRows(float* x, int64_t rows, int64_t n, const float* alpha, const float* norm_scale,
              const float* norm_shift) {
  HWY_DYNAMIC_DISPATCH(DiceRows)(x, rows, n, alpha, norm_scale, norm_shift);
}
void ScaleShiftRows(float* x, int64_t rows, int64_t n, const float* scale, const float* shift) {
  HWY_DYNAMIC_DISPATCH(ScaleShiftRows)(x, rows, n, scale, shift);
}

}  // namespace dinghy::ops
#endif  // HWY_ONCE
