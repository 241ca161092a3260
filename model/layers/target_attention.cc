// Attention of each candidate over one sequence.
#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "model/layers/attention_pooling.h"
#include "model/layers/attention_score.h"
#include "model/layers/history_buckets.h"
#include "model/layers/inputs.h"
#include "model/layers/kinds.h"
#include "model/layers/latent_attention.h"
#include "model/layers/linear_target_attention.h"
#include "model/layers/target_attention_inputs.h"
#include "model/ops/vector_math.h"

namespace dinghy {
namespace {

struct Parts {
  TargetAttentionInputs inputs;
  std::unique_ptr<AttentionScore> score;
  AttentionPooling pooling;
  std::optional<LatentValues> latent;  // projects what was pooled
};

class TargetAttention : public Layer {
 public:
  TargetAttention(ValueInfo info, const LayerCost& cost, Parts parts)
      : Layer(std::move(info), cost), parts_(std::move(parts)) {}

  void Prepare(const RunContext& context, UserPart& part) const override {
    if (parts_.inputs.keys.Rows(context) == 0) return;
    part.values = parts_.inputs.values.GatherPacked(context);
    parts_.score->Prepare(context, part);
  }

  Value Run(const RunContext& context) const override {
    const TargetAttentionInputs& inputs = parts_.inputs;
    const int64_t queries = inputs.query.Rows(context);
    const int64_t length = inputs.keys.Rows(context);
    const int64_t width = info().width;
    float* out = context.scratch.Floats(queries * width);
    ops::Scratch::Scope scope(context.scratch);
    const int64_t heads = inputs.heads.heads;
    const int64_t pooled_width = heads * parts_.pooling.width();
    float* pooled = parts_.latent.has_value() ? context.scratch.Floats(queries * pooled_width) : out;
    if (length == 0) {
      for (int64_t q = 0; q < queries; ++q) {
        std::copy_n(parts_.pooling.empty().data(), pooled_width, pooled + q * pooled_width);
      }
    } else if (queries > 0) {
      const AttentionScore::Queries prepared = parts_.score->PrepareQueries(context);
      const int64_t stride = BucketRows(length + 1);
      float* scores = context.scratch.Floats(heads * stride);
      for (int64_t q = 0; q < queries; ++q) {
        parts_.score->Run(context, prepared, q, scores, stride);
        for (int64_t h = 0; h < heads; ++h) {
          parts_.pooling.Run(h, length, scores + h * stride, context.user->values,
                             pooled + q * pooled_width + h * parts_.pooling.width());
        }
        if (context.attention != nullptr) inputs.KeepWeights(context, q, scores, stride);
      }
    }
    if (parts_.latent.has_value() && queries > 0) {
      parts_.latent->Run(pooled, queries, out, context.scratch);
    }
    return {out, queries, width};
  }

 private:
  const Parts parts_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Layer>> CreateTargetAttention(const v1::Layer& layer, LayerScope& scope) {
  const v1::TargetAttention& message = layer.target_attention();
  absl::StatusOr<TargetAttentionInputs> inputs = TargetAttentionInputs::Create(message, scope);
  if (!inputs.ok()) return inputs.status();
  const absl::StatusOr<int64_t> max_length = scope.FindMaxLength(inputs->keys.sequence());
  if (!max_length.ok()) return max_length.status();
  absl::StatusOr<AttentionPooling> pooling =
      AttentionPooling::Create(message, inputs->values, inputs->heads, *max_length, scope);
  if (!pooling.ok()) return pooling.status();
  if (message.has_linear()) {
    return CreateLinearTargetAttention(layer, *std::move(inputs), pooling->empty(), scope);
  }

  const ScoreOptions options{.query = inputs->query,
                             .keys = inputs->keys,
                             .heads = inputs->heads,
                             .max_length = *max_length,
                             .prefix = ""};
  absl::StatusOr<std::unique_ptr<AttentionScore>> score =
      message.has_latent() ? CreateLatentScore(message.latent(), options, scope)
                           : CreateAttentionScore(message, options, scope);
  if (!score.ok()) return score.status();
  const v1::Level level = inputs->query.level();
  Parts parts;
  int64_t width = inputs->heads.heads * pooling->width();
  LayerCost cost;
  (*score)->AddCost(cost);
  AddPairCost(level, 2.0 * static_cast<double>(width / pooling->windows()), cost);
  if (message.has_latent()) {
    absl::StatusOr<LatentValues> latent =
        LatentValues::Create(message.latent(), options, pooling->windows(), scope);
    if (!latent.ok()) return latent.status();
    latent->AddCost(level, cost);
    width = latent->width();
    parts.latent = *std::move(latent);
  }
  parts.inputs = *std::move(inputs);
  parts.score = *std::move(score);
  parts.pooling = *std::move(pooling);
  ValueInfo info{.name = layer.name(), .level = level, .width = static_cast<int>(width)};
  return std::make_unique<TargetAttention>(std::move(info), cost, std::move(parts));
}

}  // namespace dinghy
