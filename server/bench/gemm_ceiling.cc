#include "server/bench/gemm_ceiling.h"

#include <memory>
#include <vector>

#include "model/ops/cpu.h"
#include "model/ops/gemm.h"
#include "model/ops/scratch.h"
#include "server/bench/timed_runs.h"

namespace dinghy {
namespace {

// Large enough to hide the edges, small enough that three matrices stay in the second-level cache.
constexpr int64_t kSizes[] = {192, 256, 384, 512};

// What a thread writes to.
struct Own {
  explicit Own(int64_t count) : product(count) {}

  std::vector<float> product;
  ops::Scratch scratch;
};

}  // namespace

absl::StatusOr<GemmCeiling> MeasureGemmCeiling(const GemmCeilingOptions& options) {
  ops::PrepareThread();
  GemmCeiling best;
  for (const int64_t size : kSizes) {
    // Neither zeros nor denormals, which some machines multiply at another speed.
    const std::vector<float> numbers(size * size, 0.5f);
    const absl::StatusOr<std::unique_ptr<ops::RowLinear>> linear = ops::RowLinear::Create(
        {.in = size, .out = size, .onednn = true, .rows = size}, numbers.data(), size, nullptr);
    if (!linear.ok()) return linear.status();
    const std::vector<double> seconds = TimedRuns(options.threads, options.time_per_size, [&](int) {
      auto own = std::make_shared<Own>(size * size);
      return TimedWork{.run = [&numbers, size, &linear = **linear, own] {
        linear.Run(numbers.data(), size, size, own->product.data(), size, own->scratch);
      }};
    });
    const double flops = 2.0 * static_cast<double>(size * size * size);
    const double gflops = options.threads * flops / Median(seconds) * 1e-9;
    if (gflops > best.gflops) best = {.gflops = gflops, .size = size};
  }
  return best;
}

}  // namespace dinghy
