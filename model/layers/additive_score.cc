// v^T activation(Wq q + Wk k + b) (Bahdanau et al., 2015): Wk k once per behavior, Wq q + b once per query,
// and the rest in one pass over both.
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "model/layers/attention_score.h"
#include "model/layers/history_buckets.h"
#include "model/layers/split_linear.h"
#include "model/ops/attention.h"
#include "model/ops/gemm.h"

namespace dinghy {
namespace {

std::optional<ops::ScoreActivation> ScoreActivationOf(v1::Activation activation) {
  switch (activation) {
    case v1::LINEAR:
      return ops::ScoreActivation::kLinear;
    case v1::RELU:
      return ops::ScoreActivation::kRelu;
    case v1::SIGMOID:
      return ops::ScoreActivation::kSigmoid;
    case v1::TANH:
      return ops::ScoreActivation::kTanh;
    case v1::SILU:
      return ops::ScoreActivation::kSilu;
    case v1::GELU_ERF:
      return ops::ScoreActivation::kGeluErf;
    case v1::GELU_TANH:
      return ops::ScoreActivation::kGeluTanh;
    default:
      return std::nullopt;
  }
}

struct AdditiveParts {
  SplitLinear query_part;
  std::unique_ptr<ops::RowLinear> key_part;
  std::vector<float> vector;  // [hidden]
  ops::ScoreActivation activation = ops::ScoreActivation::kTanh;
  int64_t parameters = 0;
};

class AdditiveScore : public AttentionScore {
 public:
  AdditiveScore(const ScoreOptions& options, AdditiveParts parts)
      : query_(options.query), keys_(options.keys), parts_(std::move(parts)) {}

  void Prepare(const RunContext& context, UserPart& part) const override {
    parts_.query_part.Prepare(context, part);
    const int64_t length = keys_.Rows(context);
    const int64_t columns = BucketRows(length);
    float* transposed = context.scratch.Floats(hidden() * columns);
    part.keys = {transposed, hidden(), columns};
    ops::Scratch::Scope scope(context.scratch);
    float* rows = context.scratch.Floats(length * hidden());
    const Value keys = keys_.Gather(context);
    parts_.key_part->Run(keys.data, keys.stride, length, rows, hidden(), context.scratch);
    ops::Transpose(rows, hidden(), length, hidden(), transposed, columns);
  }

  Queries PrepareQueries(const RunContext& context) const override {
    return {.base = parts_.query_part.Run(context)};
  }

  void Run(const RunContext& context, const Queries& queries, int64_t q, float* scores,
           int64_t) const override {
    ops::AdditiveScores(parts_.activation, KeysOf(context), queries.base + q * hidden(), parts_.vector.data(),
                        scores);
  }

  void AddCost(LayerCost& cost) const override {
    cost.parameters += parts_.parameters;
    parts_.query_part.AddCost(cost);
    cost.AddPerRow(v1::SEQUENCE, 2.0 * static_cast<double>(keys_.width() * hidden()));
    AddPairCost(query_.level(), 3.0 * static_cast<double>(hidden()), cost);
  }

 private:
  int64_t hidden() const { return static_cast<int64_t>(parts_.vector.size()); }

  const Inputs query_;
  const Inputs keys_;
  const AdditiveParts parts_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<AttentionScore>> CreateAdditiveScore(const v1::AdditiveScore& additive,
                                                                    const ScoreOptions& options,
                                                                    LayerScope& scope) {
  const auto field = [&](absl::string_view name) { return absl::StrCat(options.prefix, "additive.", name); };
  const int64_t query_width = options.query.width();
  const int64_t key_width = options.keys.width();
  const absl::StatusOr<const Tensor*> query_weight =
      scope.FindTensor(field("query_weight"), additive.query_weight(), {-1, query_width});
  if (!query_weight.ok()) return query_weight.status();
  const int64_t hidden = (*query_weight)->shape[0];
  const absl::StatusOr<const Tensor*> key_weight =
      scope.FindTensor(field("key_weight"), additive.key_weight(), {hidden, key_width});
  if (!key_weight.ok()) return key_weight.status();
  const absl::StatusOr<const Tensor*> vector = scope.FindTensor(field("vector"), additive.vector(), {hidden});
  if (!vector.ok()) return vector.status();
  if (!additive.has_bias()) {
    return scope.Error(field("bias"), ": expected a tensor's name, or \"\" for none, got nothing");
  }
  const auto floats = [](const Tensor& tensor) {
    return std::vector<float>(tensor.data.get(), tensor.data.get() + tensor.size);
  };
  DenseWeights query_part{.weight = floats(**query_weight), .in = query_width, .out = hidden};
  if (!additive.bias().empty()) {
    const absl::StatusOr<const Tensor*> bias = scope.FindTensor(field("bias"), additive.bias(), {hidden});
    if (!bias.ok()) return bias.status();
    query_part.bias = floats(**bias);
  }
  const std::optional<ops::ScoreActivation> activation = ScoreActivationOf(additive.activation());
  if (!activation.has_value()) {
    return scope.Error(field("activation"), ": expected an activation without parameters, got ",
                       additive.activation() == v1::ACTIVATION_UNSPECIFIED
                           ? "nothing"
                           : v1::Activation_Name(additive.activation()));
  }

  AdditiveParts parts;
  parts.activation = *activation;
  parts.vector = floats(**vector);
  parts.parameters =
      query_part.parameters() + (*key_weight)->size + static_cast<int64_t>(parts.vector.size());
  absl::StatusOr<SplitLinear> split = SplitLinear::Create(options.query, query_part, scope);
  if (!split.ok()) return split.status();
  parts.query_part = *std::move(split);
  absl::StatusOr<std::unique_ptr<ops::RowLinear>> key_part =
      CreateRowLinear(v1::SEQUENCE, {.weight = floats(**key_weight), .in = key_width, .out = hidden}, scope);
  if (!key_part.ok()) return key_part.status();
  parts.key_part = *std::move(key_part);
  return std::make_unique<AdditiveScore>(options, std::move(parts));
}

}  // namespace dinghy
