// An activation function with its parameters, ready to be applied.
//
//   absl::StatusOr<Activation> activation =
//       scope.FindActivation("activation", dense.activation(), "parameters", dense.parameters(), width);
//   activation->Apply(x, rows);  // x [rows, width], packed, in place
//
// Const after it is made, so thread-safe.
#ifndef DINGHY_MODEL_LAYERS_ACTIVATION_H_
#define DINGHY_MODEL_LAYERS_ACTIVATION_H_

#include <cstdint>
#include <vector>

#include "proto/bundle.pb.h"

namespace dinghy {

// Made by LayerScope::FindActivation; linear by default. What a kind does not need stays empty.
struct Activation {
  v1::Activation kind = v1::LINEAR;
  int64_t width = 0;
  float slope = 0;           // LEAKY_RELU
  std::vector<float> alpha;  // PRELU, DICE: [width]
  // DICE: norm(x) = x * norm_scale + norm_shift, [width] each.
  std::vector<float> norm_scale;
  std::vector<float> norm_shift;

  // In place over x [rows, width], packed.
  void Apply(float* x, int64_t rows) const;

  int64_t parameters() const {
    return static_cast<int64_t>(alpha.size() + norm_scale.size() + norm_shift.size());
  }
};

}  // namespace dinghy

#endif  // DINGHY_MODEL_LAYERS_ACTIVATION_H_
