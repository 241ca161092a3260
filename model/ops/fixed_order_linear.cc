#include "model/ops/fixed_order_linear.h"

#include "model/ops/vector_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/ops/fixed_order_linear.cc"
#include <algorithm>
#include <vector>

#include "hwy/aligned_allocator.h"
#include "hwy/foreach_target.h"  // must precede highway.h
#include "hwy/highway.h"
#include "model/ops/vector-inl.h"

#ifndef DINGHY_MODEL_OPS_FIXED_ORDER_LINEAR_ONCE
#define DINGHY_MODEL_OPS_FIXED_ORDER_LINEAR_ONCE
namespace dinghy::ops {

// Columns are padded to a multiple of this, the lanes of the widest target.
inline constexpr int64_t kColumnPadding = 16;

struct FixedOrderArgs {
  int64_t in, out, padded_out;
  const float* weight;  // [in, padded_out], 64-byte aligned
  const float* bias;    // [padded_out]
  bool accumulate;
  const float* x;
  int64_t x_stride;
  int64_t rows;
  float* y;
  int64_t y_stride;
};

}  // namespace dinghy::ops
#endif

HWY_BEFORE_NAMESPACE();
namespace dinghy::ops {
namespace HWY_NAMESPACE {

HWY_INLINE void Finish(const FixedOrderArgs& a, Vec sum, int64_t r, int64_t j) {
  const Tag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  float* y = a.y + r * a.y_stride + j;
  const int64_t count = a.out - j;
  if (count >= lanes) {
    hn::StoreU(a.accumulate ? hn::Add(hn::LoadU(d, y), sum) : sum, d, y);
  } else if (count > 0) {
    StoreTail(a.accumulate ? hn::Add(LoadTail(d, y, count), sum) : sum, d, y, count);
  }
}

// kRows rows from r, kVectors vectors of columns from j.
template <int kRows, int kVectors>
HWY_INLINE void Tile(const FixedOrderArgs& a, int64_t r, int64_t j) {
  const Tag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  Vec sum[kRows][kVectors];
  for (int v = 0; v < kVectors; ++v) {
    const Vec bias = hn::Load(d, a.bias + j + v * lanes);
    for (int i = 0; i < kRows; ++i) sum[i][v] = bias;
  }
  const float* w = a.weight + j;
  const float* x = a.x + r * a.x_stride;
  for (int64_t k = 0; k < a.in; ++k, w += a.padded_out) {
    Vec column[kVectors];
    for (int v = 0; v < kVectors; ++v) column[v] = hn::Load(d, w + v * lanes);
    for (int i = 0; i < kRows; ++i) {
      const Vec value = hn::Set(d, x[i * a.x_stride + k]);
      for (int v = 0; v < kVectors; ++v) sum[i][v] = hn::MulAdd(value, column[v], sum[i][v]);
    }
  }
  for (int i = 0; i < kRows; ++i) {
    for (int v = 0; v < kVectors; ++v) Finish(a, sum[i][v], r + i, j + v * lanes);
  }
}

template <int kRows>
HWY_INLINE void Rows(const FixedOrderArgs& a, int64_t r) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(Tag()));
  int64_t j = 0;
  for (; j + 2 * lanes <= a.padded_out; j += 2 * lanes) Tile<kRows, 2>(a, r, j);
  for (; j < a.padded_out; j += lanes) Tile<kRows, 1>(a, r, j);
}

void FixedOrder(const FixedOrderArgs& a) {
  int64_t r = 0;
  for (; r + 4 <= a.rows; r += 4) Rows<4>(a, r);
  for (; r < a.rows; ++r) Rows<1>(a, r);
}

}  // namespace HWY_NAMESPACE
}  // namespace dinghy::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dinghy::ops {

HWY_EXPORT(FixedOrder);

namespace {

class FixedOrderLinear : public RowLinear {
 public:
  FixedOrderLinear(const Options& options, const float* weight, int64_t weight_stride, const float* bias)
      : in_(options.in),
        out_(options.out),
        padded_out_((options.out + kColumnPadding - 1) / kColumnPadding * kColumnPadding),
        accumulate_(options.accumulate),
        weight_(hwy::AllocateAligned<float>(static_cast<size_t>(in_ * padded_out_))),
        bias_(hwy::AllocateAligned<float>(static_cast<size_t>(padded_out_))) {
    std::fill_n(weight_.get(), in_ * padded_out_, 0.0f);
    std::fill_n(bias_.get(), padded_out_, 0.0f);
    for (int64_t j = 0; j < out_; ++j) {
      for (int64_t k = 0; k < in_; ++k) weight_[k * padded_out_ + j] = weight[j * weight_stride + k];
    }
    if (bias != nullptr) std::copy_n(bias, out_, bias_.get());
  }

  void Run(const float* x, int64_t x_stride, int64_t rows, float* y, int64_t y_stride,
           Scratch&) const override {
    HWY_DYNAMIC_DISPATCH(FixedOrder)
    (FixedOrderArgs{in_, out_, padded_out_, weight_.get(), bias_.get(), accumulate_, x, x_stride, rows, y,
                    y_stride});
  }

  std::string Choice() const override { return "highway"; }

 private:
  const int64_t in_;
  const int64_t out_;
  const int64_t padded_out_;
  const bool accumulate_;
  const hwy::AlignedFreeUniquePtr<float[]> weight_;
  const hwy::AlignedFreeUniquePtr<float[]> bias_;
};

}  // namespace

std::unique_ptr<RowLinear> CreateFixedOrderLinear(const RowLinear::Options& options, const float* weight,
                                                  int64_t weight_stride, const float* bias) {
  return std::make_unique<FixedOrderLinear>(options, weight, weight_stride, bias);
}

}  // namespace dinghy::ops
#endif  // HWY_ONCE
