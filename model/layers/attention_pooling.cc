#include "model/layers/attention_pooling.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "model/ops/vector_math.h"

namespace dinghy {

absl::StatusOr<AttentionPooling> AttentionPooling::Create(const v1::TargetAttention& message,
                                                          const Inputs& values, const AttentionHeads& heads,
                                                          int64_t max_length, const LayerScope& scope) {
  AttentionPooling out;
  out.normalization_ = message.normalization();
  if (out.normalization_ == v1::TargetAttention::NORMALIZATION_UNSPECIFIED ||
      !v1::TargetAttention::Normalization_IsValid(out.normalization_)) {
    return scope.Error("normalization: expected NONE, SOFTMAX, SIGMOID_EACH or SILU_MEAN, got nothing");
  }
  if (message.empty() != v1::ZEROS && message.empty() != v1::PAD_VALUE) {
    return scope.Error("empty: expected ZEROS or PAD_VALUE, got nothing");
  }
  if (!message.has_scale()) return scope.Error("scale: expected a number, got nothing");
  out.scale_ = message.scale();
  out.max_length_ = max_length;
  out.group_ = heads.group();
  out.value_width_ = values.width() / heads.key_value_heads;
  if (message.has_windows()) {
    if (absl::Status status = out.SetWindows(message.windows(), scope); !status.ok()) return status;
    if (out.normalization_ != v1::TargetAttention::NONE || message.has_linear()) {
      return scope.Error(
          "windows: expected normalization NONE and a score for each behavior, got ",
          message.has_linear() ? "linear" : v1::TargetAttention::Normalization_Name(out.normalization_));
    }
    if (message.empty() == v1::PAD_VALUE) {
      return scope.Error("empty: expected ZEROS, since there are windows, got PAD_VALUE");
    }
  }
  if (absl::Status status = out.SetMask(message, values, scope); !status.ok()) return status;

  const absl::StatusOr<std::vector<float>> empty = values.EmptyRow("values", message.empty(), scope);
  if (!empty.ok()) return empty.status();
  for (int64_t head = 0; head < heads.heads; ++head) {
    const auto begin = empty->begin() + head / out.group_ * out.value_width_;
    for (int64_t w = 0; w < out.windows(); ++w) {
      out.empty_.insert(out.empty_.end(), begin, begin + out.value_width_);
    }
  }
  return out;
}

absl::Status AttentionPooling::SetWindows(const v1::Windows& windows, const LayerScope& scope) {
  if (windows.sizes().empty()) return scope.Error("windows.sizes: expected at least one, got none");
  for (int i = 0; i < windows.sizes_size(); ++i) {
    if (windows.sizes(i) < 1) return scope.Error("windows.sizes[", i, "]: expected at least 1, got 0");
    windows_.push_back(windows.sizes(i));
  }
  if (windows.origin() != v1::FROM_OLDEST && windows.origin() != v1::FROM_NEWEST) {
    return scope.Error("windows.origin: expected FROM_OLDEST or FROM_NEWEST, got ",
                       windows.origin() == v1::POSITION_ORIGIN_UNSPECIFIED
                           ? "nothing"
                           : v1::PositionOrigin_Name(windows.origin()));
  }
  from_newest_ = windows.origin() == v1::FROM_NEWEST;
  return absl::OkStatus();
}

absl::Status AttentionPooling::SetMask(const v1::TargetAttention& message, const Inputs& values,
                                       const LayerScope& scope) {
  if (!message.has_mask()) return absl::OkStatus();
  if (normalization_ != v1::TargetAttention::SOFTMAX) {
    return scope.Error("mask: expected none beside normalization ",
                       v1::TargetAttention::Normalization_Name(normalization_), ", got ", message.mask());
  }
  const absl::StatusOr<v1::Sequence::Pad> pad = scope.FindPad(values.sequence());
  if (!pad.ok()) return pad.status();
  if (*pad == v1::Sequence::NONE) {
    return scope.Error("mask: expected pad LEFT or RIGHT of ", scope.Where(v1::SEQUENCE, values.sequence()),
                       ", got NONE");
  }
  absl::StatusOr<std::vector<float>> row = values.PadRow("values", scope);
  if (!row.ok()) return row.status();
  masked_ = true;
  mask_ = message.mask();
  pad_ = *std::move(row);
  return absl::OkStatus();
}

void AttentionPooling::Run(int64_t head, int64_t length, float* scores, const Value& values,
                           float* pooled) const {
  const int64_t column = head / group_ * value_width_;
  const float* rows = values.data + column;
  if (scale_ != 1) ops::Scale(scale_, scores, length);
  switch (normalization_) {
    case v1::TargetAttention::SOFTMAX:
      if (masked_ && length < max_length_) {
        return PoolMasked(length, scores, rows, values.stride, pad_.data() + column, pooled);
      }
      ops::Softmax(scores, length);
      break;
    case v1::TargetAttention::SIGMOID_EACH:
      ops::Sigmoid(scores, length);
      break;
    case v1::TargetAttention::SILU_MEAN:
      ops::Silu(scores, length);
      ops::Scale(1.0f / static_cast<float>(length), scores, length);
      break;
    default:
      break;
  }
  if (!windows_.empty()) return PoolWindows(length, scores, rows, values.stride, pooled);
  ops::WeightedSumRows(rows, values.stride, scores, length, value_width_, pooled);
}

// All pads are alike: one more score stands for them, with the logarithm of their number added.
void AttentionPooling::PoolMasked(int64_t length, float* scores, const float* values, int64_t stride,
                                  const float* pad, float* pooled) const {
  scores[length] = mask_ + std::log(static_cast<float>(max_length_ - length));
  ops::Softmax(scores, length + 1);
  ops::WeightedSumRows(values, stride, scores, length, value_width_, pooled);
  if (scores[length] > 0) ops::ScaleAdd(pad, scores[length], pooled, pooled, value_width_);
}

void AttentionPooling::PoolWindows(int64_t length, float* scores, const float* values, int64_t stride,
                                   float* pooled) const {
  int64_t used = 0;
  for (const int64_t size : windows_) {
    const int64_t rows = std::min(size, length - used);
    const int64_t first = from_newest_ ? length - used - rows : used;
    if (rows > 1) ops::Scale(1.0f / static_cast<float>(rows), scores + first, rows);
    ops::WeightedSumRows(values + first * stride, stride, scores + first, rows, value_width_, pooled);
    pooled += value_width_;
    used += rows;
  }
  // No weight for what lies behind the last window.
  std::fill_n(scores + (from_newest_ ? 0 : used), length - used, 0.0f);
}

}  // namespace dinghy
