// The pair part of DIN's activation unit, fused: an MLP over the rows of a history whose first layer has a
// weight of its own for each query. Rows go through all layers in blocks that stay in the first-level cache,
// activations are applied to hot tiles.
//
//   std::unique_ptr<PairMlp> mlp = PairMlp::Create(options);    // null where the machine has no AVX2
//   mlp->Run(keys, width, length, weight, base, scores, scratch);
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

  // Floats from row to row of the first layer's weight, at least its `out`.
  int64_t first_stride() const { return steps_[0].stride; }

  // scores [rows]. keys: [rows, in] with `keys_stride`; weight: [in, first_stride()], zeros behind the first
  // layer's `out`; base: [first_stride()], what is added to its product, of any number behind `out`.
  void Run(const float* keys, int64_t keys_stride, int64_t rows, const float* weight, const float* base,
           float* scores, Scratch& scratch) const;

  // A layer as the kernel reads it: columns padded to whole vectors of the widest target.
  struct Step {
    int64_t in = 0;
    int64_t out = 0;
    int64_t stride = 0;
    std::vector<float> weight;  // [in, stride]; of the last layer [in padded]
    std::vector<float> bias;    // [stride]
    PairActivation activation = PairActivation::kLinear;
    std::vector<float> alpha, norm_scale, norm_shift;  // [stride]
  };

 private:
  std::vector<Step> steps_;
};

}  // namespace dinghy::ops

#endif  // DINGHY_MODEL_OPS_PAIR_MLP_H_
