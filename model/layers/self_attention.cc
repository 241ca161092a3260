// SASRec-style self-attention over one sequence.
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "model/layers/attention_block.h"
#include "model/layers/inputs.h"
#include "model/layers/kinds.h"
#include "model/ops/vector_math.h"

namespace dinghy {
namespace {

struct Parts {
  Inputs inputs;
  float input_scale = 1;
  const float* positions = nullptr;  // [at least max_length, width]; null for none
  int64_t position_parameters = 0;
  bool from_newest = false;
  std::unique_ptr<HeadAttention> heads;  // at a fixed address: the blocks point to it
  std::vector<AttentionBlock> blocks;
  bool has_final_norm = false;
  NormWeights final_norm;
};

class SelfAttentionLayer : public Layer {
 public:
  SelfAttentionLayer(ValueInfo info, const LayerCost& cost, Parts parts)
      : Layer(std::move(info), cost), parts_(std::move(parts)) {}

  Value Run(const RunContext& context) const override {
    const int64_t length = parts_.inputs.Rows(context);
    const int64_t width = info().width;
    float* x = context.scratch.Floats(length * width);
    const Value out{x, length, width};
    if (length == 0) return out;
    parts_.inputs.CopyTo(context, x);
    if (parts_.positions != nullptr) {
      for (int64_t r = 0; r < length; ++r) {
        const float* position = parts_.positions + (parts_.from_newest ? length - 1 - r : r) * width;
        ops::ScaleAdd(x + r * width, parts_.input_scale, position, x + r * width, width);
      }
    } else if (parts_.input_scale != 1) {
      ops::Scale(parts_.input_scale, x, length * width);
    }
    for (const AttentionBlock& block : parts_.blocks) block.Run(x, length, context.scratch);
    if (parts_.has_final_norm) {
      const NormWeights& norm = parts_.final_norm;
      ops::LayerNormRows(x, length, width, norm.weight, norm.bias, norm.epsilon, x);
    }
    return out;
  }

 private:
  const Parts parts_;
};

absl::Status CheckFields(const v1::SelfAttention& attention, const Inputs& inputs, const LayerScope& scope) {
  if (inputs.level() != v1::SEQUENCE) {
    return scope.Error("inputs: expected sequence level, got ",
                       scope.Where(inputs.level(), inputs.sequence()));
  }
  if (!attention.has_heads()) return scope.Error("heads: expected a number, got nothing");
  if (attention.heads() < 1 || attention.heads() > static_cast<uint32_t>(inputs.width()) ||
      inputs.width() % attention.heads() != 0) {
    return scope.Error("heads: expected a divisor of the width ", inputs.width(), ", got ",
                       attention.heads());
  }
  if (attention.wiring() != v1::SelfAttention::PRE_NORM &&
      attention.wiring() != v1::SelfAttention::POST_NORM &&
      attention.wiring() != v1::SelfAttention::SASREC_ORIGINAL) {
    return scope.Error("wiring: expected PRE_NORM, POST_NORM or SASREC_ORIGINAL, got nothing");
  }
  if (!attention.has_causal()) return scope.Error("causal: expected true or false, got nothing");
  if (!attention.has_input_scale() || !std::isfinite(attention.input_scale())) {
    return scope.Error("input_scale: expected a finite number, got ",
                       attention.has_input_scale() ? absl::StrCat(attention.input_scale()) : "nothing");
  }
  if (attention.blocks().empty()) return scope.Error("blocks: expected at least one, got none");
  return absl::OkStatus();
}

absl::Status FindPositions(const v1::SelfAttention& attention, int64_t max_length, int64_t width,
                           const LayerScope& scope, Parts& parts) {
  if (!attention.has_positions()) return absl::OkStatus();
  const v1::LearnedPositions& positions = attention.positions();
  if (positions.origin() != v1::FROM_OLDEST && positions.origin() != v1::FROM_NEWEST) {
    return scope.Error("positions.origin: expected FROM_OLDEST or FROM_NEWEST, got nothing");
  }
  const absl::StatusOr<const Tensor*> tensor =
      scope.FindTensor("positions.tensor", positions.tensor(), {-1, width});
  if (!tensor.ok()) return tensor.status();
  if ((*tensor)->shape[0] < max_length) {
    return scope.Error("positions.tensor \"", positions.tensor(), "\": expected at least ", max_length,
                       " rows, the sequence's max_length, got ", (*tensor)->shape[0]);
  }
  parts.positions = (*tensor)->data.get();
  parts.position_parameters = (*tensor)->size;
  parts.from_newest = positions.origin() == v1::FROM_NEWEST;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Layer>> CreateSelfAttention(const v1::Layer& layer, LayerScope& scope) {
  const v1::SelfAttention& attention = layer.self_attention();
  absl::StatusOr<Inputs> inputs = Inputs::Create("inputs", layer.inputs(), scope);
  if (!inputs.ok()) return inputs.status();
  if (absl::Status status = CheckFields(attention, *inputs, scope); !status.ok()) return status;

  Parts parts;
  parts.inputs = *std::move(inputs);
  parts.input_scale = attention.input_scale();
  const int64_t width = parts.inputs.width();
  const absl::StatusOr<int64_t> max_length = scope.FindMaxLength(parts.inputs.sequence());
  if (!max_length.ok()) return max_length.status();
  if (absl::Status status = FindPositions(attention, *max_length, width, scope, parts); !status.ok()) {
    return status;
  }
  absl::StatusOr<HeadAttention> heads = HeadAttention::Create(
      {.width = width, .heads = attention.heads(), .max_length = *max_length, .causal = attention.causal()});
  if (!heads.ok()) return heads.status();
  parts.heads = std::make_unique<HeadAttention>(*std::move(heads));

  LayerCost cost;
  cost.parameters += parts.position_parameters;
  for (int i = 0; i < attention.blocks_size(); ++i) {
    absl::StatusOr<AttentionBlock> block = AttentionBlock::Create(
        absl::StrCat("blocks[", i, "]"), attention.blocks(i), attention.wiring(), *parts.heads, scope);
    if (!block.ok()) return block.status();
    block->AddCost(cost);
    parts.blocks.push_back(*std::move(block));
  }
  if (attention.has_final_norm()) {
    const absl::StatusOr<NormWeights> norm = scope.FindNorm("final_norm", attention.final_norm(), width);
    if (!norm.ok()) return norm.status();
    parts.has_final_norm = true;
    parts.final_norm = *norm;
    cost.parameters += 2 * width;
  }
  ValueInfo info{layer.name(), v1::SEQUENCE, parts.inputs.sequence(), static_cast<int>(width)};
  return std::make_unique<SelfAttentionLayer>(std::move(info), cost, std::move(parts));
}

}  // namespace dinghy
