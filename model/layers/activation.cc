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
  ActivationLayer(ValueInfo info, const LayerCost& cost, Inputs inputs, Activation function)
      : Layer(std::move(info), cost), inputs_(std::move(inputs)), function_(std::move(function)) {}

  Value Run(const RunContext& context) const override {
    const int64_t rows = inputs_.Rows(context);
    const int64_t width = inputs_.width();
    float* y = context.scratch.Floats(rows * width);
    inputs_.CopyTo(context, y);
    function_.Apply(y, rows);
    return {y, rows, width};
  }

 private:
  const Inputs inputs_;
  const Activation function_;
};

}  // namespace

void Activation::Apply(float* x, int64_t rows) const {
  const int64_t n = rows * width;
  switch (kind) {
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
    case v1::LEAKY_RELU:
      ops::LeakyRelu(slope, x, n);
      break;
    case v1::PRELU:
      ops::PreluRows(x, rows, width, alpha.data());
      break;
    case v1::DICE:
      ops::DiceRows(x, rows, width, alpha.data(), norm_scale.data(), norm_shift.data());
      break;
    case v1::GELU_ERF:
      ops::GeluErf(x, n);
      break;
    case v1::GELU_TANH:
      ops::GeluTanh(x, n);
      break;
    default:
      break;
  }
}

absl::StatusOr<std::unique_ptr<Layer>> CreateActivation(const v1::Layer& layer, LayerScope& scope) {
  absl::StatusOr<Inputs> inputs = Inputs::Create("inputs", layer.inputs(), scope);
  if (!inputs.ok()) return inputs.status();
  absl::StatusOr<Activation> function =
      scope.FindActivation("function", layer.activation().function(), "parameters",
                           layer.activation().parameters(), inputs->width());
  if (!function.ok()) return function.status();
  LayerCost cost;
  cost.parameters = function->parameters();
  ValueInfo info{layer.name(), inputs->level(), inputs->sequence(), inputs->width()};
  return std::make_unique<ActivationLayer>(std::move(info), cost, *std::move(inputs), *std::move(function));
}

}  // namespace dinghy
