// y = [inputs] W^T + b without the concatenation: the user's columns are multiplied once per request and join
// the other rows as a bias.
//
//   ASSIGN_OR_RETURN(SplitLinear linear, SplitLinear::Create(inputs, weights, scope));
//   linear.Prepare(context, part);               // once per user
//   float* y = linear.Run(context);              // [rows of the inputs' level, out], packed
//
// Const after Create, so thread-safe.
#ifndef DINGHY_MODEL_LAYERS_SPLIT_LINEAR_H_
#define DINGHY_MODEL_LAYERS_SPLIT_LINEAR_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "model/layers/inputs.h"
#include "model/layers/layer.h"
#include "model/layers/layer_scope.h"
#include "model/ops/gemm.h"

namespace dinghy {

class SplitLinear {
 public:
  SplitLinear() = default;

  // `weights.in` must be inputs.width(); the weights are copied, the activation is not applied.
  static absl::StatusOr<SplitLinear> Create(const Inputs& inputs, const DenseWeights& weights,
                                            LayerScope& scope);

  // Fills in `part.bias`.
  void Prepare(const RunContext& context, UserPart& part) const;

  // y [rows, out], packed, which the caller may go on writing to.
  float* Run(const RunContext& context) const;

  void AddCost(LayerCost& cost) const;

 private:
  int64_t out_ = 0;
  Inputs user_inputs_;
  Inputs row_inputs_;
  std::unique_ptr<ops::RowLinear> user_;  // null without user-level inputs
  std::unique_ptr<ops::RowLinear> rows_;  // null without others
};

// A linear step from [rows, in] at `level`: one row at user level, else any number.
absl::StatusOr<std::unique_ptr<ops::RowLinear>> CreateRowLinear(v1::Level level, const DenseWeights& weights,
                                                                LayerScope& scope);

}  // namespace dinghy

#endif  // DINGHY_MODEL_LAYERS_SPLIT_LINEAR_H_
