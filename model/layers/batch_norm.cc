#include <memory>
#include <utility>
#include <vector>

#include "model/layers/inputs.h"
#include "model/layers/kinds.h"
#include "model/ops/vector_math.h"

namespace dinghy {
namespace {

class BatchNormLayer : public Layer {
 public:
  BatchNormLayer(ValueInfo info, const LayerCost& cost, Inputs inputs, const BatchNormWeights& norm)
      : Layer(std::move(info), cost),
        inputs_(std::move(inputs)),
        scale_(norm.scale.begin(), norm.scale.end()),
        shift_(norm.shift.begin(), norm.shift.end()) {}

  Value Run(const RunContext& context) const override {
    const int64_t rows = inputs_.Rows(context);
    const int64_t width = inputs_.width();
    float* y = context.scratch.Floats(rows * width);
    inputs_.CopyTo(context, y);
    ops::ScaleShiftRows(y, rows, width, scale_.data(), shift_.data());
    return {y, rows, width};
  }

 private:
  const Inputs inputs_;
  const std::vector<float> scale_;  // [width]
  const std::vector<float> shift_;  // [width]
};

}  // namespace

absl::StatusOr<std::unique_ptr<Layer>> CreateBatchNorm(const v1::Layer& layer, LayerScope& scope) {
  absl::StatusOr<Inputs> inputs = Inputs::Create("inputs", layer.inputs(), scope);
  if (!inputs.ok()) return inputs.status();
  const absl::StatusOr<BatchNormWeights> norm =
      scope.FindBatchNorm("batch_norm", layer.batch_norm(), inputs->width());
  if (!norm.ok()) return norm.status();
  LayerCost cost;
  cost.parameters = 2 * inputs->width();
  cost.AddPerRow(inputs->level(), 2.0 * inputs->width());
  ValueInfo info{layer.name(), inputs->level(), inputs->sequence(), inputs->width()};
  return std::make_unique<BatchNormLayer>(std::move(info), cost, *std::move(inputs), *norm);
}

}  // namespace dinghy
