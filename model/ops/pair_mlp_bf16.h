// The pair part of DIN's activation unit in bf16, fused: as PairMlp, with the factors of all products but the
// last layer's rounded to bfloat16 and their sums in f32.
//
//   std::unique_ptr<PairMlpBf16> mlp = PairMlpBf16::Create(options);   // null where HasBf16() is false
//   mlp->PackKeys(keys, rows, packed);                                 // once per request
//   mlp->Run(packed, rows, query, base, scores, scratch);              // per query
//
// The first layer's weight of a query, diag(query) product + key, is computed in f32 and rounded once. A sum
// runs over pairs of inputs, rising, of each pair the second product first (VDPBF16PS, which takes denormals
// as zero): a row's bits depend on the row and the weights alone. Const after Create, so thread-safe.
#ifndef DINGHY_MODEL_OPS_PAIR_MLP_BF16_H_
#define DINGHY_MODEL_OPS_PAIR_MLP_BF16_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "model/ops/pair_mlp.h"
#include "model/ops/scratch.h"

namespace dinghy::ops {

class PairMlpBf16 {
 public:
  using Options = PairMlp::Options;
  // Null without AVX512_BF16. What the options point to is copied.
  static std::unique_ptr<PairMlpBf16> Create(const Options& options);

  // Words of two bfloat16, of one row of keys.
  int64_t key_words() const { return (steps_[0].in + 1) / 2; }
  // packed [rows, key_words()]; keys [rows, in], packed.
  void PackKeys(const float* keys, int64_t rows, uint32_t* packed) const;

  // scores [rows]. query: [in], read where there is a product; base: [out of the first layer], what is added
  // to its product.
  void Run(const uint32_t* keys, int64_t rows, const float* query, const float* base, float* scores,
           Scratch& scratch) const;

  // A layer as the kernel reads it: columns padded to whole vectors, inputs to pairs, with zeros.
  struct Step {
    int64_t in = 0;
    int64_t out = 0;
    int64_t stride = 0;            // columns, padded
    std::vector<uint32_t> weight;  // [pairs of inputs, stride]; of the first: of queries without a product
    std::vector<float> bias;       // [stride]
    PairActivation activation = PairActivation::kLinear;
    std::vector<float> alpha, norm_scale, norm_shift;  // [stride]
  };

 private:
  std::vector<Step> steps_;            // but the last layer
  std::vector<float> key_weight_;      // [pairs of inputs, stride, 2]
  std::vector<float> product_weight_;  // the same; empty: none
  std::vector<float> last_weight_;     // [stride of the last step]
  float last_bias_ = 0;
  int64_t widest_ = 0;  // of the strides
};

}  // namespace dinghy::ops

#endif  // DINGHY_MODEL_OPS_PAIR_MLP_BF16_H_
