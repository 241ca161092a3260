#include "model/layers/split_linear.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace dinghy {
namespace {

// The columns of `weights` that belong to the pieces whose `broadcast` is `user`, packed: [out, their width].
std::vector<float> PickColumns(const Inputs& inputs, bool user, const DenseWeights& weights) {
  std::vector<float> out;
  for (int64_t row = 0; row < weights.out; ++row) {
    for (const Inputs::Piece& piece : inputs.pieces()) {
      if (piece.broadcast != user) continue;
      const float* begin = weights.weight.data() + row * weights.in + piece.offset;
      out.insert(out.end(), begin, begin + piece.width);
    }
  }
  return out;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ops::RowLinear>> CreateRowLinear(v1::Level level, const DenseWeights& weights,
                                                                LayerScope& scope) {
  absl::StatusOr<std::unique_ptr<ops::RowLinear>> linear =
      ops::RowLinear::Create({.in = weights.in,
                              .out = weights.out,
                              .onednn = !scope.options().fused_kernels,
                              .rows = level == v1::USER ? 1 : 0},
                             weights.weight.data(), weights.in, weights.bias_or_null());
  if (linear.ok()) scope.AddChoice((*linear)->Choice());
  return linear;
}

absl::StatusOr<SplitLinear> SplitLinear::Create(const Inputs& inputs, const DenseWeights& weights,
                                                LayerScope& scope) {
  SplitLinear out;
  out.out_ = weights.out;
  out.user_inputs_ = inputs.UserPart();
  out.row_inputs_ = inputs.RowPart();
  const bool onednn = !scope.options().fused_kernels;
  if (const int64_t width = out.user_inputs_.width(); width > 0) {
    // At user level no piece is broadcast, and all of the weight is the user's.
    const std::vector<float> columns = PickColumns(inputs, inputs.level() != v1::USER, weights);
    absl::StatusOr<std::unique_ptr<ops::RowLinear>> user =
        ops::RowLinear::Create({.in = width, .out = weights.out, .onednn = onednn, .rows = 1}, columns.data(),
                               width, weights.bias_or_null());
    if (!user.ok()) return user.status();
    scope.AddChoice((*user)->Choice());
    out.user_ = *std::move(user);
  }
  if (const int64_t width = out.row_inputs_.width(); width > 0) {
    const std::vector<float> columns = PickColumns(inputs, false, weights);
    const bool with_user = out.user_ != nullptr;
    absl::StatusOr<std::unique_ptr<ops::RowLinear>> rows =
        ops::RowLinear::Create({.in = width, .out = weights.out, .accumulate = with_user, .onednn = onednn},
                               columns.data(), width, with_user ? nullptr : weights.bias_or_null());
    if (!rows.ok()) return rows.status();
    scope.AddChoice((*rows)->Choice());
    out.rows_ = *std::move(rows);
  }
  return out;
}

void SplitLinear::Prepare(const RunContext& context, UserPart& part) const {
  if (user_ == nullptr) return;
  float* bias = context.scratch.Floats(out_);
  part.bias = {bias, 1, out_};
  ops::Scratch::Scope scope(context.scratch);
  const Value x = user_inputs_.Gather(context);
  user_->Run(x.data, x.stride, 1, bias, out_, context.scratch);
}

float* SplitLinear::Run(const RunContext& context) const {
  const int64_t rows = rows_ != nullptr ? row_inputs_.Rows(context) : 1;
  float* y = context.scratch.Floats(rows * out_);
  if (rows == 0) return y;
  if (user_ != nullptr) {
    for (int64_t r = 0; r < rows; ++r) std::copy_n(context.user->bias.data, out_, y + r * out_);
  }
  if (rows_ != nullptr) {
    ops::Scratch::Scope scope(context.scratch);
    const Value x = row_inputs_.Gather(context);
    rows_->Run(x.data, x.stride, rows, y, out_, context.scratch);
  }
  return y;
}

void SplitLinear::AddCost(LayerCost& cost) const {
  cost.AddPerRow(v1::USER, 2.0 * user_inputs_.width() * out_);
  cost.AddPerRow(row_inputs_.level(), 2.0 * row_inputs_.width() * out_);
}

}  // namespace dinghy
