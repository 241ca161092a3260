// Inner product of two inputs, row by row.
#include <memory>
#include <utility>

#include "model/layers/inputs.h"
#include "model/layers/kinds.h"
#include "model/ops/vector_math.h"

namespace dinghy {
namespace {

class DotLayer : public Layer {
 public:
  DotLayer(ValueInfo info, const LayerCost& cost, Inputs left, Inputs right)
      : Layer(std::move(info), cost), left_(std::move(left)), right_(std::move(right)) {}

  Value Run(const RunContext& context) const override {
    const int64_t rows = context.Rows(info().level, info().sequence);
    float* y = context.scratch.Floats(rows);
    ops::Scratch::Scope scope(context.scratch);
    const Value left = left_.Gather(context);
    const Value right = right_.Gather(context);
    const int64_t left_stride = left_.level() == info().level ? left.stride : 0;
    const int64_t right_stride = right_.level() == info().level ? right.stride : 0;
    for (int64_t r = 0; r < rows; ++r) {
      y[r] = ops::Dot(left.data + r * left_stride, right.data + r * right_stride, left_.width());
    }
    return {y, rows, 1};
  }

 private:
  const Inputs left_;
  const Inputs right_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Layer>> CreateDot(const v1::Layer& layer, LayerScope& scope) {
  absl::StatusOr<Inputs> left = Inputs::Create("left", layer.dot().left(), scope);
  if (!left.ok()) return left.status();
  absl::StatusOr<Inputs> right = Inputs::Create("right", layer.dot().right(), scope);
  if (!right.ok()) return right.status();
  if (left->width() != right->width()) {
    return scope.Error("right: expected width ", left->width(), " as left has, got ", right->width());
  }
  ValueInfo info{layer.name(), left->level(), left->sequence(), 1};
  if (absl::Status status =
          MixLevels(scope, "left", info.level, info.sequence, "right", right->level(), right->sequence());
      !status.ok()) {
    return status;
  }
  LayerCost cost;
  cost.AddPerRow(info.level, 2.0 * left->width());
  return std::make_unique<DotLayer>(std::move(info), cost, *std::move(left), *std::move(right));
}

}  // namespace dinghy
