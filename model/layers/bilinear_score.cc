// q^T W k (Luong et al., 2015), as the dot product of the keys with q^T W, computed once per query.
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "model/layers/attention_score.h"
#include "model/layers/history_buckets.h"
#include "model/layers/split_linear.h"
#include "model/ops/attention.h"

namespace dinghy {
namespace {

class BilinearScore : public AttentionScore {
 public:
  BilinearScore(const ScoreOptions& options, SplitLinear projection)
      : query_(options.query), keys_(options.keys), projection_(std::move(projection)) {}

  void Prepare(const RunContext& context, UserPart& part) const override {
    part.keys = GatherTransposed(context, keys_);
    projection_.Prepare(context, part);
  }

  Queries PrepareQueries(const RunContext& context) const override {
    return {.query = {projection_.Run(context), query_.Rows(context), keys_.width()}};
  }

  void Run(const RunContext& context, const Queries& queries, int64_t q, float* scores,
           int64_t stride) const override {
    ops::DotScores(KeysOf(context), queries.query.data + q * keys_.width(), keys_.width(), 1, scores, stride);
  }

  void AddCost(LayerCost& cost) const override {
    cost.parameters += query_.width() * keys_.width();
    projection_.AddCost(cost);
    AddPairCost(query_.level(), 2.0 * static_cast<double>(keys_.width()), cost);
  }

 private:
  const Inputs query_;
  const Inputs keys_;
  const SplitLinear projection_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<AttentionScore>> CreateBilinearScore(const v1::BilinearScore& bilinear,
                                                                    const ScoreOptions& options,
                                                                    LayerScope& scope) {
  const int64_t in = options.query.width();
  const int64_t out = options.keys.width();
  const absl::StatusOr<const Tensor*> weight =
      scope.FindTensor(absl::StrCat(options.prefix, "bilinear.weight"), bilinear.weight(), {in, out});
  if (!weight.ok()) return weight.status();
  DenseWeights transposed{.weight = std::vector<float>(in * out), .in = in, .out = out};
  for (int64_t i = 0; i < in; ++i) {
    for (int64_t j = 0; j < out; ++j) transposed.weight[j * in + i] = (*weight)->data[i * out + j];
  }
  absl::StatusOr<SplitLinear> projection = SplitLinear::Create(options.query, transposed, scope);
  if (!projection.ok()) return projection.status();
  return std::make_unique<BilinearScore>(options, *std::move(projection));
}

}  // namespace dinghy
