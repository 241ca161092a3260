// Target attention as its definitions say, in double precision: every pair of query and behavior by itself,
// heads and windows cut out, keys and values of latents built, pad behaviors put beside the real ones.
//
//   Pooled pooled = Attend(attention, query, keys, values, width);
//
// Thread-safe.
#ifndef DINGHY_TESTS_TESTING_REFERENCE_REFERENCE_TARGET_ATTENTION_H_
#define DINGHY_TESTS_TESTING_REFERENCE_REFERENCE_TARGET_ATTENTION_H_

#include <vector>

#include "proto/bundle.pb.h"
#include "tests/testing/reference/matrix.h"
#include "tests/testing/reference/reference_layers.h"

namespace dinghy::reference {

struct ScoreFunction {
  enum Kind { kDin, kAdditive, kDot, kBilinear, kLinear };
  Kind kind = kDot;
  double scale = 1;
  // kDin
  std::vector<v1::DinScore::Part> parts = {};
  std::vector<DenseLayer> layers = {};
  int query_zeros = 0;
  // kAdditive
  Matrix query_weight = {}, key_weight = {};
  Row bias = {};  // or empty
  Row vector = {};
  v1::Activation activation = v1::TANH;
  // kBilinear
  Matrix weight = {};
};

struct TargetAttention {
  ScoreFunction score;
  v1::TargetAttention::Normalization normalization = v1::TargetAttention::NONE;
  int heads = 1;
  int key_value_heads = 1;
  Matrix key_up = {}, value_up = {};  // multi-head latent attention; empty: none
  std::vector<int> windows = {};      // none: the whole history
  bool windows_from_newest = false;
  Row masks = {};      // the score of each pad behavior that takes part
  Row pad_value = {};  // what pads have as value; needed by masks and where an empty history gives it
  bool empty_is_pad_value = false;
};

struct Pooled {
  Row value;
  Row weights;  // of the behaviors, the mean over the heads
};

// `width`: of the values, which may have no rows.
Pooled Attend(const TargetAttention& attention, const Row& query, const Matrix& keys, const Matrix& values,
              int width);

}  // namespace dinghy::reference

#endif  // DINGHY_TESTS_TESTING_REFERENCE_REFERENCE_TARGET_ATTENTION_H_
