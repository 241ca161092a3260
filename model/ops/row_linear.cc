#include "model/ops/row_linear.h"

#include "model/ops/vector_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/ops/row_linear.cc"
#include <algorithm>

#include "hwy/aligned_allocator.h"
#include "hwy/foreach_target.h"  // must precede highway.h
#include "hwy/highway.h"
#include "model/ops/row_tile-inl.h"

#ifndef DINGHY_MODEL_OPS_ROW_LINEAR_ONCE
#define DINGHY_MODEL_OPS_ROW_LINEAR_ONCE
namespace dinghy::ops {

// The weight lies in panels of so many columns, the most that a tile of any target has, so that the tiles
// walk through it from front to back.
inline constexpr int64_t kPanel = 80;
// Columns are padded to a multiple of this, the lanes of the widest target.
inline constexpr int64_t kColumnPadding = 16;

inline int64_t Padded(int64_t columns) {
  return (columns + kColumnPadding - 1) / kColumnPadding * kColumnPadding;
}
inline int64_t PanelWidth(int64_t first, int64_t out) { return std::min(kPanel, Padded(out - first)); }

struct TiledLinearArgs {
  int64_t in, out;
  const float* weight;  // [panels][in, PanelWidth]
  const float* bias;    // [Padded(out)]
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

void RunTiledLinear(const TiledLinearArgs& args) {
  const float* weight = args.weight;
  for (int64_t first = 0; first < args.out; first += kPanel) {
    const int64_t width = PanelWidth(first, args.out);
    RowProduct({.a = args.x,
                .a_stride = args.x_stride,
                .k = args.in,
                .b = weight,
                .b_stride = width,
                .bias = args.bias + first,
                .c = args.y + first,
                .c_stride = args.y_stride,
                .accumulate = args.accumulate},
               args.rows, std::min(kPanel, args.out - first));
    weight += args.in * width;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace dinghy::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dinghy::ops {

HWY_EXPORT(RunTiledLinear);

namespace {

class TiledLinear : public RowLinear {
 public:
  TiledLinear(const Options& options, const float* weight, int64_t weight_stride, const float* bias)
      : in_(options.in),
        out_(options.out),
        accumulate_(options.accumulate),
        weight_(hwy::AllocateAligned<float>(static_cast<size_t>(in_ * Padded(out_)))),
        bias_(hwy::AllocateAligned<float>(static_cast<size_t>(Padded(out_)))) {
    std::fill_n(weight_.get(), in_ * Padded(out_), 0.0f);
    std::fill_n(bias_.get(), Padded(out_), 0.0f);
    float* panel = weight_.get();
    for (int64_t first = 0; first < out_; first += kPanel) {
      const int64_t width = PanelWidth(first, out_);
      for (int64_t j = 0; j < std::min(kPanel, out_ - first); ++j) {
        for (int64_t k = 0; k < in_; ++k) panel[k * width + j] = weight[(first + j) * weight_stride + k];
      }
      panel += in_ * width;
    }
    if (bias != nullptr) std::copy_n(bias, out_, bias_.get());
  }

  void Run(const float* x, int64_t x_stride, int64_t rows, float* y, int64_t y_stride,
           Scratch&) const override {
    HWY_DYNAMIC_DISPATCH(RunTiledLinear)
    ({.in = in_,
      .out = out_,
      .weight = weight_.get(),
      .bias = bias_.get(),
      .accumulate = accumulate_,
      .x = x,
      .x_stride = x_stride,
      .rows = rows,
      .y = y,
      .y_stride = y_stride});
  }

  std::string Choice() const override { return "tiles"; }

 private:
  const int64_t in_;
  const int64_t out_;
  const bool accumulate_;
  const hwy::AlignedFreeUniquePtr<float[]> weight_;
  const hwy::AlignedFreeUniquePtr<float[]> bias_;
};

}  // namespace

std::unique_ptr<RowLinear> CreateTiledLinear(const RowLinear::Options& options, const float* weight,
                                             int64_t weight_stride, const float* bias) {
  return std::make_unique<TiledLinear>(options, weight, weight_stride, bias);
}

}  // namespace dinghy::ops
#endif  // HWY_ONCE
