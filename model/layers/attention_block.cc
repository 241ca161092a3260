#include "model/layers/attention_block.h"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/layers/activation.h"
#include "model/layers/history_buckets.h"
#include "model/layers/split_linear.h"
#include "model/ops/vector_math.h"

namespace dinghy {

absl::StatusOr<HeadAttention> HeadAttention::Create(const Options& options) {
  HeadAttention out;
  out.options_ = options;
  const int64_t head_width = options.width / options.heads;
  for (int64_t bucket = 0; bucket < BucketCount(options.max_length); ++bucket) {
    const int64_t rows = (bucket + 1) * kBucketRows;
    absl::StatusOr<std::unique_ptr<ops::Gemm>> score = ops::Gemm::Create({.m = rows,
                                                                          .n = rows,
                                                                          .k = head_width,
                                                                          .a_stride = options.width,
                                                                          .b_stride = options.width,
                                                                          .c_stride = rows,
                                                                          .transpose_b = true});
    if (!score.ok()) return score.status();
    out.score_.push_back(*std::move(score));
    absl::StatusOr<std::unique_ptr<ops::Gemm>> weigh = ops::Gemm::Create({.m = rows,
                                                                          .n = head_width,
                                                                          .k = rows,
                                                                          .a_stride = rows,
                                                                          .b_stride = options.width,
                                                                          .c_stride = options.width});
    if (!weigh.ok()) return weigh.status();
    out.weigh_.push_back(*std::move(weigh));
  }
  return out;
}

void HeadAttention::Run(float* q, const float* k, const float* v, int64_t length, float* out,
                        ops::Scratch& scratch) const {
  ops::Scratch::Scope scope(scratch);
  const int64_t rows = BucketRows(length);
  const int64_t bucket = BucketIndex(length);
  const int64_t head_width = options_.width / options_.heads;
  ops::Scale(1.0f / std::sqrt(static_cast<float>(head_width)), q, length * options_.width);
  float* weights = scratch.Floats(rows * rows);
  for (int64_t column = 0; column < options_.width; column += head_width) {
    score_[bucket]->Run(q + column, k + column, nullptr, weights, scratch);
    for (int64_t r = 0; r < rows; ++r) {
      float* row = weights + r * rows;
      const int64_t seen = r >= length ? 0 : options_.causal ? r + 1 : length;
      if (seen > 0) ops::Softmax(row, seen);
      std::fill(row + seen, row + rows, 0.0f);
    }
    weigh_[bucket]->Run(weights, v + column, nullptr, out + column, scratch);
  }
}

void AttentionBlock::Linear::Run(const float* x, int64_t in, int64_t length, float* y,
                                 ops::Scratch& scratch) const {
  rows->Run(x, in, length, y, out, scratch);
  activation.Apply(y, length);
}

absl::StatusOr<AttentionBlock::Linear> AttentionBlock::CreateLinear(const std::string& field,
                                                                    const v1::Dense& dense, int64_t in,
                                                                    LayerScope& scope) {
  const absl::StatusOr<DenseWeights> weights = scope.FindDense(field, dense, in);
  if (!weights.ok()) return weights.status();
  absl::StatusOr<std::unique_ptr<ops::RowLinear>> rows = CreateRowLinear(v1::SEQUENCE, *weights, scope);
  if (!rows.ok()) return rows.status();
  Linear out;
  out.rows = *std::move(rows);
  out.out = weights->out;
  out.activation = weights->activation;
  out.parameters = weights->parameters();
  out.flops = 2.0 * static_cast<double>(in * weights->out);
  return out;
}

absl::StatusOr<AttentionBlock> AttentionBlock::Create(const std::string& field,
                                                      const v1::SelfAttention::Block& block,
                                                      v1::SelfAttention::Wiring wiring,
                                                      const HeadAttention& heads, LayerScope& scope) {
  AttentionBlock out;
  out.heads_ = &heads;
  out.wiring_ = wiring;
  const int64_t width = heads.options().width;
  for (const auto& [name, dense, linear] :
       {std::tuple{"query", &block.query(), &out.query_}, std::tuple{"key", &block.key(), &out.key_},
        std::tuple{"value", &block.value(), &out.value_}, std::tuple{"out", &block.out(), &out.out_}}) {
    const std::string name_in_block = absl::StrCat(field, ".", name);
    absl::StatusOr<Linear> created = CreateLinear(name_in_block, *dense, width, scope);
    if (!created.ok()) return created.status();
    if (created->out != width) {
      return scope.Error(name_in_block, ": expected the input's width ", width, ", got ", created->out);
    }
    *linear = *std::move(created);
  }
  if (block.ffn().empty()) return scope.Error(field, ".ffn: expected at least one layer, got none");
  int64_t in = width;
  for (int i = 0; i < block.ffn_size(); ++i) {
    absl::StatusOr<Linear> created =
        CreateLinear(absl::StrCat(field, ".ffn[", i, "]"), block.ffn(i), in, scope);
    if (!created.ok()) return created.status();
    in = created->out;
    out.ffn_.push_back(*std::move(created));
  }
  if (in != width) {
    return scope.Error(field, ".ffn: expected the last layer to have the input's width ", width, ", got ",
                       in);
  }
  for (const auto& [name, norm, weights] :
       {std::tuple{"attention_norm", &block.attention_norm(), &out.attention_norm_},
        std::tuple{"ffn_norm", &block.ffn_norm(), &out.ffn_norm_}}) {
    const absl::StatusOr<NormWeights> found = scope.FindNorm(absl::StrCat(field, ".", name), *norm, width);
    if (!found.ok()) return found.status();
    *weights = *found;
  }
  return out;
}

void AttentionBlock::Attend(const float* query, const float* memory, int64_t length, float* out,
                            ops::Scratch& scratch) const {
  ops::Scratch::Scope scope(scratch);
  const int64_t width = heads_->options().width;
  const int64_t padded = BucketRows(length) * width;
  float* projected[3];
  const Linear* const linears[3] = {&query_, &key_, &value_};
  for (int i = 0; i < 3; ++i) {
    projected[i] = scratch.Floats(padded);
    linears[i]->Run(i == 0 ? query : memory, width, length, projected[i], scratch);
    std::fill(projected[i] + length * width, projected[i] + padded, 0.0f);
  }
  float* attended = scratch.Floats(padded);
  heads_->Run(projected[0], projected[1], projected[2], length, attended, scratch);
  out_.Run(attended, width, length, out, scratch);
}

void AttentionBlock::FeedForward(const float* x, int64_t length, float* out, ops::Scratch& scratch) const {
  ops::Scratch::Scope scope(scratch);
  int64_t in = heads_->options().width;
  for (size_t i = 0; i < ffn_.size(); ++i) {
    float* y = i + 1 == ffn_.size() ? out : scratch.Floats(length * ffn_[i].out);
    ffn_[i].Run(x, in, length, y, scratch);
    x = y;
    in = ffn_[i].out;
  }
}

void AttentionBlock::Run(float* x, int64_t length, ops::Scratch& scratch) const {
  ops::Scratch::Scope scope(scratch);
  const int64_t width = heads_->options().width;
  const int64_t size = length * width;
  float* normed = scratch.Floats(size);
  float* part = scratch.Floats(size);
  const auto norm = [&](const NormWeights& weights, const float* from, float* to) {
    ops::LayerNormRows(from, length, width, weights.weight, weights.bias, weights.epsilon, to);
  };
  switch (wiring_) {
    case v1::SelfAttention::PRE_NORM:
      norm(attention_norm_, x, normed);
      Attend(normed, normed, length, part, scratch);
      ops::AddTo(part, x, size);
      norm(ffn_norm_, x, normed);
      FeedForward(normed, length, part, scratch);
      ops::AddTo(part, x, size);
      break;
    case v1::SelfAttention::POST_NORM:
      Attend(x, x, length, part, scratch);
      ops::AddTo(part, x, size);
      norm(attention_norm_, x, x);
      FeedForward(x, length, part, scratch);
      ops::AddTo(part, x, size);
      norm(ffn_norm_, x, x);
      break;
    default:  // SASREC_ORIGINAL: the residuals start from the normed values.
      norm(attention_norm_, x, normed);
      Attend(normed, x, length, part, scratch);
      ops::AddTo(part, normed, size);
      norm(ffn_norm_, normed, x);
      FeedForward(x, length, part, scratch);
      ops::AddTo(part, x, size);
      break;
  }
}

void AttentionBlock::AddCost(LayerCost& cost) const {
  const double width = static_cast<double>(heads_->options().width);
  cost.parameters += 4 * heads_->options().width;
  for (const Linear* linear : {&query_, &key_, &value_, &out_}) {
    cost.parameters += linear->parameters;
    cost.behavior += linear->flops;
  }
  for (const Linear& linear : ffn_) {
    cost.parameters += linear.parameters;
    cost.behavior += linear.flops;
  }
  cost.behavior_pair += 4 * width;
}

}  // namespace dinghy
