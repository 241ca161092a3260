// Does a matrix product treat all rows of a block alike?
#ifndef DINGHY_MODEL_OPS_ROW_PROBE_H_
#define DINGHY_MODEL_OPS_ROW_PROBE_H_

#include <cstdint>
#include <functional>

namespace dinghy::ops {

struct RowProbeOptions {
  int64_t rows = 0;  // of the block
  int64_t in = 0;
  int64_t out = 0;
  bool accumulate = false;  // `run` adds to y
};

// True if a row gives bit-equal results at every position of the block among random neighbours. `run`
// computes one block: x [rows, in] to y [rows, out], both packed, their alignment varies. Every round takes
// two runs: the row stands in a random half of the positions, then in the other half.
bool RowsAreAlike(const RowProbeOptions& options, const std::function<void(const float* x, float* y)>& run);

}  // namespace dinghy::ops

#endif  // DINGHY_MODEL_OPS_ROW_PROBE_H_
