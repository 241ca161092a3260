// What the vector kernels share, compiled once per Highway target: tails and the exponential.

#if defined(DINGHY_MODEL_OPS_VECTOR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DINGHY_MODEL_OPS_VECTOR_INL_H_
#undef DINGHY_MODEL_OPS_VECTOR_INL_H_
#else
#define DINGHY_MODEL_OPS_VECTOR_INL_H_
#endif

#include <cstdint>
#include <cstring>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace dinghy::ops {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using Tag = hn::ScalableTag<float>;
using Vec = hn::Vec<Tag>;

// The first `count` lanes from p, zero behind them; nothing past p + count is touched.
HWY_INLINE Vec LoadTail(Tag d, const float* p, int64_t count) {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2
  return hn::MaskedLoad(hn::FirstN(d, static_cast<size_t>(count)), d, p);
#else
  alignas(64) float buffer[hn::MaxLanes(Tag())] = {};
  std::memcpy(buffer, p, static_cast<size_t>(count) * sizeof(float));
  return hn::Load(d, buffer);
#endif
}

HWY_INLINE void StoreTail(Vec v, Tag d, float* p, int64_t count) {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2
  hn::BlendedStore(v, hn::FirstN(d, static_cast<size_t>(count)), d, p);
#else
  alignas(64) float buffer[hn::MaxLanes(Tag())];
  hn::Store(v, d, buffer);
  std::memcpy(p, buffer, static_cast<size_t>(count) * sizeof(float));
#endif
}

// The smaller or larger of a constant and x; NaN stays NaN.
HWY_INLINE Vec AtMost(Tag d, float limit, Vec x) {
  const Vec v = hn::Set(d, limit);
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2
  return hn::Min(v, x);  // x86 returns the second argument where either is NaN
#else
  return hn::IfThenElse(hn::Lt(v, x), v, x);
#endif
}
HWY_INLINE Vec AtLeast(Tag d, float limit, Vec x) {
  const Vec v = hn::Set(d, limit);
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2
  return hn::Max(v, x);
#else
  return hn::IfThenElse(hn::Lt(x, v), v, x);
#endif
}

// exp(x) = (1 + minus_one) * 2^power, |minus_one| < 0.42, for |x| <= 120 (elsewhere the caller clamps). Cody
// and Waite's reduction, a minimax polynomial fitted to 6e-9.
struct SplitExp {
  Vec minus_one;
  hn::Vec<hn::RebindToSigned<Tag>> power;
};
HWY_INLINE SplitExp ExpSplit(Tag d, Vec x) {
  const auto power = hn::NearestInt(hn::Mul(x, hn::Set(d, 1.44269504f)));
  const Vec n = hn::ConvertTo(d, power);
  // ln 2 in two parts, the first short enough for n times it to be exact without a fused multiply-add.
  Vec r = hn::NegMulAdd(n, hn::Set(d, 0.693359375f), x);
  r = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4f), r);
  Vec q = hn::MulAdd(hn::Set(d, 1.381166279e-03f), r, hn::Set(d, 8.370134979e-03f));
  q = hn::MulAdd(q, r, hn::Set(d, 4.166852683e-02f));
  q = hn::MulAdd(q, r, hn::Set(d, 1.666650921e-01f));
  q = hn::MulAdd(q, r, hn::Set(d, 4.999999404e-01f));
  return {hn::MulAdd(hn::Mul(r, r), q, r), power};
}

// 2^power for -126 <= power <= 127.
HWY_INLINE Vec PowerOfTwo(Tag d, hn::Vec<hn::RebindToSigned<Tag>> power) {
  const hn::RebindToSigned<Tag> di;
  return hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(power, hn::Set(di, 127))));
}

// exp(x) for x <= 0, relative error below 2e-7; 0 below -87 (exp(-87) = 1.6e-38). NaN stays NaN.
HWY_INLINE Vec ExpOfNegative(Tag d, Vec x) {
  constexpr float kLowest = -87.0f;
  const SplitExp e = ExpSplit(d, AtLeast(d, kLowest, x));
  const Vec scale = PowerOfTwo(d, e.power);
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, kLowest)), hn::MulAdd(e.minus_one, scale, scale));
}

}  // namespace HWY_NAMESPACE
}  // namespace dinghy::ops
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
