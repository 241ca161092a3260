// SASRec-style self-attention over one sequence.
#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "model/layers/attention_block.h"
#include "model/layers/inputs.h"
#include "model/layers/kinds.h"
#include "model/layers/positions.h"
#include "model/layers/value_readers.h"
#include "model/ops/vector_math.h"

namespace dinghy {
namespace {

struct Parts {
  Inputs inputs;
  int64_t max_length = 0;
  float input_scale = 1;
  Positions positions;
  bool has_input_norm = false;
  NormWeights input_norm;
  v1::SelfAttention::Pads pads = v1::SelfAttention::MASKED;
  bool left = false;             // pads stand before the oldest behavior
  std::vector<float> pad_input;  // [width], ATTENDED; zeros for ZEROED; empty for MASKED
  std::vector<AttentionBlock> blocks;
  bool has_final_norm = false;
  NormWeights final_norm;
  bool newest_alone = false;  // is read, so the last block computes no other row
};

void Normalize(const NormWeights& norm, float* x, int64_t rows, int64_t width) {
  ops::LayerNormRows(x, rows, width, norm.weight, norm.bias, norm.epsilon, x);
}

class SelfAttentionLayer : public Layer {
 public:
  SelfAttentionLayer(ValueInfo info, const LayerCost& cost, Parts parts)
      : Layer(std::move(info), cost), parts_(std::move(parts)) {
    if (parts_.pads == v1::SelfAttention::MASKED) return;
    ops::Scratch scratch;
    float* x = scratch.Floats(parts_.inputs.width());
    const float* y =
        Encode(x, {.rows = 1, .pads = parts_.max_length}, parts_.max_length, /*newest=*/false, scratch);
    pad_row_.assign(y, y + this->info().width);
  }

  Value Run(const RunContext& context) const override {
    const int64_t length = parts_.inputs.Rows(context);
    const int64_t width = parts_.inputs.width();
    const int64_t pads = parts_.max_length - length;
    if (length == 0) return {context.scratch.Floats(0), 0, info().width};
    HistoryRows rows{.rows = length};
    if (parts_.pads != v1::SelfAttention::MASKED && pads > 0) rows = {.rows = length + 1, .pads = pads};
    const int64_t first = rows.rows - length;
    float* x = context.scratch.Floats(rows.rows * width);
    parts_.inputs.CopyTo(context, x + first * width);
    if (parts_.newest_alone && !context.complete && length > 1) {
      return {Encode(x, rows, pads, /*newest=*/true, context.scratch), length, /*stride=*/0};
    }
    const float* encoded = Encode(x, rows, pads, /*newest=*/false, context.scratch);
    return {encoded + first * info().width, length, info().width};
  }

  absl::Span<const float> PadRow() const override { return pad_row_; }

 private:
  // The encoded rows [rows.rows, info().width], or the newest of them alone, to which the last block keeps. x
  // [rows.rows, width of the inputs] holds the real behaviors' rows; it is overwritten.
  const float* Encode(float* x, const HistoryRows& rows, int64_t pads, bool newest,
                      ops::Scratch& scratch) const {
    int64_t width = parts_.inputs.width();
    if (rows.pads > 0) std::copy_n(parts_.pad_input.data(), width, x);
    parts_.positions.ScaleAndAdd(parts_.input_scale, x, rows, pads);
    ZeroPad(x, width, rows);
    if (parts_.has_input_norm) Normalize(parts_.input_norm, x, rows.rows, width);
    for (size_t i = 0; i + (newest ? 1 : 0) < parts_.blocks.size(); ++i) {
      x = parts_.blocks[i].Run(x, rows, scratch);
      width = parts_.blocks[i].out_width();
      ZeroPad(x, width, rows);
    }
    if (newest) x = parts_.blocks.back().RunNewest(x, rows, scratch);
    if (parts_.has_final_norm) Normalize(parts_.final_norm, x, newest ? 1 : rows.rows, info().width);
    return x;
  }

  void ZeroPad(float* x, int64_t width, const HistoryRows& rows) const {
    if (rows.pads > 0 && parts_.pads == v1::SelfAttention::ZEROED) std::fill_n(x, width, 0.0f);
  }

