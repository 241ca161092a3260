// What becomes of one head's scores: weights by a normalization, and the weighted sum of the values, over the
// whole history or window by window.
//
//   ASSIGN_OR_RETURN(AttentionPooling pooling, AttentionPooling::Create(message, values, heads, scope));
//   pooling.Run(head, length, scores, values, stride, pooled);
//
// Const after Create, so thread-safe.
#ifndef DINGHY_MODEL_LAYERS_ATTENTION_POOLING_H_
#define DINGHY_MODEL_LAYERS_ATTENTION_POOLING_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "model/layers/attention_heads.h"
#include "model/layers/inputs.h"
#include "model/layers/layer.h"
#include "model/layers/layer_scope.h"
#include "proto/bundle.pb.h"

namespace dinghy {

class AttentionPooling {
 public:
  AttentionPooling() = default;

  // Errors: a field that is absent, or does not go with the others.
  static absl::StatusOr<AttentionPooling> Create(const v1::TargetAttention& message, const Inputs& values,
                                                 const AttentionHeads& heads, int64_t max_length,
                                                 const LayerScope& scope);

  // Columns of one head's result: those of a value, once per window.
  int64_t width() const { return value_width_ * windows(); }
  // How many pieces a head's result has.
  int64_t windows() const { return windows_.empty() ? 1 : static_cast<int64_t>(windows_.size()); }

  // What an empty history pools to, all heads: [heads * width()].
  const std::vector<float>& empty() const { return empty_; }

  // Turns the scores of `head` into weights, in place, and pools values [length, ...] of `stride` (all heads'
  // columns) to pooled [width()]. length >= 1; `scores` has room for one more.
  void Run(int64_t head, int64_t length, float* scores, const Value& values, float* pooled) const;

 private:
  absl::Status SetWindows(const v1::Windows& windows, const LayerScope& scope);
  absl::Status SetMask(const v1::TargetAttention& message, const Inputs& values, const LayerScope& scope);

  void PoolMasked(int64_t length, float* scores, const float* values, int64_t stride, const float* pad,
                  float* pooled) const;
  void PoolWindows(int64_t length, float* scores, const float* values, int64_t stride, float* pooled) const;

  v1::TargetAttention::Normalization normalization_ = v1::TargetAttention::NONE;
  float scale_ = 1;
  int64_t group_ = 1;        // heads to one key and value head
  int64_t value_width_ = 0;  // of one head
  int64_t max_length_ = 0;
  bool masked_ = false;
  float mask_ = 0;
  std::vector<float> pad_;  // where masked, what a pad behavior has as value: [all columns]
  std::vector<int64_t> windows_;
  bool from_newest_ = false;
  std::vector<float> empty_;
};

}  // namespace dinghy

#endif  // DINGHY_MODEL_LAYERS_ATTENTION_POOLING_H_
