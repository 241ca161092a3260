#include "model/layers/din_score.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "model/layers/activation.h"
#include "model/layers/history_buckets.h"
#include "model/ops/vector_math.h"

namespace dinghy {
namespace {

// The first layer's weight by part; null where the part is absent.
struct Parts {
  const float* query = nullptr;
  const float* key = nullptr;
  const float* difference = nullptr;
  const float* product = nullptr;
};

absl::StatusOr<Parts> FindParts(const v1::DinScore& din, const float* weight, int64_t width,
                                const LayerScope& scope) {
  Parts out;
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
        return scope.Error("din.parts[", i, "]: expected QUERY, KEY, DIFFERENCE or PRODUCT, got ",
                           static_cast<int>(din.parts(i)));
    }
    if (*part != nullptr) {
      return scope.Error("din.parts[", i, "]: expected each part once, got ",
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

}  // namespace

absl::StatusOr<DinScore> DinScore::Create(const v1::DinScore& din, const Inputs& query, int64_t max_length,
                                          LayerScope& scope) {
  DinScore out;
  const int64_t width = query.width();
  out.width_ = width;
  out.query_level_ = query.level();
  if (din.parts().empty()) return scope.Error("din.parts: expected at least one, got none");
  if (din.layers().empty()) return scope.Error("din.layers: expected at least one, got none");

  int64_t in = din.parts_size() * width;
  for (int i = 0; i < din.layers_size(); ++i) {
    const absl::StatusOr<DenseWeights> weights =
        scope.FindDense(absl::StrCat("din.layers[", i, "]"), din.layers(i), in);
    if (!weights.ok()) return weights.status();
    out.parameters_ += weights->parameters();
    in = weights->out;
    out.steps_.push_back({*weights, {}});
  }
  if (in != 1) {
    return scope.Error("din.layers[", din.layers_size() - 1, "]: expected width 1 of the last layer, got ",
                       in);
  }

  const DenseWeights& first = out.steps_[0].weights;
  const absl::StatusOr<Parts> parts = FindParts(din, first.weight.data(), width, scope);
  if (!parts.ok()) return parts.status();
  std::vector<float> query_weight(first.out * width);
  out.key_weight_.resize(width * first.out);
  out.product_weight_.resize(width * first.out);
  out.has_product_ = parts->product != nullptr;
  for (int64_t n = 0; n < first.out; ++n) {
    for (int64_t k = 0; k < width; ++k) {
      const int64_t from = n * first.in + k;
      query_weight[n * width + k] = Combine(parts->query, parts->difference, 1, from);
      out.key_weight_[k * first.out + n] = Combine(parts->key, parts->difference, -1, from);
      out.product_weight_[k * first.out + n] = out.has_product_ ? parts->product[from] : 0.0f;
    }
  }
  absl::StatusOr<SplitLinear> query_part = SplitLinear::Create(
      query, {.weight = std::move(query_weight), .bias = first.bias, .in = width, .out = first.out}, scope);
  if (!query_part.ok()) return query_part.status();
  out.query_part_ = *std::move(query_part);

  for (int64_t bucket = 0; bucket < BucketCount(max_length); ++bucket) {
    const int64_t rows = (bucket + 1) * kBucketRows;
    absl::StatusOr<std::unique_ptr<ops::Gemm>> gemm = ops::Gemm::Create({.m = rows,
                                                                         .n = first.out,
                                                                         .k = width,
                                                                         .a_stride = width,
                                                                         .b_stride = first.out,
                                                                         .c_stride = first.out,
                                                                         .bias = true});
    if (!gemm.ok()) return gemm.status();
    out.first_.push_back(*std::move(gemm));
    for (size_t i = 1; i + 1 < out.steps_.size(); ++i) {
      const DenseWeights& weights = out.steps_[i].weights;
      absl::StatusOr<std::unique_ptr<ops::RowLinear>> linear =
          ops::RowLinear::Create({.in = weights.in, .out = weights.out, .rows = rows}, weights.weight.data(),
                                 weights.in, weights.bias_or_null());
      if (!linear.ok()) return linear.status();
      scope.AddChoice((*linear)->Choice());
      out.steps_[i].linear.push_back(*std::move(linear));
    }
  }
  return out;
}

void DinScore::Run(const float* keys, int64_t length, const float* query, const float* base, float* scores,
                   ops::Scratch& scratch) const {
  ops::Scratch::Scope scope(scratch);
  const int64_t rows = BucketRows(length);
  const int64_t bucket = BucketIndex(length);
  const DenseWeights& first = steps_[0].weights;
  const bool one = steps_.size() == 1;

  const float* weight = key_weight_.data();
  if (has_product_) {
    float* pair_weight = scratch.Floats(width_ * first.out);
    ops::AddScaledRows(key_weight_.data(), product_weight_.data(), query, pair_weight, width_, first.out);
    weight = pair_weight;
  }
  // The padding's rows are computed by the GEMMs, which have no other shape, but by nothing else.
  float* x = one ? scores : scratch.Floats(rows * first.out);
  first_[bucket]->Run(keys, weight, base, x, scratch);
  first.activation.Apply(x, length);
  for (size_t i = 1; i + 1 < steps_.size(); ++i) {
    const DenseWeights& weights = steps_[i].weights;
    float* y = scratch.Floats(rows * weights.out);
    steps_[i].linear[bucket]->Run(x, weights.in, rows, y, weights.out, scratch);
    weights.activation.Apply(y, length);
    x = y;
  }
  if (one) return;
  const DenseWeights& last = steps_.back().weights;
  const float bias = !last.bias.empty() ? last.bias[0] : 0.0f;
  for (int64_t r = 0; r < length; ++r)
    scores[r] = ops::Dot(x + r * last.in, last.weight.data(), last.in) + bias;
  last.activation.Apply(scores, length);
}

void DinScore::AddCost(LayerCost& cost) const {
  cost.parameters += parameters_;
  query_part_.AddCost(cost);
  const int64_t first = first_width();
  // Per query and behavior; a user's query meets each behavior once.
  double& pair = query_level_ == v1::USER ? cost.behavior : cost.pair;
  pair += 2.0 * static_cast<double>(width_ * first);
  for (size_t i = 1; i < steps_.size(); ++i) {
    pair += 2.0 * static_cast<double>(steps_[i].weights.in * steps_[i].weights.out);
  }
  if (has_product_) cost.AddPerRow(query_level_, 2.0 * static_cast<double>(width_ * first));
}

}  // namespace dinghy
