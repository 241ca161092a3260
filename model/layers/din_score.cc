// DIN's activation unit (Zhou et al., 2018): an MLP over [q, k, q - k, q * k] that scores each behavior k for
// one query q.
//
// The first layer's input is never built, since
//   W [q, k, q-k, q*k] = (Wq + Wd) q + (Wk - Wd) k + Wp (q * k):
// of query q it is one GEMM of the keys with diag(q) Wp^T + (Wk - Wd)^T, and (Wq + Wd) q + b is its bias.
//
// Where the machine and the activations allow, one fused kernel (ops::PairMlp, in bf16 ops::PairMlpBf16) runs
// the whole MLP; else it is GEMMs of oneDNN over blocks of behaviors, of shapes that only the history's
// length decides. In bf16 these are f32 GEMMs of factors that were rounded before, which any CPU has.
#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "model/layers/activation.h"
#include "model/layers/attention_score.h"
#include "model/layers/history_buckets.h"
#include "model/layers/split_linear.h"
#include "model/ops/bf16.h"
#include "model/ops/gemm.h"
#include "model/ops/pair_mlp.h"
#include "model/ops/pair_mlp_bf16.h"
#include "model/ops/vector_math.h"

namespace dinghy {
namespace {

// Behaviors that oneDNN's products take at a time, at most: a call costs less than what leaves the caches
// between the layers. The last block of a history has as few rows of padding as the step allows.
constexpr int64_t kBlockRows = 256;
constexpr int64_t kBlockStep = 4;

size_t BlockIndex(int64_t rows) { return static_cast<size_t>((rows + kBlockStep - 1) / kBlockStep - 1); }

struct Step {
  DenseWeights weights;                                 // of the first, only out and activation count
  std::vector<std::unique_ptr<ops::RowLinear>> linear;  // by block; none for the first and the last
};

struct DinParts {
  Inputs query;
  Inputs keys;
  int64_t width = 0;  // of the keys, and of the query with the zeros behind it
  int64_t parameters = 0;
  bool has_product = false;
  SplitLinear query_part;
  std::vector<float> key_weight;        // (Wk - Wd)^T, [width, first layer's width]
  std::vector<float> product_weight;    // Wp^T, the same
  bool bf16 = false;                    // factors are rounded but in the last layer
  std::unique_ptr<ops::PairMlp> fused;  // without either: oneDNN's products, in `first` and the steps
  std::unique_ptr<ops::PairMlpBf16> fused_bf16;
  std::vector<std::unique_ptr<ops::Gemm>> first;  // by block
  std::vector<Step> steps;
};

class DinScore : public AttentionScore {
 public:
  explicit DinScore(DinParts parts) : parts_(std::move(parts)) {}

  void Prepare(const RunContext& context, UserPart& part) const override {
    part.keys = Keys(context);
    parts_.query_part.Prepare(context, part);
  }

  Queries PrepareQueries(const RunContext& context) const override {
    return {.query = parts_.has_product ? PaddedQuery(context) : Value(),
            .base = parts_.query_part.Run(context)};
  }

  void Run(const RunContext& context, const Queries& queries, int64_t q, float* scores,
           int64_t stride) const override;

  void AddCost(LayerCost& cost) const override;

 private:
  // As the products take them: packed for the kernel, or [BucketRows(length), width], in bf16 rounded.
  Value Keys(const RunContext& context) const {
    const int64_t length = parts_.keys.Rows(context);
    if (parts_.fused_bf16 != nullptr) {
      const int64_t words = parts_.fused_bf16->key_words();
      float* packed = context.scratch.Floats(length * words);
      ops::Scratch::Scope scope(context.scratch);
      parts_.fused_bf16->PackKeys(parts_.keys.GatherPacked(context).data, length,
                                  reinterpret_cast<uint32_t*>(packed));
      return {packed, length, words};
    }
    if (parts_.fused != nullptr) {
      const int64_t floats = parts_.fused->key_floats();
      float* packed = context.scratch.Floats(length * floats);
      ops::Scratch::Scope scope(context.scratch);
      parts_.fused->PackKeys(parts_.keys.GatherPacked(context).data, length, packed);
      return {packed, length, floats};
    }
    const int64_t rows = BucketRows(length);
    float* keys = GatherBucket(context, parts_.keys);
    if (parts_.bf16) ops::RoundToBf16(keys, rows * parts_.width);
    return {keys, rows, parts_.width};
  }

