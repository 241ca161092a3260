// An input list: earlier values, concatenated in that order, though they are never copied into one unless a
// row has to be seen as a whole.
//
//   ASSIGN_OR_RETURN(Inputs inputs, Inputs::Create("inputs", layer.inputs(), scope));
//   Value x = inputs.Gather(context);            // [rows, inputs.width()]
//
// Const after Create, so thread-safe.
#ifndef DINGHY_MODEL_LAYERS_INPUTS_H_
#define DINGHY_MODEL_LAYERS_INPUTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "google/protobuf/repeated_ptr_field.h"
#include "model/layers/layer.h"
#include "model/layers/layer_scope.h"

namespace dinghy {

class Inputs {
 public:
  struct Piece {
    int value = 0;  // index
    int width = 0;
    int offset = 0;          // of its first column in the concatenation
    bool broadcast = false;  // a user-level piece among rows of another level
  };

  Inputs() = default;

  // `field` is the manifest's field that holds the names. Errors: no names, an unknown one, or levels that do
  // not mix.
  static absl::StatusOr<Inputs> Create(absl::string_view field,
                                       const google::protobuf::RepeatedPtrField<std::string>& names,
                                       const LayerScope& scope);

  v1::Level level() const { return level_; }
  int sequence() const { return sequence_; }
  int width() const { return width_; }
  absl::Span<const Piece> pieces() const { return pieces_; }
  int64_t Rows(const RunContext& context) const { return context.Rows(level_, sequence_); }

  // The pieces of user level, or the others, as lists of their own. May be empty, with width 0; nothing else
  // may be asked of an empty list.
  Inputs UserPart() const;
  Inputs RowPart() const;

  // What a pad behavior has in these columns, [width]; `field` as in Create. Error: one of the inputs has no
  // such value.
  absl::StatusOr<std::vector<float>> PadRow(absl::string_view field, const LayerScope& scope) const;

  // What an empty history of these columns pools to, [width]: zeros, where `empty` says so or nothing, or
  // PadRow.
  absl::StatusOr<std::vector<float>> EmptyRow(absl::string_view field, v1::Empty empty,
                                              const LayerScope& scope) const;

  // All rows, [rows, width]: the values themselves where they lie side by side, else a packed copy.
  Value Gather(const RunContext& context) const;
  // Copies the rows to dst [rows, width], packed.
  void CopyTo(const RunContext& context, float* dst) const;
  // All rows, packed: the values themselves where they are, else a copy.
  Value GatherPacked(const RunContext& context) const;
  // Row `row`; in `buffer` [width] if it has to be put together.
  const float* Row(const RunContext& context, int64_t row, float* buffer) const;

 private:
  void Add(Piece piece);
  // Whether the pieces lie side by side in memory, in rows of one stride.
  bool Adjacent(const RunContext& context) const;

  v1::Level level_ = v1::USER;
  int sequence_ = -1;
  int width_ = 0;
  std::vector<Piece> pieces_;
};

// Checks that values at `a` and `b` may meet in one layer, and makes `a` the level of the result: the highest
// of both, where user is below candidate and sequence.
absl::Status MixLevels(const LayerScope& scope, const std::string& a_name, v1::Level& a_level,
                       int& a_sequence, const std::string& b_name, v1::Level b_level, int b_sequence);

}  // namespace dinghy

#endif  // DINGHY_MODEL_LAYERS_INPUTS_H_
