// The kinds of layer, one function each; CreateLayer chooses. Each takes a layer whose kind is the one that
// it builds. Errors: INVALID_ARGUMENT naming the layer, what was expected and what came.
#ifndef DINGHY_MODEL_LAYERS_KINDS_H_
#define DINGHY_MODEL_LAYERS_KINDS_H_

#include <memory>

#include "absl/status/statusor.h"
#include "model/layers/layer.h"
#include "model/layers/layer_scope.h"
#include "proto/bundle.pb.h"

namespace dinghy {

absl::StatusOr<std::unique_ptr<Layer>> CreateDense(const v1::Layer& layer, LayerScope& scope);
absl::StatusOr<std::unique_ptr<Layer>> CreateMlp(const v1::Layer& layer, LayerScope& scope);
absl::StatusOr<std::unique_ptr<Layer>> CreateAdd(const v1::Layer& layer, LayerScope& scope);
absl::StatusOr<std::unique_ptr<Layer>> CreateMultiply(const v1::Layer& layer, LayerScope& scope);
absl::StatusOr<std::unique_ptr<Layer>> CreateLayerNorm(const v1::Layer& layer, LayerScope& scope);
absl::StatusOr<std::unique_ptr<Layer>> CreateSelfAttention(const v1::Layer& layer, LayerScope& scope);
absl::StatusOr<std::unique_ptr<Layer>> CreateTargetAttention(const v1::Layer& layer, LayerScope& scope);
absl::StatusOr<std::unique_ptr<Layer>> CreatePooling(const v1::Layer& layer, LayerScope& scope);
absl::StatusOr<std::unique_ptr<Layer>> CreateActivation(const v1::Layer& layer, LayerScope& scope);
absl::StatusOr<std::unique_ptr<Layer>> CreateBatchNorm(const v1::Layer& layer, LayerScope& scope);
absl::StatusOr<std::unique_ptr<Layer>> CreateDot(const v1::Layer& layer, LayerScope& scope);

}  // namespace dinghy

#endif  // DINGHY_MODEL_LAYERS_KINDS_H_
