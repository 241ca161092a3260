// Activation functions. All go through exp(-|x|), which neither overflows nor cancels.
#include "model/ops/vector_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/ops/activations.cc"
#include "hwy/foreach_target.h"  // must precede highway.h
#include "hwy/highway.h"
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

struct ReluOp {
  HWY_INLINE Vec operator()(Tag d, Vec x) const { return AtLeast(d, 0.0f, x); }
};

struct SigmoidOp {
  HWY_INLINE Vec operator()(Tag d, Vec x) const {
    const Vec one = hn::Set(d, 1.0f);
    const SplitExp e = ExpSplit(d, hn::Neg(AtMost(d, 87.0f, hn::Abs(x))));
    const Vec scale = PowerOfTwo(d, e.power);
    const Vec exp = hn::MulAdd(e.minus_one, scale, scale);
    return hn::Div(hn::IfThenElse(hn::Lt(x, hn::Zero(d)), exp, one), hn::Add(one, exp));
  }
};

// (1 - e) / (1 + e) with e = exp(-2|x|), from e - 1 so that small x keep their relative precision.
struct TanhOp {
  HWY_INLINE Vec operator()(Tag d, Vec x) const {
    const Vec a = AtMost(d, 20.0f, hn::Abs(x));
    const SplitExp e = ExpSplit(d, hn::Mul(a, hn::Set(d, -2.0f)));
    const Vec scale = PowerOfTwo(d, e.power);
    const Vec minus_one = hn::MulAdd(e.minus_one, scale, hn::Sub(scale, hn::Set(d, 1.0f)));
    const Vec t = hn::Div(hn::Neg(minus_one), hn::Add(minus_one, hn::Set(d, 2.0f)));
    return hn::CopySign(t, x);
  }
};

// x / (1 + e) for x >= 0 and x e / (1 + e) for x < 0. There the power of two comes last and in two steps, so
// that the result is right where e alone would be a denormal.
struct SiluOp {
  HWY_INLINE Vec operator()(Tag d, Vec x) const {
    const Vec one = hn::Set(d, 1.0f);
    const Vec clamped = AtLeast(d, -120.0f, x);
    const SplitExp e = ExpSplit(d, hn::Neg(AtMost(d, 120.0f, hn::Abs(x))));
    const auto half = hn::ShiftRight<1>(e.power);
    const Vec scale = PowerOfTwo(d, half);
    const Vec scale_rest = PowerOfTwo(d, hn::Sub(e.power, half));
    const Vec fraction = hn::Add(e.minus_one, one);
    const Vec divisor = hn::MulAdd(hn::Mul(fraction, scale), scale_rest, one);
    const auto negative = hn::Lt(x, hn::Zero(d));
    const Vec quotient = hn::Div(hn::IfThenElse(negative, hn::Mul(clamped, fraction), clamped), divisor);
    return hn::IfThenElse(negative, hn::Mul(hn::Mul(quotient, scale), scale_rest), quotient);
  }
};

struct LeakyReluOp {
  Vec slope;
  HWY_INLINE Vec operator()(Tag d, Vec x) const {
    return hn::IfThenElse(hn::Gt(x, hn::Zero(d)), x, hn::Mul(slope, x));
  }
};

// x Phi(x), with Q = Phi(-|x|) = erfc(|x| / sqrt 2) / 2 from Abramowitz and Stegun 7.1.26, whose error is
// below 1.5e-7 in erf: x Q where x < 0, x - x Q elsewhere.
struct GeluErfOp {
  HWY_INLINE Vec operator()(Tag d, Vec x) const {
    const Vec a = AtMost(d, 13.0f, hn::Abs(x));  // beyond, Q is 0 in float
    const Vec z = hn::Mul(a, hn::Set(d, 0.70710678f));
    const Vec t = hn::Div(hn::Set(d, 1.0f), hn::MulAdd(z, hn::Set(d, 0.3275911f), hn::Set(d, 1.0f)));
    Vec p = hn::MulAdd(hn::Set(d, 1.061405429f), t, hn::Set(d, -1.453152027f));
    p = hn::MulAdd(p, t, hn::Set(d, 1.421413741f));
    p = hn::MulAdd(p, t, hn::Set(d, -0.284496736f));
    p = hn::MulAdd(p, t, hn::Set(d, 0.254829592f));
    const Vec q = hn::Mul(hn::Mul(hn::Mul(p, t), hn::Set(d, 0.5f)), ExpOfNegative(d, hn::Neg(hn::Mul(z, z))));
    const Vec tail = hn::Mul(hn::CopySign(a, x), q);
    return hn::IfThenElse(hn::Lt(x, hn::Zero(d)), tail, hn::Sub(x, tail));
  }
};

// x sigmoid(2 u) with u = sqrt(2 / pi) (x + 0.044715 x^3), since (1 + tanh u) / 2 = sigmoid(2 u).
struct GeluTanhOp {
  HWY_INLINE Vec operator()(Tag d, Vec x) const {
    const Vec one = hn::Set(d, 1.0f);
    const Vec clamped = AtLeast(d, -12.0f, AtMost(d, 12.0f, x));  // beyond, the sigmoid is 0 or 1 in float
    const Vec cubic = hn::MulAdd(hn::Mul(hn::Mul(clamped, clamped), clamped), hn::Set(d, 0.044715f), clamped);
    const Vec u = hn::Mul(cubic, hn::Set(d, 1.59576912f));
    const Vec e = ExpOfNegative(d, hn::Neg(hn::Abs(u)));
    return hn::Div(hn::Mul(x, hn::IfThenElse(hn::Lt(u, hn::Zero(d)), e, one)), hn::Add(one, e));
  }
};

struct EluPlusOneOp {
  HWY_INLINE Vec operator()(Tag d, Vec x) const {
    const Vec exp = ExpOfNegative(d, AtMost(d, 0.0f, x));
    return hn::IfThenElse(hn::Gt(x, hn::Zero(d)), hn::Add(x, hn::Set(d, 1.0f)), exp);
  }
};

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
void EluPlusOne(float* x, int64_t n) { Map(EluPlusOneOp(), x, n); }
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
HWY_EXPORT(EluPlusOne);
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
void EluPlusOne(float* x, int64_t n) { HWY_DYNAMIC_DISPATCH(EluPlusOne)(x, n); }
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
