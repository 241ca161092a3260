// The pair part of DIN's activation unit, fused: an MLP over the rows of a history whose first layer has a
// weight of its own for each query q,
//   diag(q) product_weight + key_weight.
// Rows go through all layers in blocks that stay near the core. While a tile of rows is multiplied, the
// activation of the tile before it runs beside the products.
//
//   std::unique_ptr<PairMlp> mlp = PairMlp::Create({.layers = ..., .key_weight = ..., ...});
//   mlp->PackKeys(keys, length, packed);                      // once for all queries
//   mlp->Run(packed, length, query, base, scores, scratch);
//
// Sums run over a layer's inputs in an order of their own: a row's bits depend on the row, the query and the
// weights alone. Const after Create, so thread-safe.
#ifndef DINGHY_MODEL_OPS_PAIR_MLP_H_
#define DINGHY_MODEL_OPS_PAIR_MLP_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "model/ops/aligned_vector.h"
#include "model/ops/cpu.h"
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
  struct Options {
    std::vector<Layer> layers;  // at least two, the last of width 1
    // The first layer's weights, [in, out] with so many floats from row to row; no product: null.
    const float* key_weight = nullptr;
    const float* product_weight = nullptr;
    int64_t weight_stride = 0;
    // The first layer by sums of pairs (pair_tile-inl.h), which only AVX-512 has.
    bool pair_sums = AddsBesideProducts();
  };
  // Null where the machine has no AVX2. What the options point to is copied.
  static std::unique_ptr<PairMlp> Create(const Options& options);

  // Floats of one packed row of keys: the row, scaled, and two numbers of it.
  int64_t key_floats() const { return steps_[0].in + 2; }
  // packed [rows, key_floats()]; keys [rows, in], packed.
  void PackKeys(const float* keys, int64_t rows, float* packed) const;

  // scores [rows]. query: [in], read where there is a product; base: [out of the first layer], what is added
  // to its product.
  void Run(const float* packed_keys, int64_t rows, const float* query, const float* base, float* scores,
           Scratch& scratch) const;

  // A layer as the kernel reads it: columns padded to whole half vectors of the widest target.
  struct Step {
    int64_t in = 0;
    int64_t out = 0;
    int64_t stride = 0;
    int64_t block_offset = 0;  // of its values among the hidden layers'
    float scale = 1;           // of weight and bias
    AlignedFloats weight;      // [in, stride]; of the last layer [in padded]; none of the first
    AlignedFloats bias;        // [stride and a vector]
    PairActivation activation = PairActivation::kLinear;
    AlignedFloats alpha, norm_scale, norm_shift;  // [stride and a vector]
  };

 private:
  void ScaleForPairSums();

  std::vector<Step> steps_;
  int64_t block_floats_ = 0;      // of all hidden layers' values of a block
  AlignedFloats key_weight_;      // [in, stride of the first step]
  AlignedFloats product_weight_;  // the same; empty: none
  bool has_product_ = false;
  // Of pair sums, powers of two: a key's inputs come multiplied with key_scale_, the weights' rows divided by
  // it and 2^power_, so that each row's largest is just below 1.
  AlignedFloats key_scale_;  // [in]; empty: plain products
  float power_ = 0;
};

}  // namespace dinghy::ops

#endif  // DINGHY_MODEL_OPS_PAIR_MLP_H_
