// Sums and products element by element.
#include "model/ops/vector_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/ops/elementwise.cc"
#include "hwy/foreach_target.h"  // must precede highway.h
#include "hwy/highway.h"
#include "model/ops/vector-inl.h"
#include "model/ops/vector_math.h"

HWY_BEFORE_NAMESPACE();
namespace dinghy::ops {
namespace HWY_NAMESPACE {

// out[i] = op(a[i], b[i]); out may be a or b.
template <class Op>
HWY_INLINE void Zip(const Op& op, const float* a, const float* b, float* out, int64_t n) {
  const Tag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    hn::StoreU(op(hn::LoadU(d, a + i), hn::LoadU(d, b + i)), d, out + i);
  }
  if (i < n) StoreTail(op(LoadTail(d, a + i, n - i), LoadTail(d, b + i, n - i)), d, out + i, n - i);
}

struct AddOp {
  HWY_INLINE Vec operator()(Vec a, Vec b) const { return hn::Add(a, b); }
};
struct MultiplyOp {
  HWY_INLINE Vec operator()(Vec a, Vec b) const { return hn::Mul(a, b); }
};
struct ScaleAddOp {  // a * scale + b
  Vec scale;
  HWY_INLINE Vec operator()(Vec a, Vec b) const { return hn::MulAdd(a, scale, b); }
};

void AddTo(const float* x, float* y, int64_t n) { Zip(AddOp(), x, y, y, n); }
void MultiplyBy(const float* x, float* y, int64_t n) { Zip(MultiplyOp(), x, y, y, n); }

void Scale(float scale, float* y, int64_t n) {
  const Tag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const Vec s = hn::Set(d, scale);
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(hn::Mul(hn::LoadU(d, y + i), s), d, y + i);
  if (i < n) StoreTail(hn::Mul(LoadTail(d, y + i, n - i), s), d, y + i, n - i);
}

void ScaleAdd(const float* x, float scale, const float* y, float* out, int64_t n) {
  Zip(ScaleAddOp{hn::Set(Tag(), scale)}, x, y, out, n);
}

void AddScaledColumns(const float* base, const float* p, const float* scale, float* out, int64_t rows,
                      int64_t n) {
  const Tag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t r = 0; r < rows; ++r, base += n, p += n, out += n) {
    int64_t j = 0;
    for (; j + lanes <= n; j += lanes) {
      const Vec v = hn::MulAdd(hn::LoadU(d, p + j), hn::LoadU(d, scale + j), hn::LoadU(d, base + j));
      hn::StoreU(v, d, out + j);
    }
    if (j < n) {
      const int64_t count = n - j;
      const Vec v =
          hn::MulAdd(LoadTail(d, p + j, count), LoadTail(d, scale + j, count), LoadTail(d, base + j, count));
      StoreTail(v, d, out + j, count);
    }
  }
}

void AddScaledRows(const float* base, const float* p, const float* scale, float* out, int64_t rows,
                   int64_t n) {
  for (int64_t r = 0; r < rows; ++r, base += n, p += n, out += n) {
    Zip(ScaleAddOp{hn::Set(Tag(), scale[r])}, p, base, out, n);
  }
}

int64_t Target() { return HWY_TARGET; }

}  // namespace HWY_NAMESPACE
}  // namespace dinghy::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dinghy::ops {

HWY_EXPORT(AddTo);
HWY_EXPORT(MultiplyBy);
HWY_EXPORT(Scale);
HWY_EXPORT(ScaleAdd);
HWY_EXPORT(AddScaledColumns);
HWY_EXPORT(AddScaledRows);
HWY_EXPORT(Target);

void AddTo(const float* x, float* y, int64_t n) { HWY_DYNAMIC_DISPATCH(AddTo)(x, y, n); }
void MultiplyBy(const float* x, float* y, int64_t n) { HWY_DYNAMIC_DISPATCH(MultiplyBy)(x, y, n); }
void Scale(float scale, float* y, int64_t n) { HWY_DYNAMIC_DISPATCH(Scale)(scale, y, n); }
void ScaleAdd(const float* x, float scale, const float* y, float* out, int64_t n) {
  HWY_DYNAMIC_DISPATCH(ScaleAdd)(x, scale, y, out, n);
}
void AddScaledColumns(const float* base, const float* p, const float* d, float* out, int64_t rows,
                      int64_t n) {
  HWY_DYNAMIC_DISPATCH(AddScaledColumns)(base, p, d, out, rows, n);
}
void AddScaledRows(const float* base, const float* p, const float* d, float* out, int64_t rows, int64_t n) {
  HWY_DYNAMIC_DISPATCH(AddScaledRows)(base, p, d, out, rows, n);
}
std::string VectorTarget() { return hwy::TargetName(HWY_DYNAMIC_DISPATCH(Target)()); }

}  // namespace dinghy::ops
#endif  // HWY_ONCE
