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

void Relu(float* x, int64_t n) { Map(ReluOp(), x, n); }
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

void Relu(float* x, int64_t n) { HWY_DYNAMIC_DISPATCH(Relu)(x, n); }
void Sigmoid(float* x, int64_t n) { HWY_DYNAMIC_DISPATCH(Sigmoid)(x, n); }
void Tanh(float* x, int64_t n) { HWY_DYNAMIC_DISPATCH(Tanh)(x, n); }
void Silu(float* x, int64_t n) { HWY_DYNAMIC_DISPATCH(Silu)(x, n); }

}  // namespace dinghy::ops
#endif  // HWY_ONCE
