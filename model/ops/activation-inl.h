// Activation functions of one vector, for the kernels that apply them. All go through exp(-|x|), which
// neither overflows nor cancels.

#if defined(DINGHY_MODEL_OPS_ACTIVATION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DINGHY_MODEL_OPS_ACTIVATION_INL_H_
#undef DINGHY_MODEL_OPS_ACTIVATION_INL_H_
#else
#define DINGHY_MODEL_OPS_ACTIVATION_INL_H_
#endif

#include "hwy/highway.h"
#include "model/ops/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dinghy::ops {
namespace HWY_NAMESPACE {

struct LinearOp {
  HWY_INLINE Vec operator()(Tag, Vec x) const { return x; }
};

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

// x + 1 where x > 0, else exp(x - shift), for x <= shift there: the feature map of linear attention.
struct EluPlusOneOp {
  float shift;
  HWY_INLINE Vec operator()(Tag d, Vec x) const {
    const auto positive = hn::Gt(x, hn::Zero(d));
    const Vec below = hn::Sub(hn::IfThenZeroElse(positive, x), hn::Set(d, shift));
    return hn::IfThenElse(positive, hn::Add(x, hn::Set(d, 1.0f)), ExpOfNegative(d, below));
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace dinghy::ops
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
