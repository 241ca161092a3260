// The layers as their definitions say, in double precision, slow and obvious: inputs are concatenated, every
// pair of candidate and behavior is written out. What the engine is compared with.
//
//   Row y = Dense({.weight = w, .bias = b, .activation = v1::RELU}, x);
//
// Thread-safe.
#ifndef DINGHY_TESTS_TESTING_REFERENCE_REFERENCE_LAYERS_H_
#define DINGHY_TESTS_TESTING_REFERENCE_REFERENCE_LAYERS_H_

#include <vector>

#include "proto/bundle.pb.h"
#include "tests/testing/reference/matrix.h"

namespace dinghy::reference {

struct BatchNorm {
  Row mean, variance;
  Row weight, bias;  // or empty
  double epsilon = 0;
};
Row Normalize(const BatchNorm& norm, Row x);

struct Activation {
  v1::Activation kind = v1::LINEAR;
  double slope = 0;
  Row alpha;                    // as wide as the row, or one for all
  std::vector<BatchNorm> norm;  // one, or none
};
Row Activate(const Activation& activation, Row x);
double Sigmoid(double x);

// A calibrated probability.
double Calibrate(const v1::Output& output, double p);

struct DenseLayer {
  Matrix weight;                     // [out][in]
  Row bias;                          // [out], or empty
  std::vector<BatchNorm> norm = {};  // one, or none
  Activation activation = {};
};
Row Dense(const DenseLayer& layer, const Row& x);
Row Mlp(const std::vector<DenseLayer>& layers, Row x);

struct Norm {
  Row weight;
  Row bias;
  double epsilon = 0;
};
Row LayerNorm(const Norm& norm, const Row& x);

void Softmax(Row& x);

// Sum of weight * value over the behaviors; `width` zeros if there are none.
Row WeightedSum(const Row& weights, const Matrix& values, int width);

}  // namespace dinghy::reference

#endif  // DINGHY_TESTS_TESTING_REFERENCE_REFERENCE_LAYERS_H_
