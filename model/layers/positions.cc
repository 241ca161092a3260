#include "model/layers/positions.h"

#include <cmath>

#include "model/ops/vector_math.h"

namespace dinghy {
namespace {

std::vector<float> Sinusoids(const v1::SinusoidalPositions& message, int64_t rows, int64_t width) {
  std::vector<float> out(rows * width);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t pair = 0; pair < width / 2; ++pair) {
      const double power = 2.0 * static_cast<double>(pair) / static_cast<double>(width);
      const double angle = (message.first() + static_cast<double>(row)) / std::pow(message.base(), power);
      const bool halves = message.layout() == v1::SinusoidalPositions::HALVES;
      out[row * width + (halves ? pair : 2 * pair)] = static_cast<float>(std::sin(angle));
      out[row * width + (halves ? width / 2 + pair : 2 * pair + 1)] = static_cast<float>(std::cos(angle));
    }
  }
  return out;
}

absl::Status CheckSinusoidal(const v1::SinusoidalPositions& message, int64_t width, const LayerScope& scope) {
  if (message.origin() != v1::FROM_OLDEST && message.origin() != v1::FROM_NEWEST) {
    return scope.Error("sinusoidal.origin: expected FROM_OLDEST or FROM_NEWEST, got ",
                       message.origin() == v1::FROM_SLOT ? "FROM_SLOT" : "nothing");
  }
  if (!message.has_first() || !std::isfinite(message.first())) {
    return scope.Error("sinusoidal.first: expected a finite number, got ",
                       message.has_first() ? absl::StrCat(message.first()) : "nothing");
  }
  if (!message.has_base() || !(message.base() > 1) || !std::isfinite(message.base())) {
    return scope.Error("sinusoidal.base: expected a number above 1, got ",
                       message.has_base() ? absl::StrCat(message.base()) : "nothing");
  }
  if (message.layout() != v1::SinusoidalPositions::INTERLEAVED &&
      message.layout() != v1::SinusoidalPositions::HALVES) {
    return scope.Error("sinusoidal.layout: expected INTERLEAVED or HALVES, got nothing");
  }
  if (width % 2 != 0) return scope.Error("sinusoidal: expected an even width, got ", width);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Positions> Positions::Create(const v1::SelfAttention& attention, int sequence, int64_t width,
                                            const LayerScope& scope) {
  Positions out;
  out.width_ = width;
  const absl::StatusOr<int64_t> max_length = scope.FindMaxLength(sequence);
  if (!max_length.ok()) return max_length.status();
  const absl::StatusOr<v1::Sequence::Pad> pad = scope.FindPad(sequence);
  if (!pad.ok()) return pad.status();
  const bool attended = attention.pads() == v1::SelfAttention::ATTENDED;
  out.left_ = *pad == v1::Sequence::LEFT;
  if (attention.has_sinusoidal()) {
    const v1::SinusoidalPositions& message = attention.sinusoidal();
    if (absl::Status status = CheckSinusoidal(message, width, scope); !status.ok()) return status;
    if (attended) {
      return scope.Error(
          "sinusoidal: expected learned positions with a pad_row where pads are ATTENDED, got these");
    }
    out.origin_ = message.origin();
    out.computed_ = Sinusoids(message, *max_length, width);
    return out;
  }
  if (!attention.has_positions()) return out;

  const v1::LearnedPositions& positions = attention.positions();
  out.origin_ = positions.origin();
  if (out.origin_ != v1::FROM_OLDEST && out.origin_ != v1::FROM_NEWEST && out.origin_ != v1::FROM_SLOT) {
    return scope.Error("positions.origin: expected FROM_OLDEST, FROM_NEWEST or FROM_SLOT, got nothing");
  }
  const bool by_slot = out.origin_ == v1::FROM_SLOT;
  if (by_slot && *pad == v1::Sequence::NONE) {
    return scope.Error("positions.origin: expected FROM_OLDEST or FROM_NEWEST, since ",
                       scope.Where(v1::SEQUENCE, sequence), " is not padded, got FROM_SLOT");
  }
  if (by_slot && !positions.has_first_row()) {
    return scope.Error("positions.first_row: expected a row for FROM_SLOT, got nothing");
  }
  if (!by_slot && positions.first_row() != 0) {
    return scope.Error("positions.first_row: expected none or 0 but for FROM_SLOT, got ",
                       positions.first_row());
  }
  out.first_row_ = positions.first_row();
  const absl::StatusOr<const Tensor*> tensor =
      scope.FindTensor("positions.tensor", positions.tensor(), {-1, width});
  if (!tensor.ok()) return tensor.status();
  const int64_t rows = (*tensor)->shape[0];
  if (rows < out.first_row_ + *max_length) {
    return scope.Error(
        "positions.tensor \"", positions.tensor(), "\": expected at least ", out.first_row_ + *max_length,
        " rows, ",
        out.first_row_ > 0 ? "first_row and the sequence's max_length" : "the sequence's max_length",
        ", got ", rows);
  }
  out.table_ = (*tensor)->data.get();
  out.parameters_ = (*tensor)->size;
  if (attended && !positions.has_pad_row()) {
    return scope.Error("positions.pad_row: expected a row, since pads are ATTENDED, got nothing");
  }
  if (positions.has_pad_row()) {
    if (positions.pad_row() >= rows) {
      return scope.Error("positions.pad_row: expected a row of the table, which has ", rows, ", got ",
                         positions.pad_row());
    }
    const float* row = out.table_ + positions.pad_row() * width;
    out.pad_row_.assign(row, row + width);
  }
  return out;
}

void Positions::ScaleAndAdd(float scale, float* x, const HistoryRows& rows, int64_t pads) const {
  const float* table = table_ != nullptr ? table_ : computed_.data();
  if (table == nullptr) {
    if (scale != 1) ops::Scale(scale, x, rows.rows * width_);
    return;
  }
  const int64_t first = rows.pads > 0 ? 1 : 0;
  if (first > 0) {
    // Where pad behaviors have no position of their own, their rows are set to zero next.
    if (!pad_row_.empty()) ops::ScaleAdd(x, scale, pad_row_.data(), x, width_);
  }
  for (int64_t r = first; r < rows.rows; ++r) {
    const int64_t from_oldest = r - first;
    int64_t row = from_oldest;
    if (origin_ == v1::FROM_NEWEST) row = rows.rows - 1 - r;
    if (origin_ == v1::FROM_SLOT) row = first_row_ + from_oldest + (left_ ? pads : 0);
    ops::ScaleAdd(x + r * width_, scale, table + row * width_, x + r * width_, width_);
  }
}

}  // namespace dinghy
