// How fast this machine multiplies matrices: the measure for what the engine reaches.
//
//   ASSIGN_OR_RETURN(GemmCeiling ceiling, MeasureGemmCeiling({.threads = 1}));
//   ceiling.gflops                                  // f32 GFLOP/s of all threads together
//
// Thread-safe, but what else runs slows it down.
#ifndef DINGHY_SERVER_BENCH_GEMM_CEILING_H_
#define DINGHY_SERVER_BENCH_GEMM_CEILING_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace dinghy {

struct GemmCeilingOptions {
  int threads = 1;                                         // each multiplies on its own, all at once
  absl::Duration time_per_size = absl::Milliseconds(100);  // of several sizes
};

struct GemmCeiling {
  double gflops = 0;  // 10^9 multiply-adds counted as 2, a second, of all threads together
  int64_t size = 0;   // of the square matrices that reached it
};

// The best over a few sizes of the median over time, f32 with packed weights through oneDNN, one thread a
// product. Errors as ops::RowLinear::Create.
absl::StatusOr<GemmCeiling> MeasureGemmCeiling(const GemmCeilingOptions& options);

}  // namespace dinghy

#endif  // DINGHY_SERVER_BENCH_GEMM_CEILING_H_
