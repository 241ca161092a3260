// Dense and mlp: dense layers in a row, the first one over an input list.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "model/layers/activation.h"
#include "model/layers/kinds.h"
#include "model/layers/split_linear.h"

namespace dinghy {
namespace {

struct Step {
  std::unique_ptr<ops::RowLinear> linear;  // null for the first one
  int64_t out = 0;
  Activation activation;
};

class MlpLayer : public Layer {
 public:
  MlpLayer(ValueInfo info, const LayerCost& cost, SplitLinear first, std::vector<Step> steps)
      : Layer(std::move(info), cost), first_(std::move(first)), steps_(std::move(steps)) {}

  void Prepare(const RunContext& context, UserPart& part) const override { first_.Prepare(context, part); }

  Value Run(const RunContext& context) const override {
    const int64_t rows = context.Rows(info().level, info().sequence);
    float* x = first_.Run(context);
    steps_[0].activation.Apply(x, rows);
    for (size_t i = 1; i < steps_.size(); ++i) {
      const Step& step = steps_[i];
      float* y = context.scratch.Floats(rows * step.out);
      if (rows > 0) step.linear->Run(x, steps_[i - 1].out, rows, y, step.out, context.scratch);
      step.activation.Apply(y, rows);
      x = y;
    }
    return {x, rows, info().width};
  }

 private:
  const SplitLinear first_;
  const std::vector<Step> steps_;
};

absl::StatusOr<std::unique_ptr<Layer>> Create(const v1::Layer& layer, LayerScope& scope,
                                              const std::vector<std::pair<std::string, v1::Dense>>& denses) {
  absl::StatusOr<Inputs> inputs = Inputs::Create("inputs", layer.inputs(), scope);
  if (!inputs.ok()) return inputs.status();
  if (denses.empty()) return scope.Error("mlp.layers: expected at least one, got none");
  LayerCost cost;
  SplitLinear first;
  std::vector<Step> steps;
  int64_t in = inputs->width();
  for (const auto& [field, dense] : denses) {
    const absl::StatusOr<DenseWeights> weights = scope.FindDense(field, dense, in);
    if (!weights.ok()) return weights.status();
    cost.parameters += weights->parameters();
    Step step{.linear = nullptr, .out = weights->out, .activation = weights->activation};
    if (steps.empty()) {
      absl::StatusOr<SplitLinear> split = SplitLinear::Create(*inputs, *weights, scope);
      if (!split.ok()) return split.status();
      first = *std::move(split);
      first.AddCost(cost);
    } else {
      absl::StatusOr<std::unique_ptr<ops::RowLinear>> linear =
          CreateRowLinear(inputs->level(), *weights, scope);
      if (!linear.ok()) return linear.status();
      step.linear = *std::move(linear);
      cost.AddPerRow(inputs->level(), 2.0 * static_cast<double>(in) * static_cast<double>(step.out));
    }
    in = step.out;
    steps.push_back(std::move(step));
  }
  ValueInfo info{layer.name(), inputs->level(), inputs->sequence(), static_cast<int>(in)};
  return std::make_unique<MlpLayer>(std::move(info), cost, std::move(first), std::move(steps));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Layer>> CreateDense(const v1::Layer& layer, LayerScope& scope) {
  return Create(layer, scope, {{"dense", layer.dense()}});
}

absl::StatusOr<std::unique_ptr<Layer>> CreateMlp(const v1::Layer& layer, LayerScope& scope) {
  std::vector<std::pair<std::string, v1::Dense>> denses;
  for (int i = 0; i < layer.mlp().layers_size(); ++i) {
    denses.emplace_back(absl::StrCat("mlp.layers[", i, "]"), layer.mlp().layers(i));
  }
  return Create(layer, scope, denses);
}

}  // namespace dinghy