  const Parts parts_;
  std::vector<float> pad_row_;  // [info().width]; empty for MASKED
};

absl::Status CheckHeads(const v1::SelfAttention& attention, const LayerScope& scope) {
  if (!attention.has_heads()) return scope.Error("heads: expected a number, got nothing");
  if (attention.heads() < 1) return scope.Error("heads: expected at least 1, got 0");
  const uint32_t key_value_heads = attention.key_value_heads();
  if (attention.has_key_value_heads() && (key_value_heads < 1 || attention.heads() % key_value_heads != 0)) {
    return scope.Error("key_value_heads: expected a divisor of the ", attention.heads(), " heads, got ",
                       key_value_heads);
  }
  if (attention.has_window() && attention.window() < 1) {
    return scope.Error("window: expected at least 1, got 0");
  }
  if (attention.kernel() == v1::SelfAttention::ELU_PLUS_ONE && attention.has_window()) {
    return scope.Error("window: expected none with kernel ELU_PLUS_ONE, got ", attention.window());
  }
  return absl::OkStatus();
}

absl::Status CheckPads(const v1::SelfAttention& attention, v1::Sequence::Pad pad, const std::string& where,
                       const LayerScope& scope) {
  if (pad != v1::Sequence::NONE && attention.pads() == v1::SelfAttention::PADS_UNSPECIFIED) {
    return scope.Error("pads: expected MASKED, ATTENDED or ZEROED, since ", where, " is padded, got nothing");
  }
  if (attention.pads() != v1::SelfAttention::ATTENDED && attention.pads() != v1::SelfAttention::ZEROED) {
    return absl::OkStatus();
  }
  const std::string name = v1::SelfAttention::Pads_Name(attention.pads());
  if (pad != v1::Sequence::LEFT || !attention.causal()) {
    return scope.Error(
        "pads: expected pad LEFT of ", where, " and causal for ", name, ", so that all pads are alike, got ",
        pad == v1::Sequence::LEFT ? "causal false" : absl::StrCat("pad ", v1::Sequence::Pad_Name(pad)));
  }
  if (attention.kernel() == v1::SelfAttention::ELU_PLUS_ONE) {
    return scope.Error("pads: expected MASKED with kernel ELU_PLUS_ONE, got ", name);
  }
  return absl::OkStatus();
}

absl::Status CheckFields(const v1::SelfAttention& attention, const Inputs& inputs, const LayerScope& scope) {
  if (inputs.level() != v1::SEQUENCE) {
    return scope.Error("inputs: expected sequence level, got ",
                       scope.Where(inputs.level(), inputs.sequence()));
  }
  if (attention.wiring() == v1::SelfAttention::WIRING_UNSPECIFIED) {
    return scope.Error("wiring: expected PRE_NORM, POST_NORM, SASREC_ORIGINAL or BARE, got nothing");
  }
  if (!attention.has_causal()) return scope.Error("causal: expected true or false, got nothing");
  if (!attention.has_input_scale() || !std::isfinite(attention.input_scale())) {
    return scope.Error("input_scale: expected a finite number, got ",
                       attention.has_input_scale() ? absl::StrCat(attention.input_scale()) : "nothing");
  }
  if (attention.blocks().empty()) return scope.Error("blocks: expected at least one, got none");
  return CheckHeads(attention, scope);
}

// Reads what stands around the blocks; the inputs are there.
absl::Status FindParts(const v1::SelfAttention& attention, LayerScope& scope, Parts& parts) {
  const int sequence = parts.inputs.sequence();
  const int64_t width = parts.inputs.width();
  const absl::StatusOr<int64_t> max_length = scope.FindMaxLength(sequence);
  if (!max_length.ok()) return max_length.status();
  parts.max_length = *max_length;
  parts.input_scale = attention.input_scale();
  const absl::StatusOr<v1::Sequence::Pad> pad = scope.FindPad(sequence);
  if (!pad.ok()) return pad.status();
  if (absl::Status status = CheckPads(attention, *pad, scope.Where(v1::SEQUENCE, sequence), scope);
      !status.ok()) {
    return status;
  }
  if (attention.pads() == v1::SelfAttention::ATTENDED) {
    absl::StatusOr<std::vector<float>> row = parts.inputs.PadRow("inputs", scope);
    if (!row.ok()) return row.status();
    parts.pads = v1::SelfAttention::ATTENDED;
    parts.pad_input = *std::move(row);
  } else if (attention.pads() == v1::SelfAttention::ZEROED) {
    parts.pads = v1::SelfAttention::ZEROED;
    parts.pad_input.assign(width, 0.0f);
  }
  absl::StatusOr<Positions> positions = Positions::Create(attention, sequence, width, scope);
  if (!positions.ok()) return positions.status();
  parts.positions = *std::move(positions);
  if (attention.has_input_norm()) {
    const absl::StatusOr<NormWeights> norm = scope.FindNorm("input_norm", attention.input_norm(), width);
    if (!norm.ok()) return norm.status();
    parts.has_input_norm = true;
    parts.input_norm = *norm;
  }
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
  if (absl::Status status = FindParts(attention, scope, parts); !status.ok()) return status;

  LayerCost cost;
  cost.parameters = parts.positions.parameters() + (parts.has_input_norm ? 2 * parts.inputs.width() : 0);
  int64_t width = parts.inputs.width();
  const bool newest_alone = NewestAloneIsRead(scope.manifest(), layer.name());
  for (int i = 0; i < attention.blocks_size(); ++i) {
    absl::StatusOr<AttentionBlock> block =
        AttentionBlock::Create(attention, i, width, parts.max_length, scope);
    if (!block.ok()) return block.status();
    parts.newest_alone = i + 1 == attention.blocks_size() && block->TakesNewest() && newest_alone;
    block->AddCost(parts.newest_alone, cost);
    width = block->out_width();
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
