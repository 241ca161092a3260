// What every kind of target attention reads: query, keys and values, and how they are cut into heads.
//
//   ASSIGN_OR_RETURN(TargetAttentionInputs inputs, TargetAttentionInputs::Create(message, scope));
#ifndef DINGHY_MODEL_LAYERS_TARGET_ATTENTION_INPUTS_H_
#define DINGHY_MODEL_LAYERS_TARGET_ATTENTION_INPUTS_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "model/layers/attention_heads.h"
#include "model/layers/inputs.h"
#include "model/layers/layer.h"
#include "model/layers/layer_scope.h"
#include "proto/bundle.pb.h"

namespace dinghy {

struct TargetAttentionInputs {
  Inputs query;   // user or candidate level
  Inputs keys;    // of one sequence
  Inputs values;  // of the same
  AttentionHeads heads;

  // Errors: INVALID_ARGUMENT naming the layer, what was expected and what came. Whether the keys' width fits
  // is the score's affair.
  static absl::StatusOr<TargetAttentionInputs> Create(const v1::TargetAttention& message,
                                                      const LayerScope& scope);

  // Writes the weights of query `q` to context.attention, the mean over the heads; head h's begin at
  // weights[h * stride].
  void KeepWeights(const RunContext& context, int64_t q, const float* weights, int64_t stride) const;
};

}  // namespace dinghy

#endif  // DINGHY_MODEL_LAYERS_TARGET_ATTENTION_INPUTS_H_
