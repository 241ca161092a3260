#include "model/layers/attention_block.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/layers/history_buckets.h"
#include "model/layers/split_linear.h"
#include "model/ops/vector_math.h"

namespace dinghy {

void AttentionBlock::Linear::Run(const float* x, int64_t length, float* y, ops::Scratch& scratch) const {
  rows->Run(x, in, length, y, out, scratch);
  activation.Apply(y, length);
}

absl::StatusOr<AttentionBlock::Linear> AttentionBlock::CreateLinear(const std::string& field,
                                                                    const v1::Dense& dense, int64_t in,
                                                                    LayerScope& scope) {
  absl::StatusOr<DenseWeights> weights = scope.FindDense(field, dense, in);
  if (!weights.ok()) return weights.status();
  absl::StatusOr<std::unique_ptr<ops::RowLinear>> rows = CreateRowLinear(v1::SEQUENCE, *weights, scope);
  if (!rows.ok()) return rows.status();
  Linear out;
  out.rows = *std::move(rows);
  out.in = in;
  out.out = weights->out;
  out.parameters = weights->parameters();
  out.activation = std::move(weights->activation);
  return out;
}

absl::Status AttentionBlock::CreateHeads(const std::string& field, const v1::SelfAttention& attention,
                                         const v1::SelfAttention::Block& block, int64_t max_length,
                                         LayerScope& scope) {
  int64_t memory = width_;
  if (block.has_latent()) {
    absl::StatusOr<Linear> latent =
        CreateLinear(absl::StrCat(field, ".latent"), block.latent(), width_, scope);
    if (!latent.ok()) return latent.status();
    latent_ = *std::move(latent);
    memory = latent_.out;
  }
  for (const auto& [name, dense, in, linear] :
       {std::tuple{"query", &block.query(), width_, &query_}, std::tuple{"key", &block.key(), memory, &key_},
        std::tuple{"value", &block.value(), memory, &value_}}) {
    absl::StatusOr<Linear> created = CreateLinear(absl::StrCat(field, ".", name), *dense, in, scope);
    if (!created.ok()) return created.status();
    *linear = *std::move(created);
  }
  HeadAttention::Options options;
  options.heads = attention.heads();
  options.key_value_heads = attention.has_key_value_heads() ? attention.key_value_heads() : attention.heads();
  if (query_.out % options.heads != 0) {
    return scope.Error(field, ".query: expected a width that ", options.heads, " heads divide, got ",
                       query_.out);
  }
  options.head_width = query_.out / options.heads;
  if (key_.out != options.key_value_heads * options.head_width) {
    return scope.Error(field, ".key: expected width ", options.key_value_heads * options.head_width, ", ",
                       options.key_value_heads, " heads as wide as the query's, got ", key_.out);
  }
  if (value_.out % options.key_value_heads != 0) {
    return scope.Error(field, ".value: expected a width that ", options.key_value_heads,
                       " heads divide, got ", value_.out);
  }
  options.value_width = value_.out / options.key_value_heads;
  options.max_length = max_length;
  options.causal = attention.causal();
  options.window = attention.window();
  options.linear = attention.kernel() == v1::SelfAttention::ELU_PLUS_ONE;
  options.onednn = !scope.options().fused_kernels;
  absl::StatusOr<HeadAttention> heads = HeadAttention::Create(options);
  if (!heads.ok()) return heads.status();
  heads_ = *std::move(heads);
  absl::StatusOr<Linear> out =
      CreateLinear(absl::StrCat(field, ".out"), block.out(), heads_.out_width(), scope);
  if (!out.ok()) return out.status();
  out_ = *std::move(out);
  return absl::OkStatus();
}

absl::Status AttentionBlock::CreateFeedForward(const std::string& field,
                                               const v1::SelfAttention::Block& block, LayerScope& scope) {
  if (block.ffn().empty()) return scope.Error(field, ".ffn: expected at least one layer, got none");
  int64_t in = width_;
  for (int i = 0; i < block.ffn_size(); ++i) {
    absl::StatusOr<Linear> created =
        CreateLinear(absl::StrCat(field, ".ffn[", i, "]"), block.ffn(i), in, scope);
    if (!created.ok()) return created.status();
    in = created->out;
    ffn_.push_back(*std::move(created));
  }
  if (in != width_) {
    return scope.Error(field, ".ffn: expected the last layer to have the input's width ", width_, ", got ",
                       in);
  }
  for (const auto& [name, norm, weights] :
       {std::tuple{"attention_norm", &block.attention_norm(), &attention_norm_},
        std::tuple{"ffn_norm", &block.ffn_norm(), &ffn_norm_}}) {
    const absl::StatusOr<NormWeights> found = scope.FindNorm(absl::StrCat(field, ".", name), *norm, width_);
    if (!found.ok()) return found.status();
    *weights = *found;
  }
  return absl::OkStatus();
}

absl::StatusOr<AttentionBlock> AttentionBlock::Create(const v1::SelfAttention& attention, int index,
                                                      int64_t width, int64_t max_length, LayerScope& scope) {
  const v1::SelfAttention::Block& block = attention.blocks(index);
  const std::string field = absl::StrCat("blocks[", index, "]");
  AttentionBlock out;
  out.width_ = width;
  out.wiring_ = attention.wiring();
  if (absl::Status status = out.CreateHeads(field, attention, block, max_length, scope); !status.ok()) {
    return status;
  }
  if (out.wiring_ == v1::SelfAttention::BARE) {
    for (const auto& [name, present] :
         {std::pair{"attention_norm", block.has_attention_norm()},
          std::pair{"ffn_norm", block.has_ffn_norm()}, std::pair{"ffn", block.ffn_size() > 0}}) {
      if (present) return scope.Error(field, ".", name, ": expected none in wiring BARE, got one");
    }
    return out;
  }
  if (out.out_.out != width) {
    return scope.Error(field, ".out: expected the input's width ", width, ", got ", out.out_.out);
  }
  if (absl::Status status = out.CreateFeedForward(field, block, scope); !status.ok()) return status;
  return out;
}

void AttentionBlock::Attend(int64_t first, const float* query, const float* memory, const HistoryRows& rows,
                            float* out, ops::Scratch& scratch) const {
  ops::Scratch::Scope scope(scratch);
  const int64_t length = rows.rows;
  const int64_t queries = length - first;
  if (latent_.out > 0) {
    float* latent = scratch.Floats(length * latent_.out);
    latent_.Run(memory, length, latent, scratch);
    memory = latent;
  }
  const auto project = [&](const Linear& linear, const float* x, int64_t count) {
    const int64_t padded = BucketRows(count);
    float* y = scratch.Floats(padded * linear.out);
    linear.Run(x, count, y, scratch);
    std::fill(y + count * linear.out, y + padded * linear.out, 0.0f);
    return y;
  };
  float* q = project(query_, query, queries);
  float* k = project(key_, memory, length);
  const float* v = project(value_, memory, length);
  float* attended = scratch.Floats(BucketRows(queries) * heads_.out_width());
  if (first > 0) {
    heads_.RunNewest(q, k, v, rows, attended, scratch);
  } else {
    heads_.Run(q, k, v, rows, attended, scratch);
  }
  out_.Run(attended, queries, out, scratch);
}

void AttentionBlock::FeedForward(const float* x, int64_t length, float* out, ops::Scratch& scratch) const {
  ops::Scratch::Scope scope(scratch);
  for (size_t i = 0; i < ffn_.size(); ++i) {
    float* y = i + 1 == ffn_.size() ? out : scratch.Floats(length * ffn_[i].out);
    ffn_[i].Run(x, length, y, scratch);
    x = y;
  }
}

float* AttentionBlock::Run(float* x, const HistoryRows& rows, ops::Scratch& scratch) const {
  return RunFrom(0, x, rows, scratch);
}

float* AttentionBlock::RunNewest(float* x, const HistoryRows& rows, ops::Scratch& scratch) const {
  return RunFrom(rows.rows - 1, x, rows, scratch);
}

float* AttentionBlock::RunFrom(int64_t first, float* x, const HistoryRows& rows,
                               ops::Scratch& scratch) const {
  const int64_t count = rows.rows - first;
  float* y = x + first * width_;  // the rows that are computed
  if (wiring_ == v1::SelfAttention::BARE) {
    float* out = scratch.Floats(count * out_width());
    Attend(first, y, x, rows, out, scratch);
    return out;
  }
  ops::Scratch::Scope scope(scratch);
  const int64_t size = count * width_;
  float* normed = scratch.Floats(rows.rows * width_);
  float* part = scratch.Floats(size);
  const auto norm = [&](const NormWeights& weights, const float* from, int64_t norm_rows, float* to) {
    ops::LayerNormRows(from, norm_rows, width_, weights.weight, weights.bias, weights.epsilon, to);
  };
  switch (wiring_) {
    case v1::SelfAttention::PRE_NORM:
      norm(attention_norm_, x, rows.rows, normed);
      Attend(first, normed + first * width_, normed, rows, part, scratch);
      ops::AddTo(part, y, size);
      norm(ffn_norm_, y, count, normed);
      FeedForward(normed, count, part, scratch);
      ops::AddTo(part, y, size);
      break;
    case v1::SelfAttention::POST_NORM:
      Attend(first, y, x, rows, part, scratch);
      ops::AddTo(part, y, size);
      norm(attention_norm_, y, count, y);
      FeedForward(y, count, part, scratch);
      ops::AddTo(part, y, size);
      norm(ffn_norm_, y, count, y);
      break;
    default:  // SASREC_ORIGINAL: the residuals start from the normed values.
      norm(attention_norm_, y, count, normed);
      Attend(first, normed, x, rows, part, scratch);
      ops::AddTo(part, normed, size);
      norm(ffn_norm_, normed, count, y);
      FeedForward(y, count, part, scratch);
      ops::AddTo(part, y, size);
      break;
  }
  return y;
}

void AttentionBlock::AddCost(bool newest_alone, LayerCost& cost) const {
  const auto add = [&](const Linear& linear, bool of_keys) {
    cost.parameters += linear.parameters;
    cost.AddPerRow(newest_alone && !of_keys ? v1::USER : v1::SEQUENCE,
                   2.0 * static_cast<double>(linear.in * linear.out));
  };
  for (const Linear* linear : {&latent_, &key_, &value_}) add(*linear, true);
  for (const Linear* linear : {&query_, &out_}) add(*linear, false);
  for (const Linear& linear : ffn_) add(linear, false);
  if (wiring_ != v1::SelfAttention::BARE) cost.parameters += 4 * width_;
  const HeadAttention::Options& heads = heads_.options();
  const double width = static_cast<double>(heads.heads * (heads.head_width + heads.value_width));
  if (heads.linear) {
    cost.behavior += 2.0 * width * static_cast<double>(heads.value_width);
  } else {
    (newest_alone ? cost.behavior : cost.behavior_pair) += 2.0 * width;
  }
}

}  // namespace dinghy
