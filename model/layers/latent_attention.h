// Multi-head latent attention (DeepSeek-V2, 2024) of queries over a history of which only a latent c of each
// behavior is kept. Head h's key is key_up_h c and its value value_up_h c; neither is ever built, since
//   q_h . key_up_h c = (key_up_h^T q_h) . c,   sum of w value_up_h c = value_up_h (sum of w c):
// the query is projected down once, the pooled latent up once, and between them all heads attend to c itself.
//
//   ASSIGN_OR_RETURN(auto score, CreateLatentScore(latent, options, scope));    // over keys c
//   ASSIGN_OR_RETURN(LatentValues values, LatentValues::Create(latent, options, windows, scope));
//   values.Run(pooled, queries, out, scratch);
//
// Const after creation, so thread-safe.
#ifndef DINGHY_MODEL_LAYERS_LATENT_ATTENTION_H_
#define DINGHY_MODEL_LAYERS_LATENT_ATTENTION_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "model/layers/attention_score.h"
#include "model/layers/layer.h"
#include "model/layers/layer_scope.h"
#include "model/ops/gemm.h"
#include "proto/bundle.pb.h"

namespace dinghy {

// Dot products of the projected queries with the latents, which are the keys.
absl::StatusOr<std::unique_ptr<AttentionScore>> CreateLatentScore(const v1::LatentKeyValue& latent,
                                                                  const ScoreOptions& options,
                                                                  LayerScope& scope);

class LatentValues {
 public:
  // `pieces`: how many pooled latents a head has, one after the other.
  static absl::StatusOr<LatentValues> Create(const v1::LatentKeyValue& latent, const ScoreOptions& options,
                                             int64_t pieces, LayerScope& scope);

  // Columns of the result, all heads and pieces.
  int64_t width() const { return static_cast<int64_t>(linear_.size()) * pieces_ * head_width_; }

  // pooled: [rows, heads * pieces * latent width]; out: [rows, width()]; both packed.
  void Run(const float* pooled, int64_t rows, float* out, ops::Scratch& scratch) const;

  void AddCost(v1::Level query_level, LayerCost& cost) const;

 private:
  int64_t pieces_ = 1;
  int64_t latent_width_ = 0;
  int64_t head_width_ = 0;                               // of a value
  std::vector<std::unique_ptr<ops::RowLinear>> linear_;  // by head: value_up_h
};

}  // namespace dinghy

#endif  // DINGHY_MODEL_LAYERS_LATENT_ATTENTION_H_
