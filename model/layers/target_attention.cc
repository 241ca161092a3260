// Attention of each candidate over one sequence.
#include <algorithm>
#include <memory>
#include <string>
#include <tuple>
#include <utility>

#include "model/layers/din_score.h"
#include "model/layers/history_buckets.h"
#include "model/layers/inputs.h"
#include "model/layers/kinds.h"
#include "model/ops/vector_math.h"

namespace dinghy {
namespace {

struct Parts {
  Inputs query;
  Inputs keys;
  Inputs values;
  DinScore score;
  float scale = 1;
  bool softmax = false;
};

class TargetAttention : public Layer {
 public:
  TargetAttention(ValueInfo info, const LayerCost& cost, Parts parts)
      : Layer(std::move(info), cost), parts_(std::move(parts)) {}

  Value Run(const RunContext& context) const override {
    const int64_t queries = parts_.query.Rows(context);
    const int64_t length = parts_.keys.Rows(context);
    const int64_t width = info().width;
    float* pooled = context.scratch.Floats(queries * width);
    const Value out{pooled, queries, width};
    if (context.attention != nullptr) context.attention->clear();
    if (length == 0 || queries == 0) {
      std::fill_n(pooled, queries * width, 0.0f);
      return out;
    }
    ops::Scratch::Scope scope(context.scratch);
    const float* keys = GatherBucket(context, parts_.keys);
    const Value values = parts_.values.Gather(context);
    const float* base = parts_.score.QueryPart(context);
    float* query_row = context.scratch.Floats(parts_.query.width());
    float* scores = context.scratch.Floats(BucketRows(length));
    for (int64_t q = 0; q < queries; ++q) {
      const float* query = parts_.query.Row(context, q, query_row);
      parts_.score.Run(keys, length, query, base + q * parts_.score.first_width(), scores, context.scratch);
      if (parts_.scale != 1) ops::Scale(parts_.scale, scores, length);
      if (parts_.softmax) ops::Softmax(scores, length);
      ops::WeightedSumRows(values.data, values.stride, scores, length, width, pooled + q * width);
      if (context.attention != nullptr) KeepWeights(context, scores, length);
    }
    return out;
  }

 private:
  // The weights are per candidate even where the query is the user's and all have the same.
  void KeepWeights(const RunContext& context, const float* scores, int64_t length) const {
    const int copies = parts_.query.level() == v1::USER ? context.batch.candidates : 1;
    for (int i = 0; i < copies; ++i) {
      context.attention->insert(context.attention->end(), scores, scores + length);
    }
  }

  const Parts parts_;
};

absl::Status CheckLevels(const Parts& parts, const LayerScope& scope) {
  if (parts.query.level() == v1::SEQUENCE) {
    return scope.Error("query: expected user or candidate level, got ",
                       scope.Where(parts.query.level(), parts.query.sequence()));
  }
  for (const auto& [field, inputs] : {std::pair{"keys", &parts.keys}, std::pair{"values", &parts.values}}) {
    if (inputs->level() != v1::SEQUENCE) {
      return scope.Error(field, ": expected sequence level, got ",
                         scope.Where(inputs->level(), inputs->sequence()));
    }
  }
  if (parts.keys.sequence() != parts.values.sequence()) {
    return scope.Error("values: expected the keys' ", scope.Where(v1::SEQUENCE, parts.keys.sequence()),
                       ", got ", scope.Where(v1::SEQUENCE, parts.values.sequence()));
  }
  if (parts.query.width() != parts.keys.width()) {
    return scope.Error("keys: expected the query's width ", parts.query.width(), ", got ",
                       parts.keys.width());
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Layer>> CreateTargetAttention(const v1::Layer& layer, LayerScope& scope) {
  const v1::TargetAttention& attention = layer.target_attention();
  Parts parts;
  for (const auto& [field, names, inputs] : {std::tuple{"query", &attention.query(), &parts.query},
                                             std::tuple{"keys", &attention.keys(), &parts.keys},
                                             std::tuple{"values", &attention.values(), &parts.values}}) {
    absl::StatusOr<Inputs> list = Inputs::Create(field, *names, scope);
    if (!list.ok()) return list.status();
    *inputs = *std::move(list);
  }
  if (absl::Status status = CheckLevels(parts, scope); !status.ok()) return status;
  const absl::StatusOr<int64_t> max_length = scope.FindMaxLength(parts.keys.sequence());
  if (!max_length.ok()) return max_length.status();

  if (!attention.has_din()) return scope.Error("score: expected din, got nothing");
  if (attention.normalization() != v1::TargetAttention::NONE &&
      attention.normalization() != v1::TargetAttention::SOFTMAX) {
    return scope.Error("normalization: expected NONE or SOFTMAX, got nothing");
  }
  if (attention.empty() != v1::ZEROS) {
    return scope.Error("empty: expected ZEROS, got nothing");
  }
  if (!attention.has_scale()) return scope.Error("scale: expected a number, got nothing");
  parts.scale = attention.scale();
  parts.softmax = attention.normalization() == v1::TargetAttention::SOFTMAX;
  absl::StatusOr<DinScore> score = DinScore::Create(attention.din(), parts.query, *max_length, scope);
  if (!score.ok()) return score.status();
  parts.score = *std::move(score);

  LayerCost cost;
  parts.score.AddCost(cost);
  (parts.query.level() == v1::USER ? cost.behavior : cost.pair) += 2.0 * parts.values.width();
  ValueInfo info{.name = layer.name(), .level = parts.query.level(), .width = parts.values.width()};
  return std::make_unique<TargetAttention>(std::move(info), cost, std::move(parts));
}

}  // namespace dinghy
