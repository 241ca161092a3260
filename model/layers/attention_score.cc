#include "model/layers/attention_score.h"

#include "absl/strings/str_cat.h"

namespace dinghy {
namespace {

// The scores that TargetAttention and AutoScore::Branch both have. Null where none of them is set.
template <class Message>
absl::StatusOr<std::unique_ptr<AttentionScore>> CreateShared(const Message& message,
                                                             const ScoreOptions& options, LayerScope& scope) {
  if (message.has_din()) return CreateDinScore(message.din(), options, scope);
  if (message.has_additive()) return CreateAdditiveScore(message.additive(), options, scope);
  if (message.has_dot()) return CreateDotScore(options, scope);
  if (message.has_bilinear()) return CreateBilinearScore(message.bilinear(), options, scope);
  return nullptr;
}

}  // namespace

absl::StatusOr<std::unique_ptr<AttentionScore>> CreateAttentionScore(const v1::TargetAttention& message,
                                                                     const ScoreOptions& options,
                                                                     LayerScope& scope) {
  if (message.has_auto_()) return CreateAutoScore(message.auto_(), options, scope);
  absl::StatusOr<std::unique_ptr<AttentionScore>> score = CreateShared(message, options, scope);
  if (!score.ok() || *score != nullptr) return score;
  return scope.Error("score: expected din, additive, dot, bilinear, linear or auto, got nothing");
}

absl::StatusOr<std::unique_ptr<AttentionScore>> CreateAttentionScore(const v1::AutoScore::Branch& message,
                                                                     const ScoreOptions& options,
                                                                     LayerScope& scope) {
  absl::StatusOr<std::unique_ptr<AttentionScore>> score = CreateShared(message, options, scope);
  if (!score.ok() || *score != nullptr) return score;
  return scope.Error(options.prefix, "score: expected din, additive, dot or bilinear, got nothing");
}

}  // namespace dinghy
