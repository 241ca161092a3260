// q^T k, per head (Luong et al., 2015; scaled: Vaswani et al., 2017).
#include <memory>
#include <utility>

#include "model/layers/attention_score.h"
#include "model/layers/history_buckets.h"
#include "model/ops/attention.h"

namespace dinghy {
namespace {

class DotScore : public AttentionScore {
 public:
  explicit DotScore(const ScoreOptions& options)
      : query_(options.query), keys_(options.keys), heads_(options.heads) {}

  void Prepare(const RunContext& context, UserPart& part) const override {
    part.keys = GatherTransposed(context, keys_);
  }

  Queries PrepareQueries(const RunContext& context) const override {
    return {.query = query_.Gather(context)};
  }

  void Run(const RunContext& context, const Queries& queries, int64_t q, float* scores,
           int64_t stride) const override {
    const ops::TransposedKeys all = KeysOf(context);
    const int64_t columns = all.columns;
    const int64_t width = all.width / heads_.key_value_heads;
    const int64_t group = heads_.group();
    const float* query = queries.query.data + q * queries.query.stride;
    for (int64_t head = 0; head < heads_.heads; head += group) {
      const float* keys = all.data + head / group * width * columns;
      ops::DotScores({.data = keys, .width = width, .columns = columns}, query + head * width, width, group,
                     scores + head * stride, stride);
    }
  }

  void AddCost(LayerCost& cost) const override {
    AddPairCost(query_.level(), 2.0 * static_cast<double>(query_.width()), cost);
  }

 private:
  const Inputs query_;
  const Inputs keys_;
  const AttentionHeads heads_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<AttentionScore>> CreateDotScore(const ScoreOptions& options,
                                                               LayerScope& scope) {
  const absl::Status status = options.heads.CheckKeys(options.query.width(), options.keys.width(), scope);
  if (!status.ok()) return status;
  return std::make_unique<DotScore>(options);
}

}  // namespace dinghy
