#include "model/layers/linear_target_attention.h"

#include <algorithm>
#include <utility>

#include "model/layers/attention_score.h"
#include "model/layers/history_buckets.h"
#include "model/layers/linear_attention.h"
#include "model/ops/attention.h"
#include "model/ops/vector_math.h"

namespace dinghy {
namespace {

struct Parts {
  TargetAttentionInputs inputs;
  float scale = 1;
  std::vector<float> empty;
};

// With f = elu + 1, a head's result is f(q) S / (f(q) z): S [key width, value width] is the sum of f(k)^T v
// over the behaviors and z [key width] that of f(k), both computed once per request.
class LinearTargetAttention : public Layer {
 public:
  LinearTargetAttention(ValueInfo info, const LayerCost& cost, Parts parts)
      : Layer(std::move(info), cost), parts_(std::move(parts)) {}

  void Prepare(const RunContext& context, UserPart& part) const override;

  Value Run(const RunContext& context) const override {
    const TargetAttentionInputs& inputs = parts_.inputs;
    const int64_t queries = inputs.query.Rows(context);
    const int64_t length = inputs.keys.Rows(context);
    const int64_t width = info().width;
    float* out = context.scratch.Floats(queries * width);
    if (queries == 0) return {out, queries, width};
    if (length == 0) {
      for (int64_t q = 0; q < queries; ++q) std::copy_n(parts_.empty.data(), width, out + q * width);
      return {out, queries, width};
    }
    ops::Scratch::Scope scope(context.scratch);
    const UserPart& user = *context.user;
    const int64_t columns = user.keys.stride;
    const Value query = inputs.query.Gather(context);
    const int64_t heads = inputs.heads.heads;
    const int64_t head_width = width / heads;
    float* scaled = context.scratch.Floats(key_width());
    float* mapped = context.scratch.Floats(key_width());
    float* weights = context.attention != nullptr ? context.scratch.Floats(heads * columns) : nullptr;
    for (int64_t q = 0; q < queries; ++q) {
      for (int64_t h = 0; h < heads; ++h) {
        std::copy_n(query.data + q * query.stride + h * key_width(), key_width(), scaled);
        if (parts_.scale != 1) ops::Scale(parts_.scale, scaled, key_width());
        std::copy_n(scaled, key_width(), mapped);
        ops::ShiftedEluPlusOne(Shift(mapped, 1, key_width(), 0), mapped, key_width());
        const int64_t group = h / inputs.heads.group();
        const float* s = user.products.data + group * key_width() * head_width;
        float* pooled = out + q * width + h * head_width;
        ops::WeightedSumRows(s, head_width, mapped, key_width(), head_width, pooled);
        const float sum = ops::Dot(mapped, user.key_sums.data + group * key_width(), key_width());
        if (sum < kLeastLinearSum) {
          PoolLinearByLogarithms(scaled, key_width(), Columns(user.key_rows, group * key_width()),
                                 Columns(user.values, group * head_width), head_width, pooled,
                                 weights != nullptr ? weights + h * columns : nullptr);
          continue;
        }
        const float divide = 1.0f / sum;
        ops::Scale(divide, pooled, head_width);
        if (weights == nullptr) continue;
        float* row = weights + h * columns;
        ops::DotScores({.data = user.keys.data + group * key_width() * columns,
                        .width = key_width(),
                        .columns = columns},
                       mapped, key_width(), 1, row, columns);
        ops::Scale(divide, row, length);
      }
      if (weights != nullptr) inputs.KeepWeights(context, q, weights, columns);
    }
    return {out, queries, width};
  }

 private:
  static Value Columns(const Value& value, int64_t from) {
    return {value.data + from, value.rows, value.stride};
  }

  // Of one head.
  int64_t key_width() const { return parts_.inputs.query.width() / parts_.inputs.heads.heads; }

  // What f may take as its shift: 0, or the largest of x [rows, n] where that is negative. All of f(x) then
  // grows by one factor, which the division takes out again, and not all of it can become 0.
  static float Shift(const float* x, int64_t rows, int64_t n, int64_t stride) {
    float largest = ops::Largest(x, n);
    for (int64_t r = 1; r < rows; ++r) largest = std::max(largest, ops::Largest(x + r * stride, n));
    return std::min(largest, 0.0f);
  }

  const Parts parts_;
};

void LinearTargetAttention::Prepare(const RunContext& context, UserPart& part) const {
  const TargetAttentionInputs& inputs = parts_.inputs;
  const int64_t length = inputs.keys.Rows(context);
  if (length == 0) return;
  const int64_t groups = inputs.heads.key_value_heads;
  const int64_t value_width = info().width / inputs.heads.heads;
  const int64_t all = inputs.keys.width();
  const int64_t columns = BucketRows(length);
  float* keys = context.scratch.Floats(all * columns);  // f(k), transposed
  float* s = context.scratch.Floats(all * value_width);
  float* z = context.scratch.Floats(all);
  const Value rows = inputs.keys.GatherPacked(context);
  const Value values = inputs.values.GatherPacked(context);
  ops::Scratch::Scope scope(context.scratch);
  ops::Transpose(rows.data, rows.stride, length, all, keys, columns);
  float* ones = context.scratch.Floats(length);
  std::fill_n(ones, length, 1.0f);
  for (int64_t group = 0; group < groups; ++group) {
    const float shift = Shift(keys + group * key_width() * columns, key_width(), length, columns);
    for (int64_t i = group * key_width(); i < (group + 1) * key_width(); ++i) {
      float* row = keys + i * columns;
      ops::ShiftedEluPlusOne(shift, row, length);
      ops::WeightedSumRows(values.data + group * value_width, values.stride, row, length, value_width,
                           s + i * value_width);
      z[i] = ops::Dot(row, ones, length);
    }
  }
  part.keys = {keys, all, columns};
  part.products = {s, all, value_width};
  part.key_sums = {z, 1, all};
  part.key_rows = rows;
  part.values = values;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Layer>> CreateLinearTargetAttention(const v1::Layer& layer,
                                                                   TargetAttentionInputs inputs,
                                                                   std::vector<float> empty,
                                                                   LayerScope& scope) {
  const v1::TargetAttention& message = layer.target_attention();
  if (message.normalization() != v1::TargetAttention::NONE) {
    return scope.Error("normalization: expected NONE beside linear, which has its own, got ",
                       v1::TargetAttention::Normalization_Name(message.normalization()));
  }
  const absl::Status status = inputs.heads.CheckKeys(inputs.query.width(), inputs.keys.width(), scope);
  if (!status.ok()) return status;
  const double key_width = static_cast<double>(inputs.keys.width());
  const double value_width =
      static_cast<double>(inputs.values.width()) / static_cast<double>(inputs.heads.key_value_heads);
  LayerCost cost;
  cost.AddPerRow(v1::SEQUENCE, 2.0 * key_width * value_width);
  cost.AddPerRow(inputs.query.level(), 2.0 * static_cast<double>(inputs.query.width()) * (value_width + 1));
  ValueInfo info{
      .name = layer.name(), .level = inputs.query.level(), .width = static_cast<int>(empty.size())};
  return std::make_unique<LinearTargetAttention>(
      std::move(info), cost,
      Parts{.inputs = std::move(inputs), .scale = message.scale(), .empty = std::move(empty)});
}

}  // namespace dinghy
