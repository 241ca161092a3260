#include "model/layers/layer.h"

#include "model/layers/kinds.h"
#include "model/layers/layer_scope.h"

namespace dinghy {

absl::StatusOr<std::unique_ptr<Layer>> CreateLayer(const v1::Layer& layer, LayerScope& scope) {
  scope.SetSubject("layer", layer.name());
  switch (layer.kind_case()) {
    case v1::Layer::kDense:
      return CreateDense(layer, scope);
    case v1::Layer::kMlp:
      return CreateMlp(layer, scope);
    case v1::Layer::kAdd:
      return CreateAdd(layer, scope);
    case v1::Layer::kMultiply:
      return CreateMultiply(layer, scope);
    case v1::Layer::kLayerNorm:
      return CreateLayerNorm(layer, scope);
    case v1::Layer::kSelfAttention:
      return CreateSelfAttention(layer, scope);
    case v1::Layer::kTargetAttention:
      return CreateTargetAttention(layer, scope);
    case v1::Layer::kPooling:
      return CreatePooling(layer, scope);
    case v1::Layer::kActivation:
      return CreateActivation(layer, scope);
    case v1::Layer::kBatchNorm:
      return CreateBatchNorm(layer, scope);
    case v1::Layer::kDot:
      return CreateDot(layer, scope);
    case v1::Layer::KIND_NOT_SET:
      break;
  }
  return scope.Error("expected a kind of layer, got none that is known");
}

std::string LayerKind(const v1::Layer& layer) {
  if (layer.kind_case() == v1::Layer::KIND_NOT_SET) return "";
  return v1::Layer::descriptor()->FindFieldByNumber(layer.kind_case())->name();
}

}  // namespace dinghy