  // The queries with their zeros, [queries, width].
  Value PaddedQuery(const RunContext& context) const {
    const Value query = parts_.query.Gather(context);
    const int64_t from = parts_.query.width();
    if (from == parts_.width) return query;
    float* padded = context.scratch.Floats(query.rows * parts_.width);
    for (int64_t q = 0; q < query.rows; ++q) {
      float* row = padded + q * parts_.width;
      std::copy_n(query.data + q * query.stride, from, row);
      std::fill(row + from, row + parts_.width, 0.0f);
    }
    return {padded, query.rows, parts_.width};
  }

  const DinParts parts_;
};

// The first layer's weight by part; null where the part is absent.
struct WeightParts {
  const float* query = nullptr;
  const float* key = nullptr;
  const float* difference = nullptr;
  const float* product = nullptr;
};

absl::StatusOr<WeightParts> FindParts(const v1::DinScore& din, const float* weight, int64_t width,
                                      const std::string& field, const LayerScope& scope) {
  WeightParts out;
  for (int i = 0; i < din.parts_size(); ++i) {
    const float** part = nullptr;
    switch (din.parts(i)) {
      case v1::DinScore::QUERY:
        part = &out.query;
        break;
      case v1::DinScore::KEY:
        part = &out.key;
        break;
      case v1::DinScore::DIFFERENCE:
        part = &out.difference;
        break;
      case v1::DinScore::PRODUCT:
        part = &out.product;
        break;
      default:
        return scope.Error(field, ".parts[", i, "]: expected QUERY, KEY, DIFFERENCE or PRODUCT, got ",
                           static_cast<int>(din.parts(i)));
    }
    if (*part != nullptr) {
      return scope.Error(field, ".parts[", i, "]: expected each part once, got ",
                         v1::DinScore::Part_Name(din.parts(i)), " again");
    }
    *part = weight + i * width;
  }
  return out;
}

// a + sign * b of two parts' weights, rounded once, either of which may be absent.
float Combine(const float* a, const float* b, double sign, int64_t index) {
  const double left = a != nullptr ? a[index] : 0.0;
  const double right = b != nullptr ? b[index] : 0.0;
  return static_cast<float>(left + sign * right);
}

// The first layer's weight as its users want it: the queries' part with the bias, and the two that a query
// combines with the keys.
absl::Status SplitFirstLayer(const v1::DinScore& din, const std::string& field, LayerScope& scope,
                             DinParts& out) {
  const DenseWeights& first = out.steps[0].weights;
  const absl::StatusOr<WeightParts> parts = FindParts(din, first.weight.data(), out.width, field, scope);
  if (!parts.ok()) return parts.status();
  const int64_t query_width = out.query.width();
  std::vector<float> query_weight(first.out * query_width);
  out.key_weight.resize(out.width * first.out);
  out.product_weight.resize(out.width * first.out);
  out.has_product = parts->product != nullptr;
  for (int64_t n = 0; n < first.out; ++n) {
    for (int64_t k = 0; k < out.width; ++k) {
      const int64_t from = n * first.in + k;
      if (k < query_width)
        query_weight[n * query_width + k] = Combine(parts->query, parts->difference, 1, from);
      out.key_weight[k * first.out + n] = Combine(parts->key, parts->difference, -1, from);
      out.product_weight[k * first.out + n] = Combine(parts->product, nullptr, 1, from);
    }
  }
  absl::StatusOr<SplitLinear> query_part = SplitLinear::Create(
      out.query, {.weight = std::move(query_weight), .bias = first.bias, .in = query_width, .out = first.out},
      scope);
  if (!query_part.ok()) return query_part.status();
  out.query_part = *std::move(query_part);
  return absl::OkStatus();
}

// The kernel's word for an activation, if it has one.
std::optional<ops::PairActivation> FusedActivation(v1::Activation kind) {
  switch (kind) {
    case v1::LINEAR:
      return ops::PairActivation::kLinear;
    case v1::RELU:
      return ops::PairActivation::kRelu;
    case v1::SIGMOID:
      return ops::PairActivation::kSigmoid;
    case v1::TANH:
      return ops::PairActivation::kTanh;
    case v1::SILU:
      return ops::PairActivation::kSilu;
    case v1::PRELU:
      return ops::PairActivation::kPrelu;
    case v1::DICE:
      return ops::PairActivation::kDice;
    default:
      return std::nullopt;
  }
}

// The layers as the kernels take them, none where they do not have an activation. The last layer's activation
// is not theirs.
std::vector<ops::PairMlp::Layer> FusedLayers(const std::vector<Step>& steps, int64_t width) {
  std::vector<ops::PairMlp::Layer> layers;
  for (size_t i = 0; i < steps.size(); ++i) {
    const DenseWeights& weights = steps[i].weights;
    const Activation& activation = weights.activation;
    const bool last = i + 1 == steps.size();
    const std::optional<ops::PairActivation> kind = FusedActivation(last ? v1::LINEAR : activation.kind);
    if (!kind.has_value()) return {};
    ops::PairMlp::Layer layer{.in = i == 0 ? width : weights.in, .out = weights.out, .activation = *kind};
    if (i > 0) {
      layer.weight = weights.weight.data();
      layer.bias = weights.bias_or_null();
    }
    if (!activation.alpha.empty()) layer.alpha = activation.alpha.data();
    if (!activation.norm_scale.empty()) {
      layer.norm_scale = activation.norm_scale.data();
      layer.norm_shift = activation.norm_shift.data();
    }
    layers.push_back(layer);
  }
  return layers;
}

// The steps between first and last, and the first one's weight of queries without a product; that of the
// others is rounded when it is made.
void RoundWeights(DinParts& out) {
  for (size_t i = 1; i + 1 < out.steps.size(); ++i) {
    std::vector<float>& weight = out.steps[i].weights.weight;
    ops::RoundToBf16(weight.data(), static_cast<int64_t>(weight.size()));
  }
  if (out.has_product) return;
  ops::RoundToBf16(out.key_weight.data(), static_cast<int64_t>(out.key_weight.size()));
}

absl::Status CreatePrimitives(LayerScope& scope, DinParts& out) {
  const DenseWeights& first = out.steps[0].weights;
  for (int64_t rows = kBlockStep; rows <= kBlockRows; rows += kBlockStep) {
    absl::StatusOr<std::unique_ptr<ops::Gemm>> gemm = ops::Gemm::Create({.m = rows,
                                                                         .n = first.out,
                                                                         .k = out.width,
                                                                         .a_stride = out.width,
                                                                         .b_stride = first.out,
                                                                         .c_stride = first.out,
                                                                         .bias = true});
    if (!gemm.ok()) return gemm.status();
    out.first.push_back(*std::move(gemm));
    for (size_t i = 1; i + 1 < out.steps.size(); ++i) {
      const DenseWeights& weights = out.steps[i].weights;
      absl::StatusOr<std::unique_ptr<ops::RowLinear>> linear =
          ops::RowLinear::Create({.in = weights.in, .out = weights.out, .onednn = true, .rows = rows},
                                 weights.weight.data(), weights.in, weights.bias_or_null());
      if (!linear.ok()) return linear.status();
      scope.AddChoice((*linear)->Choice());
      out.steps[i].linear.push_back(*std::move(linear));
    }
  }
  return absl::OkStatus();
}

void DinScore::Run(const RunContext& context, const Queries& queries, int64_t q, float* scores,
                   int64_t) const {
  ops::Scratch& scratch = context.scratch;
  ops::Scratch::Scope scope(scratch);
  const float* keys = context.user->keys.data;
  const int64_t length = parts_.keys.Rows(context);
  const std::vector<Step>& steps = parts_.steps;
  const DenseWeights& first = steps[0].weights;
  const bool one = steps.size() == 1;

  const float* query = parts_.has_product ? queries.query.data + q * queries.query.stride : nullptr;
  const float* base = queries.base + q * first.out;
  const DenseWeights& last = steps.back().weights;
  if (parts_.fused_bf16 != nullptr || parts_.fused != nullptr) {
    if (parts_.fused_bf16 != nullptr) {
      parts_.fused_bf16->Run(reinterpret_cast<const uint32_t*>(keys), length, query, base, scores, scratch);
    } else {
      parts_.fused->Run(keys, length, query, base, scores, scratch);
    }
    last.activation.Apply(scores, length);
    return;
  }
  const float* weight = parts_.key_weight.data();
  if (parts_.has_product) {
    float* pair_weight = scratch.Floats(parts_.width * first.out);
    ops::AddScaledRows(weight, parts_.product_weight.data(), query, pair_weight, parts_.width, first.out);
    if (parts_.bf16) ops::RoundToBf16(pair_weight, parts_.width * first.out);
    weight = pair_weight;
  }
  // Rows of padding are computed by the GEMMs, which have no other shape, but by nothing else.
  const float bias = !last.bias.empty() ? last.bias[0] : 0.0f;
  for (int64_t begin = 0; begin < length; begin += kBlockRows) {
    ops::Scratch::Scope block_scope(scratch);
    const int64_t rows = std::min(kBlockRows, length - begin);
    const size_t block = BlockIndex(rows);
    const int64_t padded = static_cast<int64_t>(block + 1) * kBlockStep;
    float* x = one ? scores + begin : scratch.Floats(padded * first.out);
    parts_.first[block]->Run(keys + begin * parts_.width, weight, base, x, scratch);
    if (one) continue;
    first.activation.Apply(x, rows);
    for (size_t i = 1; i + 1 < steps.size(); ++i) {
      const DenseWeights& weights = steps[i].weights;
      float* y = scratch.Floats(padded * weights.out);
      if (parts_.bf16) ops::RoundToBf16(x, padded * weights.in);
      steps[i].linear[block]->Run(x, weights.in, padded, y, weights.out, scratch);
      weights.activation.Apply(y, rows);
      x = y;
    }
    for (int64_t r = 0; r < rows; ++r) {
      scores[begin + r] = ops::Dot(x + r * last.in, last.weight.data(), last.in) + bias;
    }
  }
  last.activation.Apply(scores, length);
}

void DinScore::AddCost(LayerCost& cost) const {
  const std::vector<Step>& steps = parts_.steps;
  const v1::Level level = parts_.query.level();
  const double first = 2.0 * static_cast<double>(parts_.width * steps[0].weights.out);
  cost.parameters += parts_.parameters;
  parts_.query_part.AddCost(cost);
  AddPairCost(level, first, cost);
  for (size_t i = 1; i < steps.size(); ++i) {
    AddPairCost(level, 2.0 * static_cast<double>(steps[i].weights.in * steps[i].weights.out), cost);
  }
  if (parts_.has_product) cost.AddPerRow(level, first);
}

}  // namespace

absl::StatusOr<std::unique_ptr<AttentionScore>> CreateDinScore(const v1::DinScore& din,
                                                               const ScoreOptions& options,
                                                               LayerScope& scope) {
  const std::string field = absl::StrCat(options.prefix, "din");
  DinParts out;
  out.query = options.query;
  out.keys = options.keys;
  out.width = options.query.width() + static_cast<int64_t>(din.query_zeros());
  if (out.width != options.keys.width()) {
    return scope.Error("keys: expected the query's width ", options.query.width(),
                       din.query_zeros() == 0 ? "" : absl::StrCat(" and query_zeros ", din.query_zeros()),
                       ", got ", options.keys.width());
  }
  if (din.parts().empty()) return scope.Error(field, ".parts: expected at least one, got none");
  if (din.layers().empty()) return scope.Error(field, ".layers: expected at least one, got none");

  int64_t in = din.parts_size() * out.width;
  for (int i = 0; i < din.layers_size(); ++i) {
    const absl::StatusOr<DenseWeights> weights =
        scope.FindDense(absl::StrCat(field, ".layers[", i, "]"), din.layers(i), in);
    if (!weights.ok()) return weights.status();
    out.parameters += weights->parameters();
    in = weights->out;
    out.steps.push_back({*weights, {}});
  }
  if (in != 1) {
    return scope.Error(field, ".layers[", din.layers_size() - 1,
                       "]: expected width 1 of the last layer, got ", in);
  }
  // A single layer is the last one, whose products are in f32.
  out.bf16 = scope.manifest().precision() == v1::BF16 && out.steps.size() > 1;
  if (absl::Status status = SplitFirstLayer(din, field, scope, out); !status.ok()) return status;
  const ops::PairMlp::Options kernel = {
      .layers = scope.options().fused_kernels ? FusedLayers(out.steps, out.width)
                                              : std::vector<ops::PairMlp::Layer>(),
      .key_weight = out.key_weight.data(),
      .product_weight = out.has_product ? out.product_weight.data() : nullptr,
      .weight_stride = out.steps[0].weights.out};
  if (out.bf16) {
    out.fused_bf16 = ops::PairMlpBf16::Create(kernel);
    scope.AddChoice(out.fused_bf16 != nullptr ? "bf16" : "bf16 by f32 products of rounded factors");
    if (out.fused_bf16 == nullptr) RoundWeights(out);
  } else {
    out.fused = ops::PairMlp::Create(kernel);
  }
  if (out.fused != nullptr) {
    scope.AddChoice("fused");
  } else if (out.fused_bf16 == nullptr) {
    const absl::Status status = CreatePrimitives(scope, out);
    if (!status.ok()) return status;
  }
  return std::make_unique<DinScore>(std::move(out));
}

}  // namespace dinghy
