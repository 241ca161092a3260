#include "model/layers/target_attention_inputs.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "model/ops/vector_math.h"

namespace dinghy {
namespace {

absl::Status CheckLevels(const TargetAttentionInputs& inputs, const LayerScope& scope) {
  if (inputs.query.level() == v1::SEQUENCE) {
    return scope.Error("query: expected user or candidate level, got ",
                       scope.Where(inputs.query.level(), inputs.query.sequence()));
  }
  for (const auto& [field, list] : {std::pair{"keys", &inputs.keys}, std::pair{"values", &inputs.values}}) {
    if (list->level() != v1::SEQUENCE) {
      return scope.Error(field, ": expected sequence level, got ",
                         scope.Where(list->level(), list->sequence()));
    }
  }
  if (inputs.keys.sequence() != inputs.values.sequence()) {
    return scope.Error("values: expected the keys' ", scope.Where(v1::SEQUENCE, inputs.keys.sequence()),
                       ", got ", scope.Where(v1::SEQUENCE, inputs.values.sequence()));
  }
  return absl::OkStatus();
}

// Multi-head latent attention has one latent for keys and values, of which all heads read all columns.
absl::Status CheckLatent(const v1::TargetAttention& message, const LayerScope& scope) {
  if (!message.has_dot()) return scope.Error("latent: expected none, as only dot scores have one, got one");
  if (!std::equal(message.keys().begin(), message.keys().end(), message.values().begin(),
                  message.values().end())) {
    return scope.Error("values: expected the keys, since there is a latent, got others");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TargetAttentionInputs> TargetAttentionInputs::Create(const v1::TargetAttention& message,
                                                                    const LayerScope& scope) {
  TargetAttentionInputs out;
  for (const auto& [field, names, inputs] :
       {std::tuple{"query", &message.query(), &out.query}, std::tuple{"keys", &message.keys(), &out.keys},
        std::tuple{"values", &message.values(), &out.values}}) {
    absl::StatusOr<Inputs> list = Inputs::Create(field, *names, scope);
    if (!list.ok()) return list.status();
    *inputs = *std::move(list);
  }
  if (absl::Status status = CheckLevels(out, scope); !status.ok()) return status;
  absl::StatusOr<AttentionHeads> heads = AttentionHeads::Create(message, out.query.width(), scope);
  if (!heads.ok()) return heads.status();
  out.heads = *heads;
  if (message.has_latent()) {
    if (absl::Status status = CheckLatent(message, scope); !status.ok()) return status;
    out.heads.key_value_heads = 1;
  }
  if (absl::Status status = out.heads.CheckValues(out.values.width(), scope); !status.ok()) return status;
  return out;
}

void TargetAttentionInputs::KeepWeights(const RunContext& context, int64_t q, const float* weights,
                                        int64_t stride) const {
  const int64_t length = keys.Rows(context);
  float* mean = context.attention + q * length;
  std::copy_n(weights, length, mean);
  for (int64_t h = 1; h < heads.heads; ++h) ops::AddTo(weights + h * stride, mean, length);
  if (heads.heads > 1) ops::Scale(1.0f / static_cast<float>(heads.heads), mean, length);
}

}  // namespace dinghy
