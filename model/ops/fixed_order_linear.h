// RowLinear without oneDNN: for shapes where none of its blocks treats all rows alike.
#ifndef DINGHY_MODEL_OPS_FIXED_ORDER_LINEAR_H_
#define DINGHY_MODEL_OPS_FIXED_ORDER_LINEAR_H_

#include <memory>

#include "model/ops/gemm.h"

namespace dinghy::ops {

// As RowLinear::Create. Each result is the bias (or 0) plus fused multiply-adds over the inputs in rising
// order, then plus the old y if `accumulate`: the same for every row by construction. 2 to 4 times slower
// than oneDNN.
std::unique_ptr<RowLinear> CreateFixedOrderLinear(const RowLinear::Options& options, const float* weight,
                                                  int64_t weight_stride, const float* bias);

}  // namespace dinghy::ops

#endif  // DINGHY_MODEL_OPS_FIXED_ORDER_LINEAR_H_
