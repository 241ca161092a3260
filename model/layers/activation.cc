#include "model/layers/activation.h"

#include <memory>
#include <utility>

#include "model/layers/inputs.h"
#include "model/layers/kinds.h"
#include "model/ops/vector_math.h"

namespace dinghy {
namespace {

class ActivationLayer : public Layer {
 public:
  ActivationLayer(ValueInfo info, Inputs inputs, v1::Activation function)
      : Layer(std::move(info), {}), inputs_(std::move(inputs)), function_(function) {}

  Value Run(const RunContext& context) const override {
    const int64_t rows = inputs_.Rows(context);
    const int64_t width = inputs_.width();
    float* y = context.scratch.Floats(rows * width);
    inputs_.CopyTo(context, y);
    ApplyActivation(function_, y, rows * width);
    return {y, rows, width};
  }

 private:
  const Inputs inputs_;
  const v1::Activation function_;
};

}  // namespace

void ApplyActivation(v1::Activation activation, float* x, int64_t n) {
  switch (activation) {
    case v1::RELU:
      ops::Relu(x, n);
      break;
    case v1::SIGMOID:
      ops::Sigmoid(x, n);
      break;
    case v1::TANH:
      ops::Tanh(x, n);
      break;
    case v1::SILU:
      ops::Silu(x, n);
      break;
    default:
      break;
  }
}

absl::StatusOr<std::unique_ptr<Layer>> CreateActivation(const v1::Layer& layer, LayerScope& scope) {
  absl::StatusOr<Inputs> inputs = Inputs::Create("inputs", layer.inputs(), scope);
  if (!inputs.ok()) return inputs.status();
  const v1::Activation function = layer.activation().function();
  if (absl::Status status = scope.CheckActivation("function", function); !status.ok()) return status;
  ValueInfo info{layer.name(), inputs->level(), inputs->sequence(), inputs->width()};
  return std::make_unique<ActivationLayer>(std::move(info), *std::move(inputs), function);
}

}  // namespace dinghy
