// The pair part of DIN's activation unit, fused: an MLP over the rows of a history whose first layer has a
// weight of its own for each query q,
//   diag(q) product_weight + key_weight.
// Rows go through all layers in blocks that stay near the core. While a tile of rows is multiplied, the
// activation of the tile before it runs beside the products.
//
//   std::unique_ptr<PairMlp> mlp = PairMlp::Create(layers);    // null where the machine has no AVX2
//   mlp->Run({.key_weight = ..., .query = q, ...}, keys, width, length, scores, scratch);
//
// Sums run over a layer's inputs, rising, each product fused with the sum: a row's bits depend on the row and
// the weights alone. Const after Create, so thread-safe.
#ifndef DINGHY_MODEL_OPS_PAIR_MLP_H_
#define DINGHY_MODEL_OPS_PAIR_MLP_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "model/ops/scratch.h"

namespace dinghy::ops {

enum class PairActivation { kLinear, kRelu, kSigmoid, kTanh, kSilu, kPrelu, kDice };

class PairMlp {
 public:
  // Rows that go through all layers together: with 80 columns 12 KiB of activations.
  static constexpr int64_t kBlockRows = 40;

  struct Layer {
    int64_t in = 0;
    int64_t out = 0;
    const float* weight = nullptr;  // [out, in]; null of the first layer, whose weight comes with each query
    const float* bias = nullptr;    // [out] or null; of the first layer null
    PairActivation activation = PairActivation::kLinear;
    const float* alpha = nullptr;       // [out], kPrelu and kDice
    const float* norm_scale = nullptr;  // [out], kDice
    const float* norm_shift = nullptr;  // [out], kDice
  };
  // At least two layers, the last of width 1. What they point to is copied.
  static std::unique_ptr<PairMlp> Create(const std::vector<Layer>& layers);

  // Floats from row to row of the first layer's weights, at least its `out`.
  int64_t first_stride() const { return steps_[0].stride; }
  // What the first layer's weights and what is added to its product must come multiplied with: the kernel's
  // activation takes its argument in that unit.
  float first_scale() const { return steps_[0].scale; }

  // What the first layer is for one query.
  struct Query {
    const float* key_weight = nullptr;      // [in, first_stride()], zeros behind the layer's `out`
    const float* product_weight = nullptr;  // the same; null: none
    const float* query = nullptr;           // [in]; read where there is a product_weight
    const float* base = nullptr;            // [out], what is added to the product
  };
  // scores [rows]; keys [rows, in] with `keys_stride`.
  void Run(const Query& query, const float* keys, int64_t keys_stride, int64_t rows, float* scores,
           Scratch& scratch) const;

  // A layer as the kernel reads it: columns padded to whole half vectors of the widest target.
  struct Step {
    int64_t in = 0;
    int64_t out = 0;
    int64_t stride = 0;
    int64_t block_offset = 0;   // of its values among the hidden layers'
    float scale = 1;            // of weight and bias
    std::vector<float> weight;  // [in, stride]; of the last layer [in padded]
    std::vector<float> bias;    // [stride and a vector]
    PairActivation activation = PairActivation::kLinear;
    std::vector<float> alpha, norm_scale, norm_shift;  // [stride and a vector]
  };

 private:
  std::vector<Step> steps_;
  int64_t block_floats_ = 0;  // of all hidden layers' values of a block
};

}  // namespace dinghy::ops

#endif  // DINGHY_MODEL_OPS_PAIR_MLP_H_
