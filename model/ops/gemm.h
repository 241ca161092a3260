// Matrix products, single-threaded, f32, made at load time.
//
//   ASSIGN_OR_RETURN(auto linear, RowLinear::Create({.in = 80, .out = 40}, weight, bias));
//   linear->Run(x, rows, y, scratch);            // any number of rows
//
// Bits: a row's result depends on the row and the weights alone, never on its position or on the other rows.
// Our own register tiles (row_linear.h) give that by construction. oneDNN does not promise it, so where it is
// asked for, Create probes and picks the first block size of a fixed list where it holds. Const and
// thread-safe after Create; every thread calls PrepareThread first.
#ifndef DINGHY_MODEL_OPS_GEMM_H_
#define DINGHY_MODEL_OPS_GEMM_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "model/ops/scratch.h"

namespace dinghy::ops {

// y = x W^T + bias over rows, for static weights.
class RowLinear {
 public:
  struct Options {
    int64_t in = 0;
    int64_t out = 0;
    bool accumulate = false;  // y += instead of y =
    // Through oneDNN, in blocks of one fixed size; a short block is padded, never shrunk. Else by our own
    // tiles, which need no padding and are faster where rows are few.
    bool onednn = false;
    int64_t rows = 0;  // > 0: oneDNN is always called with exactly so many rows, in one block, not probed
  };
  // `weight` [out, in] with a distance of `weight_stride` floats from row to row (>= in), `bias` [out] or
  // null; both are copied and packed.
  static absl::StatusOr<std::unique_ptr<RowLinear>> Create(const Options& options, const float* weight,
                                                           int64_t weight_stride, const float* bias);
  virtual ~RowLinear() = default;

  // x: [rows, in] with stride x_stride; y: [rows, out] with stride y_stride. No alias between them.
  virtual void Run(const float* x, int64_t x_stride, int64_t rows, float* y, int64_t y_stride,
                   Scratch& scratch) const = 0;

  // How, and oneDNN's rows per block as probed: "tiles", "oneDNN 64". Part of numerics_id.
  virtual std::string Choice() const = 0;
};

// c = a b (or c += a b) for operands that are both made at run time, of one fixed shape.
// Abstract, as RowLinear is, so that oneDNN's types stay out of this header.
class Gemm {
 public:
  struct Options {
    int64_t m = 0, n = 0, k = 0;
    int64_t a_stride = 0, b_stride = 0, c_stride = 0;  // from row to row, in floats
    bool transpose_b = false;                          // b is [n, k] instead of [k, n]
    bool bias = false;                                 // Run takes a bias [n], added to every row
    bool accumulate = false;
  };
  static absl::StatusOr<std::unique_ptr<Gemm>> Create(const Options& options);
  virtual ~Gemm() = default;

  // a: [m, k], b: [k, n] (or [n, k]), c: [m, n]; `bias` as Options says, else null.
  virtual void Run(const float* a, const float* b, const float* bias, float* c, Scratch& scratch) const = 0;
};

}  // namespace dinghy::ops

#endif  // DINGHY_MODEL_OPS_GEMM_H_
