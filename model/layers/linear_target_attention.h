// Target attention whose cost per candidate does not depend on the history's length.
#ifndef DINGHY_MODEL_LAYERS_LINEAR_TARGET_ATTENTION_H_
#define DINGHY_MODEL_LAYERS_LINEAR_TARGET_ATTENTION_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "model/layers/layer.h"
#include "model/layers/layer_scope.h"
#include "model/layers/target_attention_inputs.h"
#include "proto/bundle.pb.h"

namespace dinghy {

// Linear attention (Katharopoulos et al., 2020) of `layer`, whose score is `linear`. `empty`: what an empty
// history gives, as wide as the result. Errors: INVALID_ARGUMENT naming the layer, what was expected and what
// came.
absl::StatusOr<std::unique_ptr<Layer>> CreateLinearTargetAttention(const v1::Layer& layer,
                                                                   TargetAttentionInputs inputs,
                                                                   std::vector<float> empty,
                                                                   LayerScope& scope);

}  // namespace dinghy

#endif  // DINGHY_MODEL_LAYERS_LINEAR_TARGET_ATTENTION_H_
