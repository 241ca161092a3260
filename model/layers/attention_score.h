// How well a behavior fits a query, before normalisation: the scores of target attention. What depends on the
// user alone is computed once per request, what depends on the query alone once per query.
//
//   ASSIGN_OR_RETURN(std::unique_ptr<AttentionScore> score, CreateAttentionScore(message, options, scope));
//   score->Prepare(context, part);                              // once per user
//   const AttentionScore::Queries queries = score->PrepareQueries(context);
//   score->Run(context, queries, q, scores, stride);             // for each query q
//
// A query's scores have the same bits whatever other queries there are. Const after creation, so thread-safe.
#ifndef DINGHY_MODEL_LAYERS_ATTENTION_SCORE_H_
#define DINGHY_MODEL_LAYERS_ATTENTION_SCORE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "model/layers/attention_heads.h"
#include "model/layers/inputs.h"
#include "model/layers/layer.h"
#include "model/layers/layer_scope.h"
#include "proto/bundle.pb.h"

namespace dinghy {

// What the manifest says around a score.
struct ScoreOptions {
  Inputs query;
  Inputs keys;
  AttentionHeads heads;
  int64_t max_length = 0;  // of the keys' sequence
  std::string prefix;      // of the score's field: "", or "auto.short_history."
};

class AttentionScore {
 public:
  // What the scores need of the context's queries, in scratch.
  struct Queries {
    Value query = {};             // [queries, any width]
    const float* base = nullptr;  // [queries, any width]: what else depends on the query alone
  };

  virtual ~AttentionScore() = default;

  // Fills in `part.keys`, whatever their form, and `part.bias`, where the query has columns of the user.
  virtual void Prepare(const RunContext& context, UserPart& part) const = 0;

  // What is returned must stay in scratch while Run is called.
  virtual Queries PrepareQueries(const RunContext& context) const = 0;

  // The scores of query `q`: head h's are scores[h * stride] on, one a behavior. stride >=
  // BucketRows(length), length >= 1; what lies behind a head's last score, up to BucketRows(length), is
  // overwritten.
  virtual void Run(const RunContext& context, const Queries& queries, int64_t q, float* scores,
                   int64_t stride) const = 0;

  virtual void AddCost(LayerCost& cost) const = 0;
};

// The score that `message` (a TargetAttention or a branch of its `auto`) names. Errors: INVALID_ARGUMENT
// naming the layer, what was expected and what came.
absl::StatusOr<std::unique_ptr<AttentionScore>> CreateAttentionScore(const v1::TargetAttention& message,
                                                                     const ScoreOptions& options,
                                                                     LayerScope& scope);
absl::StatusOr<std::unique_ptr<AttentionScore>> CreateAttentionScore(const v1::AutoScore::Branch& message,
                                                                     const ScoreOptions& options,
                                                                     LayerScope& scope);

// Each kind; CreateAttentionScore chooses. One file per kind.
absl::StatusOr<std::unique_ptr<AttentionScore>> CreateDinScore(const v1::DinScore& din,
                                                               const ScoreOptions& options,
                                                               LayerScope& scope);
absl::StatusOr<std::unique_ptr<AttentionScore>> CreateAdditiveScore(const v1::AdditiveScore& additive,
                                                                    const ScoreOptions& options,
                                                                    LayerScope& scope);
// The keys' width must be the query's, head by head.
absl::StatusOr<std::unique_ptr<AttentionScore>> CreateDotScore(const ScoreOptions& options,
                                                               LayerScope& scope);
absl::StatusOr<std::unique_ptr<AttentionScore>> CreateBilinearScore(const v1::BilinearScore& bilinear,
                                                                    const ScoreOptions& options,
                                                                    LayerScope& scope);
absl::StatusOr<std::unique_ptr<AttentionScore>> CreateAutoScore(const v1::AutoScore& message,
                                                                const ScoreOptions& options,
                                                                LayerScope& scope);

// Adds `flops` per query and behavior; a user's query meets each behavior once.
inline void AddPairCost(v1::Level query_level, double flops, LayerCost& cost) {
  (query_level == v1::USER ? cost.behavior : cost.pair) += flops;
}

}  // namespace dinghy

#endif  // DINGHY_MODEL_LAYERS_ATTENTION_SCORE_H_
