#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "model/layers/inputs.h"
#include "model/layers/kinds.h"
#include "model/ops/vector_math.h"

namespace dinghy {
namespace {

class PoolingLayer : public Layer {
 public:
  // `empty` [width]: what a history without a real behavior pools to.
  PoolingLayer(ValueInfo info, const LayerCost& cost, Inputs inputs, v1::Pooling::Method method,
               std::vector<float> empty)
      : Layer(std::move(info), cost), inputs_(std::move(inputs)), method_(method), empty_(std::move(empty)) {}

  Value Run(const RunContext& context) const override {
    const int64_t length = inputs_.Rows(context);
    const int64_t width = inputs_.width();
    float* y = context.scratch.Floats(width);
    ops::Scratch::Scope scope(context.scratch);
    if (length == 0) {
      std::copy_n(empty_.data(), width, y);
    } else if (method_ == v1::Pooling::LAST) {
      const float* last = inputs_.Row(context, length - 1, y);
      if (last != y) std::copy_n(last, width, y);
    } else {
      const Value x = inputs_.Gather(context);
      float* weights = context.scratch.Floats(length);
      std::fill_n(weights, length, 1.0f);
      ops::WeightedSumRows(x.data, x.stride, weights, length, width, y);
      if (method_ == v1::Pooling::MEAN) ops::Scale(1.0f / static_cast<float>(length), y, width);
    }
    return {y, 1, width};
  }

 private:
  const Inputs inputs_;
  const v1::Pooling::Method method_;
  const std::vector<float> empty_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Layer>> CreatePooling(const v1::Layer& layer, LayerScope& scope) {
  absl::StatusOr<Inputs> inputs = Inputs::Create("inputs", layer.inputs(), scope);
  if (!inputs.ok()) return inputs.status();
  if (inputs->level() != v1::SEQUENCE) {
    return scope.Error("inputs: expected sequence level, got ",
                       scope.Where(inputs->level(), inputs->sequence()));
  }
  const v1::Pooling::Method method = layer.pooling().method();
  if (method != v1::Pooling::SUM && method != v1::Pooling::MEAN && method != v1::Pooling::LAST) {
    return scope.Error("pooling.method: expected SUM, MEAN or LAST, got nothing");
  }
  const absl::StatusOr<v1::Sequence::Pad> pad = scope.FindPad(inputs->sequence());
  if (!pad.ok()) return pad.status();
  if (*pad != v1::Sequence::NONE && layer.pooling().empty() == v1::EMPTY_UNSPECIFIED) {
    return scope.Error("pooling.empty: expected ZEROS or PAD_VALUE, since ",
                       scope.Where(v1::SEQUENCE, inputs->sequence()), " is padded, got nothing");
  }
  absl::StatusOr<std::vector<float>> empty = inputs->EmptyRow("inputs", layer.pooling().empty(), scope);
  if (!empty.ok()) return empty.status();
  LayerCost cost;
  cost.AddPerRow(v1::SEQUENCE, 2.0 * inputs->width());
  ValueInfo info{.name = layer.name(), .level = v1::USER, .width = inputs->width()};
  return std::make_unique<PoolingLayer>(std::move(info), cost, *std::move(inputs), method, *std::move(empty));
}

}  // namespace dinghy
