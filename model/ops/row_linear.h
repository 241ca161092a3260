// RowLinear by our own register tiles: for any number of rows, without padding, copies or calls.
#ifndef DINGHY_MODEL_OPS_ROW_LINEAR_H_
#define DINGHY_MODEL_OPS_ROW_LINEAR_H_

#include <memory>

#include "model/ops/gemm.h"

namespace dinghy::ops {

// As RowLinear::Create. Each result is fused multiply-adds over the inputs in rising order, then plus the
// bias and, if `accumulate`, the old y: the same for every row by construction.
std::unique_ptr<RowLinear> CreateTiledLinear(const RowLinear::Options& options, const float* weight,
                                             int64_t weight_stride, const float* bias);

}  // namespace dinghy::ops

#endif  // DINGHY_MODEL_OPS_ROW_LINEAR_H_
