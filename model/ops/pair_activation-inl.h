// The activations between the layers of PairMlp, compiled once per Highway target.

#if defined(DINGHY_MODEL_OPS_PAIR_ACTIVATION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DINGHY_MODEL_OPS_PAIR_ACTIVATION_INL_H_
#undef DINGHY_MODEL_OPS_PAIR_ACTIVATION_INL_H_
#else
#define DINGHY_MODEL_OPS_PAIR_ACTIVATION_INL_H_
#endif

#include <cstdint>

#include "hwy/highway.h"
#include "model/ops/activation-inl.h"
#include "model/ops/pair_mlp.h"
#include "model/ops/row_tile-inl.h"  // HalfTag
#include "model/ops/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dinghy::ops {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_AVX3
// What the sigmoid's argument comes multiplied with: -1 / ln 2, so that it is 1 / (1 + 2^u).
constexpr float kSigmoidUnit = -1.44269504f;

// 1 / (1 + 2^u), absolute error below 3e-7. 2^u is 2^n from a table of sixteenths times a polynomial of
// second degree over |u - n| <= 1 / 32, fitted to 4.3e-7 of its value and written as c ((u - n + a)^2 + b),
// whose c lies in the table. Made of what does not wait for the units that multiply: where they are busy with
// products, as here, it costs four multiplications, two of which are the division.
struct PairSigmoidOp {
  HWY_INLINE Vec operator()(Tag d, Vec u) const {
    alignas(64) static constexpr float kPowers[16] = {
        0.240219454f,  0.2508548779f, 0.2619611721f, 0.2735591841f, 0.2856706839f, 0.2983184056f,
        0.3115260898f, 0.3253185281f, 0.3397216098f, 0.3547623705f, 0.3704690425f, 0.3868711082f,
        0.4039993555f, 0.4218859351f, 0.4405644212f, 0.4600698745f};
    const Vec clamped = AtLeast(d, -126.0f, AtMost(d, 126.0f, u));
    const Vec magic = hn::Set(d, 786432.0f);  // 1.5 * 2^19: adding it rounds to sixteenths
    const Vec shifted = hn::Add(clamped, magic);
    const Vec n = hn::Sub(shifted, magic);
    const Vec t = hn::Add(hn::Sub(clamped, n), hn::Set(d, 1.442821987f));
    const hn::RebindToSigned<Tag> di;
    const auto sixteenths = hn::BitCast(di, shifted);  // in the low four bits
    const __m512 power = _mm512_permutexvar_ps(sixteenths.raw, hn::Load(d, kPowers).raw);
    const Vec scaled{_mm512_scalef_ps(power, n.raw)};
    const Vec one = hn::Set(d, 1.0f);
    return hn::Div(one, hn::MulAdd(scaled, hn::MulAdd(t, t, hn::Set(d, 2.081124924f)), one));
  }
};
#else
constexpr float kSigmoidUnit = 1.0f;
using PairSigmoidOp = SigmoidOp;
#endif

#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2

// The sigmoid of `size` floats in place, whole vectors and perhaps half a one: that at once, then a vector at
// each step.
class SigmoidJob {
 public:
  SigmoidJob(float* x, int64_t size) : x_(x), left_(size / kLanes) {
    if (size % kLanes == 0) return;
    const HalfTag dh;
    float* rest = x + left_ * kLanes;
    const HalfVec half = hn::LoadU(dh, rest);
    const Vec y = PairSigmoidOp()(Tag(), hn::ZeroExtendVector(Tag(), half));
    hn::StoreU(hn::LowerHalf(dh, y), dh, rest);
  }

  HWY_INLINE int64_t left() const { return left_; }
  HWY_INLINE void Step() {
    hn::StoreU(PairSigmoidOp()(Tag(), hn::LoadU(Tag(), x_)), Tag(), x_);
    x_ += kLanes;
    --left_;
  }

 private:
  static constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(Tag()));
  float* x_;
  int64_t left_;
};

// op(x, column) over x [rows, stride] in place, whose rows end with a vector or half a one.
template <class Op>
HWY_INLINE void MapRows(const Op& op, float* x, int64_t rows, int64_t stride) {
  const Tag d;
  const HalfTag dh;
  const int64_t lanes = static_cast<int64_t>(hn::MaxLanes(d));
  for (int64_t r = 0; r < rows; ++r, x += stride) {
    int64_t i = 0;
    for (; i + lanes <= stride; i += lanes) hn::StoreU(op(hn::LoadU(d, x + i), i), d, x + i);
    if (i < stride) hn::StoreU(hn::LowerHalf(dh, op(hn::LoadU(d, x + i), i)), dh, x + i);
  }
}

// The activation of `step` over x [rows, step.stride] in place. Reads up to a whole vector behind them.
inline void ActivateRows(const PairMlp::Step& step, float* x, int64_t rows) {
  const Tag d;
  const PairSigmoidOp sigmoid;
  switch (step.activation) {
    case PairActivation::kLinear:
      break;
    case PairActivation::kRelu:
      MapRows([d](Vec v, int64_t) { return ReluOp()(d, v); }, x, rows, step.stride);
      break;
    case PairActivation::kSigmoid:
      MapRows([d, &sigmoid](Vec v, int64_t) { return sigmoid(d, v); }, x, rows, step.stride);
      break;
    case PairActivation::kTanh:
      MapRows([d](Vec v, int64_t) { return TanhOp()(d, v); }, x, rows, step.stride);
      break;
    case PairActivation::kSilu:
      MapRows([d, &sigmoid](Vec v,
                            int64_t) { return hn::Mul(v, sigmoid(d, hn::Mul(v, hn::Set(d, kSigmoidUnit)))); },
              x, rows, step.stride);
      break;
    case PairActivation::kPrelu:
      MapRows(
          [d, &step](Vec v, int64_t i) {
            const Vec alpha = hn::LoadU(d, step.alpha.data() + i);
            return hn::IfThenElse(hn::Gt(v, hn::Zero(d)), v, hn::Mul(alpha, v));
          },
          x, rows, step.stride);
      break;
    case PairActivation::kDice:
      MapRows(
          [d, &sigmoid, &step](Vec v, int64_t i) {
            const Vec scale = hn::LoadU(d, step.norm_scale.data() + i);
            const Vec shift = hn::LoadU(d, step.norm_shift.data() + i);
            const Vec alpha = hn::LoadU(d, step.alpha.data() + i);
            const Vec p = sigmoid(d, hn::MulAdd(v, scale, shift));
            return hn::Mul(v, hn::MulAdd(p, hn::Sub(hn::Set(d, 1.0f), alpha), alpha));
          },
          x, rows, step.stride);
      break;
  }
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace dinghy::ops
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
