#include "model/layers/head_attention.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "model/layers/history_buckets.h"
#include "model/layers/linear_attention.h"
#include "model/ops/softmax_attention.h"
#include "model/ops/vector_math.h"

namespace dinghy {

absl::StatusOr<HeadAttention> HeadAttention::Create(const Options& options) {
  HeadAttention out;
  out.options_ = options;
  if (options.linear || !options.onednn) return out;
  for (int64_t bucket = 0; bucket < BucketCount(options.max_length); ++bucket) {
    const int64_t rows = (bucket + 1) * kBucketRows;
    absl::StatusOr<std::unique_ptr<ops::Gemm>> score = ops::Gemm::Create({.m = kBucketRows,
                                                                          .n = rows,
                                                                          .k = options.head_width,
                                                                          .a_stride = out.query_width(),
                                                                          .b_stride = out.key_width(),
                                                                          .c_stride = rows,
                                                                          .transpose_b = true});
    if (!score.ok()) return score.status();
    out.score_.push_back(*std::move(score));
    absl::StatusOr<std::unique_ptr<ops::Gemm>> weigh = ops::Gemm::Create({.m = kBucketRows,
                                                                          .n = options.value_width,
                                                                          .k = rows,
                                                                          .a_stride = rows,
                                                                          .b_stride = out.values_width(),
                                                                          .c_stride = out.out_width()});
    if (!weigh.ok()) return weigh.status();
    out.weigh_.push_back(*std::move(weigh));
  }
  return out;
}

void HeadAttention::Run(float* q, float* k, const float* v, const HistoryRows& rows, float* out,
                        ops::Scratch& scratch) const {
  ops::Scratch::Scope scope(scratch);
  if (options_.linear) return RunLinear(q, k, v, rows.rows, out, scratch);
  if (options_.onednn) return RunOneDnn(q, k, v, rows, out, scratch);
  RunSoftmax(q, k, v, rows, 0, out, scratch);
}

void HeadAttention::RunNewest(float* q, const float* k, const float* v, const HistoryRows& rows, float* out,
                              ops::Scratch& scratch) const {
  ops::Scratch::Scope scope(scratch);
  RunSoftmax(q, k, v, rows, rows.rows - 1, out, scratch);
}

void HeadAttention::ScaleQueries(float* q, int64_t rows) const {
  ops::Scale(1.0f / std::sqrt(static_cast<float>(options_.head_width)), q, rows * query_width());
}

void HeadAttention::RunSoftmax(float* q, const float* k, const float* v, const HistoryRows& rows,
                               int64_t first, float* out, ops::Scratch& scratch) const {
  ScaleQueries(q, rows.rows - first);
  const int64_t columns = BucketRows(rows.rows);
  float* keys = scratch.Floats(key_width() * columns);
  float* weights = scratch.Floats(ops::kQueryBlock * columns);
  ops::Transpose(k, key_width(), rows.rows, key_width(), keys, columns);
  ops::SoftmaxAttentionArgs args{.rows = rows.rows,
                                 .first = first,
                                 .causal = options_.causal,
                                 .window = options_.window,
                                 .pads = rows.pads,
                                 .q_stride = query_width(),
                                 .values_stride = values_width(),
                                 .value_width = options_.value_width,
                                 .out_stride = out_width()};
  for (int64_t head = 0; head < options_.heads; ++head) {
    const int64_t shared = head / (options_.heads / options_.key_value_heads);
    args.q = q + head * options_.head_width;
    args.keys = {.data = keys + shared * options_.head_width * columns,
                 .width = options_.head_width,
                 .columns = columns};
    args.values = v + shared * options_.value_width;
    args.out = out + head * options_.value_width;
    ops::SoftmaxAttention(args, weights);
  }
}

void HeadAttention::RunOneDnn(float* q, const float* k, const float* v, const HistoryRows& rows, float* out,
                              ops::Scratch& scratch) const {
  ScaleQueries(q, rows.rows);
  float* weights = scratch.Floats(kBucketRows * BucketRows(rows.rows));
  for (int64_t head = 0; head < options_.heads; ++head) {
    const int64_t shared = head / (options_.heads / options_.key_value_heads);
    for (int64_t first = 0; first < rows.rows; first += kBucketRows) {
      const int64_t bucket = BucketIndex(options_.causal ? first + 1 : rows.rows);
      const int64_t columns = (bucket + 1) * kBucketRows;
      score_[bucket]->Run(q + first * query_width() + head * options_.head_width,
                          k + shared * options_.head_width, nullptr, weights, scratch);
      for (int64_t r = 0; r < kBucketRows; ++r) {
        float* row = weights + r * columns;
        if (first + r < rows.rows) {
          Weigh(first + r, rows, columns, row);
        } else {
          std::fill_n(row, columns, 0.0f);
        }
      }
      weigh_[bucket]->Run(weights, v + shared * options_.value_width, nullptr,
                          out + first * out_width() + head * options_.value_width, scratch);
    }
  }
}

void HeadAttention::Weigh(int64_t r, const HistoryRows& rows, int64_t columns, float* scores) const {
  const int64_t window = options_.window > 0 ? options_.window : rows.rows + rows.pads;
  const int64_t begin = std::max<int64_t>(0, r - window + 1);
  const int64_t end = options_.causal ? r + 1 : std::min(rows.rows, r + window);
  ops::Softmax(scores + begin, end - begin);
  std::fill(scores, scores + begin, 0.0f);
  std::fill(scores + end, scores + columns, 0.0f);
  // Real row r has the pads before it at distances r, r + 1, ...; the pad row is alike however many it sees.
  const int64_t pads = r > 0 ? std::clamp<int64_t>(window - r, 0, rows.pads) : 0;
  if (pads > 1) {
    ops::Scale(1.0f / (1.0f + static_cast<float>(pads - 1) * scores[0]), scores, end);
    scores[0] *= static_cast<float>(pads);
  }
}

// Running sums S = sum of f(k)^T v, [head width, value width], and z = sum of f(k): no weights are ever made.
// Where all of a query is negative, f takes its largest element as a shift, which the division takes out
// again; so do the keys, whose sums shrink when a larger one comes. Else they could all be 0 in float.
void HeadAttention::RunLinear(float* q, float* k, const float* v, int64_t rows, float* out,
                              ops::Scratch& scratch) const {
  const int64_t d = options_.head_width;
  const int64_t width = options_.value_width;
  const int64_t group = options_.heads / options_.key_value_heads;
  float* sums = scratch.Floats(d * width);
  float* z = scratch.Floats(d);
  float* raw_query = scratch.Floats(d);
  float* raw_keys = scratch.Floats(rows * key_width());
  std::copy_n(k, rows * key_width(), raw_keys);
  for (int64_t shared = 0; shared < options_.key_value_heads; ++shared) {
    std::fill_n(sums, d * width, 0.0f);
    std::fill_n(z, d, 0.0f);
    float shift = 0;
    const auto add = [&](int64_t r) {
      float* key = k + r * key_width() + shared * d;
      const float* value = v + r * values_width() + shared * width;
      const float largest = std::min(ops::Largest(key, d), 0.0f);
      if (r > 0 && largest > shift) {
        float factor = shift;
        ops::ShiftedEluPlusOne(largest, &factor, 1);
        ops::Scale(factor, sums, d * width);
        ops::Scale(factor, z, d);
      }
      shift = r > 0 ? std::max(shift, largest) : largest;
      ops::ShiftedEluPlusOne(shift, key, d);
      for (int64_t i = 0; i < d; ++i) ops::ScaleAdd(value, key[i], sums + i * width, sums + i * width, width);
      ops::AddTo(key, z, d);
    };
    if (!options_.causal) {
      for (int64_t r = 0; r < rows; ++r) add(r);
    }
    for (int64_t r = 0; r < rows; ++r) {
      if (options_.causal) add(r);
      for (int64_t head = shared * group; head < (shared + 1) * group; ++head) {
        float* query = q + r * query_width() + head * d;
        float* attended = out + r * out_width() + head * width;
        std::copy_n(query, d, raw_query);
        ops::ShiftedEluPlusOne(std::min(ops::Largest(query, d), 0.0f), query, d);
        ops::WeightedSumRows(sums, width, query, d, width, attended);
        const float sum = ops::Dot(query, z, d);
        if (sum >= kLeastLinearSum) {
          ops::Scale(1.0f / sum, attended, width);
        } else {
          const int64_t seen = options_.causal ? r + 1 : rows;
          PoolLinearByLogarithms(raw_query, d, {raw_keys + shared * d, seen, key_width()},
                                 {v + shared * width, seen, values_width()}, width, attended, nullptr);
        }
      }
    }
  }
}

}  // namespace dinghy
