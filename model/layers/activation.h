// Activation functions, in place over n floats. Thread-safe.
#ifndef DINGHY_MODEL_LAYERS_ACTIVATION_H_
#define DINGHY_MODEL_LAYERS_ACTIVATION_H_

#include <cstdint>

#include "proto/bundle.pb.h"

namespace dinghy {

// `activation` must have passed LayerScope::CheckActivation.
void ApplyActivation(v1::Activation activation, float* x, int64_t n);

}  // namespace dinghy

#endif  // DINGHY_MODEL_LAYERS_ACTIVATION_H_
