// Positions of a history's behaviors, added to their rows: learned, or sinusoidal (Vaswani et al., 2017).
//
//   ASSIGN_OR_RETURN(Positions positions, Positions::Create(message, sequence, width, scope));
//   positions.ScaleAndAdd(message.input_scale(), x, {.rows = length});
//
// Const after Create, so thread-safe.
#ifndef DINGHY_MODEL_LAYERS_POSITIONS_H_
#define DINGHY_MODEL_LAYERS_POSITIONS_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "model/layers/head_attention.h"
#include "model/layers/layer_scope.h"
#include "proto/bundle.pb.h"

namespace dinghy {

class Positions {
 public:
  // Those of `attention` over `sequence`, an index; none where it has none.
  static absl::StatusOr<Positions> Create(const v1::SelfAttention& attention, int sequence, int64_t width,
                                          const LayerScope& scope);

  // x = x * scale + position, row by row; x [rows.rows, width], packed. `pads` is how many pad behaviors the
  // trainer has before the oldest, whether or not rows has a pad row.
  void ScaleAndAdd(float scale, float* x, const HistoryRows& rows, int64_t pads) const;

  int64_t parameters() const { return parameters_; }

 private:
  int64_t width_ = 0;
  int64_t parameters_ = 0;
  v1::PositionOrigin origin_ = v1::POSITION_ORIGIN_UNSPECIFIED;
  int64_t first_row_ = 0;
  bool left_ = false;             // pads stand before the oldest
  const float* table_ = nullptr;  // [rows, width], a tensor's; null: `computed_`, or no positions
  std::vector<float> computed_;   // [max_length, width], sinusoidal
  std::vector<float> pad_row_;    // [width]
};

}  // namespace dinghy

#endif  // DINGHY_MODEL_LAYERS_POSITIONS_H_
