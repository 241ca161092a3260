// DIN's activation unit (Zhou et al., 2018): an MLP over [q, k, q - k, q * k] that scores each behavior k for
// one query q.
//
// The first layer's input is never built, since
//   W [q, k, q-k, q*k] = (Wq + Wd) q + (Wk - Wd) k + Wp (q * k):
// of query q it is one GEMM of the keys with diag(q) Wp^T + (Wk - Wd)^T, and (Wq + Wd) q + b is its bias.
//
//   const float* base = score.QueryPart(context);              // [queries, first_width()]
//   score.Run(keys, length, query, base + q * score.first_width(), scores, scratch);
//
// Every query has GEMMs of the same shapes, which only the history's bucket decides. Const after Create, so
// thread-safe.
#ifndef DINGHY_MODEL_LAYERS_DIN_SCORE_H_
#define DINGHY_MODEL_LAYERS_DIN_SCORE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "model/layers/inputs.h"
#include "model/layers/layer.h"
#include "model/layers/layer_scope.h"
#include "model/layers/split_linear.h"
#include "model/ops/gemm.h"

namespace dinghy {

class DinScore {
 public:
  DinScore() = default;

  // For keys as wide as the query and histories up to max_length.
  static absl::StatusOr<DinScore> Create(const v1::DinScore& din, const Inputs& query, int64_t max_length,
                                         LayerScope& scope);

  int64_t first_width() const { return steps_[0].weights.out; }

  // What the first layer owes to the queries alone, bias included: [queries, first_width()], packed.
  const float* QueryPart(const RunContext& context) const { return query_part_.Run(context); }

  // scores [length], of one query. keys: [BucketRows(length), width], packed, padded with zeros; query:
  // [width]; base: the query's row of QueryPart. length >= 1; `scores` has room for BucketRows(length).
  void Run(const float* keys, int64_t length, const float* query, const float* base, float* scores,
           ops::Scratch& scratch) const;

  void AddCost(LayerCost& cost) const;

 private:
  struct Step {
    DenseWeights weights;                                 // of the first, only out and activation count
    std::vector<std::unique_ptr<ops::RowLinear>> linear;  // by bucket; none for the first and the last
  };

  int64_t width_ = 0;
  v1::Level query_level_ = v1::CANDIDATE;
  int64_t parameters_ = 0;
  bool has_product_ = false;
  SplitLinear query_part_;
  std::vector<float> key_weight_;                  // (Wk - Wd)^T, [width, first_width]
  std::vector<float> product_weight_;              // Wp^T, [width, first_width]
  std::vector<std::unique_ptr<ops::Gemm>> first_;  // by bucket
  std::vector<Step> steps_;
};

}  // namespace dinghy

#endif  // DINGHY_MODEL_LAYERS_DIN_SCORE_H_
