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

double Activate(v1::Activation activation, double x);

struct DenseLayer {
  Matrix weight;  // [out][in]
  Row bias;       // [out], or empty
  v1::Activation activation = v1::LINEAR;
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

struct SelfAttentionBlock {
  Norm attention_norm;
  DenseLayer query, key, value, out;
  Norm ffn_norm;
  std::vector<DenseLayer> ffn;
};
struct SelfAttentionOptions {
  int heads = 1;
  bool causal = false;
  v1::SelfAttention::Wiring wiring = v1::SelfAttention::PRE_NORM;
};
// `x`: one row a behavior, oldest first.
Matrix RunSelfAttentionBlock(const SelfAttentionBlock& block, const SelfAttentionOptions& options,
                             const Matrix& x);

struct TargetAttention {
  std::vector<v1::DinScore::Part> parts;
  std::vector<DenseLayer> layers;
  bool softmax = false;
  double scale = 1;
};
// The weights of one query over the keys, after normalisation.
Row AttentionWeights(const TargetAttention& attention, const Row& query, const Matrix& keys);
// Sum of weight * value over the behaviors; `width` zeros if there are none.
Row WeightedSum(const Row& weights, const Matrix& values, int width);

}  // namespace dinghy::reference

#endif  // DINGHY_TESTS_TESTING_REFERENCE_REFERENCE_LAYERS_H_
