#include "model/layers/inputs.h"

#include <algorithm>
#include <cstring>

#include "model/layers/pad_row.h"

namespace dinghy {

absl::Status MixLevels(const LayerScope& scope, const std::string& a_name, v1::Level& a_level,
                       int& a_sequence, const std::string& b_name, v1::Level b_level, int b_sequence) {
  if (b_level == v1::USER) return absl::OkStatus();
  if (a_level == v1::USER) {
    a_level = b_level;
    a_sequence = b_sequence;
    return absl::OkStatus();
  }
  if (a_level == b_level && a_sequence == b_sequence) return absl::OkStatus();
  return scope.Error("expected inputs of one level beside the user's, got \"", a_name, "\" (",
                     scope.Where(a_level, a_sequence), ") and \"", b_name, "\" (",
                     scope.Where(b_level, b_sequence), "); only target attention takes these together");
}

absl::StatusOr<Inputs> Inputs::Create(absl::string_view field,
                                      const google::protobuf::RepeatedPtrField<std::string>& names,
                                      const LayerScope& scope) {
  Inputs out;
  if (names.empty()) return scope.Error(field, ": expected at least one input, got none");
  std::string highest;
  for (const std::string& name : names) {
    const int index = scope.FindValue(name);
    if (index < 0) {
      return scope.Error(field, ": expected a feature or an earlier layer, got \"", name, "\"");
    }
    const ValueInfo& info = scope.values()[index];
    if (absl::Status status =
            MixLevels(scope, highest, out.level_, out.sequence_, name, info.level, info.sequence);
        !status.ok()) {
      return status;
    }
    if (out.level_ != v1::USER && highest.empty()) highest = name;
    out.Add({.value = index, .width = info.width, .broadcast = info.level == v1::USER});
    if (out.width_ > kMaxValueWidth) {
      return scope.Error(field, ": expected inputs of at most ", kMaxValueWidth, " columns, got more");
    }
  }
  if (out.level_ == v1::USER) {
    for (Piece& piece : out.pieces_) piece.broadcast = false;
  }
  return out;
}

void Inputs::Add(Piece piece) {
  piece.offset = width_;
  width_ += piece.width;
  pieces_.push_back(piece);
}

Inputs Inputs::UserPart() const {
  if (level_ == v1::USER) return *this;
  Inputs out;
  for (Piece piece : pieces_) {
    if (!piece.broadcast) continue;
    piece.broadcast = false;
    out.Add(piece);
  }
  return out;
}

Inputs Inputs::RowPart() const {
  Inputs out;
  out.level_ = level_;
  out.sequence_ = sequence_;
  if (level_ == v1::USER) return out;
  for (const Piece& piece : pieces_) {
    if (!piece.broadcast) out.Add(piece);
  }
  return out;
}

absl::StatusOr<std::vector<float>> Inputs::PadRow(absl::string_view field, const LayerScope& scope) const {
  std::vector<float> out;
  for (const Piece& piece : pieces_) {
    const std::vector<float>* row = scope.PadRow(piece.value);
    if (row == nullptr) {
      return scope.Error(field, ": expected inputs that pad behaviors have, got \"",
                         scope.values()[piece.value].name, "\", ", WhyNoPadRow(piece.value, scope));
    }
    out.insert(out.end(), row->begin(), row->end());
  }
  return out;
}

absl::StatusOr<std::vector<float>> Inputs::EmptyRow(absl::string_view field, v1::Empty empty,
                                                    const LayerScope& scope) const {
  if (empty == v1::PAD_VALUE) return PadRow(field, scope);
  return std::vector<float>(width_, 0.0f);
}

bool Inputs::Adjacent(const RunContext& context) const {
  for (size_t i = 0; i < pieces_.size(); ++i) {
    if (pieces_[i].broadcast) return false;
    if (i == 0) continue;
    const Value& before = context.values[pieces_[i - 1].value];
    const Value& value = context.values[pieces_[i].value];
    if (value.data != before.data + pieces_[i - 1].width || value.stride != before.stride) return false;
  }
  return true;
}

Value Inputs::Gather(const RunContext& context) const {
  const int64_t rows = Rows(context);
  if (Adjacent(context)) {
    const Value& first = context.values[pieces_[0].value];
    return {first.data, rows, first.stride};
  }
  float* data = context.scratch.Floats(rows * width_);
  CopyTo(context, data);
  return {data, rows, width_};
}

Value Inputs::GatherPacked(const RunContext& context) const {
  const Value gathered = Gather(context);
  if (gathered.stride == width_) return gathered;
  float* data = context.scratch.Floats(gathered.rows * width_);
  CopyTo(context, data);
  return {data, gathered.rows, width_};
}

void Inputs::CopyTo(const RunContext& context, float* dst) const {
  const int64_t rows = Rows(context);
  for (const Piece& piece : pieces_) {
    const Value& value = context.values[piece.value];
    const int64_t stride = piece.broadcast ? 0 : value.stride;
    for (int64_t r = 0; r < rows; ++r) {
      std::memcpy(dst + r * width_ + piece.offset, value.data + r * stride, sizeof(float) * piece.width);
    }
  }
}

const float* Inputs::Row(const RunContext& context, int64_t row, float* buffer) const {
  if (pieces_.size() == 1) {
    const Value& value = context.values[pieces_[0].value];
    return value.data + row * value.stride;
  }
  float* dst = buffer;
  for (const Piece& piece : pieces_) {
    const Value& value = context.values[piece.value];
    std::memcpy(dst, value.data + (piece.broadcast ? 0 : row * value.stride), sizeof(float) * piece.width);
    dst += piece.width;
  }
  return buffer;
}

}  // namespace dinghy
