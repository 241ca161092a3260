// Self-attention as its definition says, in double precision, slow and obvious: over all rows of the history,
// pad behaviors among them, each query against each key that it may see.
//
//   x = RunSelfAttentionBlock(block, {.heads = 2, .causal = true, .real = std::vector<bool>(x.size(), true)},
//   x);
//
// Thread-safe.
#ifndef DINGHY_TESTS_TESTING_REFERENCE_REFERENCE_SELF_ATTENTION_H_
#define DINGHY_TESTS_TESTING_REFERENCE_REFERENCE_SELF_ATTENTION_H_

#include <vector>

#include "proto/bundle.pb.h"
#include "tests/testing/reference/matrix.h"
#include "tests/testing/reference/reference_layers.h"

namespace dinghy::reference {

struct SelfAttentionBlock {
  std::vector<Norm> attention_norm = {};  // one; none in wiring BARE, as ffn_norm and ffn
  std::vector<DenseLayer> latent = {};    // one, or none
  DenseLayer query, key, value, out;
  std::vector<Norm> ffn_norm = {};
  std::vector<DenseLayer> ffn = {};
};

struct SelfAttentionOptions {
  int heads = 1;
  int key_value_heads = 1;
  bool causal = false;
  int window = 0;  // 0: all
  bool linear = false;
  v1::SelfAttention::Wiring wiring = v1::SelfAttention::PRE_NORM;
  v1::SelfAttention::Pads pads = v1::SelfAttention::MASKED;
  std::vector<bool> real;  // by row: whether it is a real behavior
};

// `x`: one row a place, in order of time. Under MASKED the rows of pad behaviors mean nothing.
Matrix RunSelfAttentionBlock(const SelfAttentionBlock& block, const SelfAttentionOptions& options, Matrix x);

// The position's row, `width` wide.
Row SinusoidalRow(const v1::SinusoidalPositions& positions, double position, int width);

}  // namespace dinghy::reference

#endif  // DINGHY_TESTS_TESTING_REFERENCE_REFERENCE_SELF_ATTENTION_H_
