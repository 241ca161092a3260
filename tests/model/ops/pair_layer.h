// A layer of the pair kernels' tests, and its activation as the definition says.
#ifndef DINGHY_TESTS_MODEL_OPS_PAIR_LAYER_H_
#define DINGHY_TESTS_MODEL_OPS_PAIR_LAYER_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "model/ops/pair_mlp.h"

namespace dinghy::ops {

struct PairLayer {
  int64_t in, out;
  PairActivation activation;
  std::vector<float> weight, bias, alpha, scale, shift;  // weight [out, in], the others [out]
};

// The activation of output j, by its definition.
inline double Apply(const PairLayer& layer, int64_t j, double x) {
  const auto sigmoid = [](double v) { return 1 / (1 + std::exp(-v)); };
  switch (layer.activation) {
    case PairActivation::kLinear:
      return x;
    case PairActivation::kRelu:
      return std::max(0.0, x);
    case PairActivation::kSigmoid:
      return sigmoid(x);
    case PairActivation::kTanh:
      return std::tanh(x);
    case PairActivation::kSilu:
      return x * sigmoid(x);
    case PairActivation::kPrelu:
      return x > 0 ? x : layer.alpha[j] * x;
    case PairActivation::kDice: {
      const double p = sigmoid(x * layer.scale[j] + layer.shift[j]);
      return p * x + layer.alpha[j] * (1 - p) * x;
    }
  }
  return x;
}

}  // namespace dinghy::ops

#endif  // DINGHY_TESTS_MODEL_OPS_PAIR_LAYER_H_
