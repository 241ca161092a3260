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
      : query_(options.query), key_width_(options.keys.width()), heads_(options.heads) {}

  Prepared Prepare(const RunContext& context, const float* keys, int64_t length) const override {
    const int64_t columns = BucketRows(length);
    float* transposed = context.scratch.Floats(key_width_ * columns);
    ops::Transpose(keys, key_width_, length, key_width_, transposed, columns);
    return {.length = length, .keys = transposed, .query = query_.Gather(context)};
  }

  void Run(const RunContext&, const Prepared& prepared, int64_t q, float* scores,
           int64_t stride) const override {
    const int64_t columns = BucketRows(prepared.length);
    const int64_t width = key_width_ / heads_.key_value_heads;
    const int64_t group = heads_.group();
    const float* query = prepared.query.data + q * prepared.query.stride;
    for (int64_t head = 0; head < heads_.heads; head += group) {
      const float* keys = prepared.keys + head / group * width * columns;
      ops::DotScores({.data = keys, .width = width, .columns = columns}, query + head * width, width, group,
                     scores + head * stride, stride);
    }
  }

  void AddCost(LayerCost& cost) const override {
    AddPairCost(query_.level(), 2.0 * static_cast<double>(query_.width()), cost);
  }

 private:
  const Inputs query_;
  const int64_t key_width_;
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
