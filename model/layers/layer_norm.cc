#include <memory>
#include <utility>

#include "model/layers/inputs.h"
#include "model/layers/kinds.h"
#include "model/ops/vector_math.h"

namespace dinghy {
namespace {

class LayerNormLayer : public Layer {
 public:
  LayerNormLayer(ValueInfo info, const LayerCost& cost, Inputs inputs, const NormWeights& norm)
      : Layer(std::move(info), cost), inputs_(std::move(inputs)), norm_(norm) {}

  Value Run(const RunContext& context) const override {
    const int64_t rows = inputs_.Rows(context);
    const int64_t width = inputs_.width();
    float* y = context.scratch.Floats(rows * width);
    inputs_.CopyTo(context, y);
    ops::LayerNormRows(y, rows, width, norm_.weight, norm_.bias, norm_.epsilon, y);
    return {y, rows, width};
  }

 private:
  const Inputs inputs_;
  const NormWeights norm_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Layer>> CreateLayerNorm(const v1::Layer& layer, LayerScope& scope) {
  absl::StatusOr<Inputs> inputs = Inputs::Create("inputs", layer.inputs(), scope);
  if (!inputs.ok()) return inputs.status();
  const absl::StatusOr<NormWeights> norm = scope.FindNorm("layer_norm", layer.layer_norm(), inputs->width());
  if (!norm.ok()) return norm.status();
  LayerCost cost;
  cost.parameters = 2 * inputs->width();
  cost.AddPerRow(inputs->level(), 8.0 * inputs->width());
  ValueInfo info{layer.name(), inputs->level(), inputs->sequence(), inputs->width()};
  return std::make_unique<LayerNormLayer>(std::move(info), cost, *std::move(inputs), *norm);
}

}  // namespace dinghy
