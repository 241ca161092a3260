// One self-attention block over a history (SASRec, Kang and McAuley, 2018): multi-head attention and a
// feed-forward part, in one of three wirings. Both run on the real behaviors; only the products of two
// run-time matrices see the bucket's padding.
//
//   ASSIGN_OR_RETURN(AttentionBlock block, AttentionBlock::Create(field, message, options, scope));
//   block.Run(x, length, scratch);               // x [length, width], in place
//
// Const after Create, so thread-safe.
#ifndef DINGHY_MODEL_LAYERS_ATTENTION_BLOCK_H_
#define DINGHY_MODEL_LAYERS_ATTENTION_BLOCK_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "model/layers/layer.h"
#include "model/layers/layer_scope.h"
#include "model/ops/gemm.h"

namespace dinghy {

// softmax(q k^T / sqrt(head width)) v, head by head.
class HeadAttention {
 public:
  struct Options {
    int64_t width = 0;
    int64_t heads = 1;
    int64_t max_length = 0;
    bool causal = false;
  };
  static absl::StatusOr<HeadAttention> Create(const Options& options);

  const Options& options() const { return options_; }

  // q, k, v, out: [BucketRows(length), width], packed; rows of q, k and v from `length` on must be zero,
  // those of out are not meant to be read. q is scaled in place. length >= 1.
  void Run(float* q, const float* k, const float* v, int64_t length, float* out, ops::Scratch& scratch) const;

 private:
  Options options_;
  std::vector<std::unique_ptr<ops::Gemm>> score_;  // by bucket: q k^T
  std::vector<std::unique_ptr<ops::Gemm>> weigh_;  // by bucket: weights v
};

class AttentionBlock {
 public:
  // `heads` must outlive the block.
  static absl::StatusOr<AttentionBlock> Create(const std::string& field,
                                               const v1::SelfAttention::Block& block,
                                               v1::SelfAttention::Wiring wiring, const HeadAttention& heads,
                                               LayerScope& scope);

  // x: [length, width], packed, in place. length >= 1.
  void Run(float* x, int64_t length, ops::Scratch& scratch) const;

  void AddCost(LayerCost& cost) const;

 private:
  struct Linear {
    std::unique_ptr<ops::RowLinear> rows;
    int64_t out = 0;
    Activation activation;
    int64_t parameters = 0;
    double flops = 0;

    void Run(const float* x, int64_t in, int64_t length, float* y, ops::Scratch& scratch) const;
  };
  static absl::StatusOr<Linear> CreateLinear(const std::string& field, const v1::Dense& dense, int64_t in,
                                             LayerScope& scope);

  // out [length, width] = MHA(query, memory, memory).
  void Attend(const float* query, const float* memory, int64_t length, float* out,
              ops::Scratch& scratch) const;
  // out [length, width] = FFN(x).
  void FeedForward(const float* x, int64_t length, float* out, ops::Scratch& scratch) const;

  const HeadAttention* heads_ = nullptr;
  v1::SelfAttention::Wiring wiring_ = v1::SelfAttention::WIRING_UNSPECIFIED;
  NormWeights attention_norm_;
  Linear query_, key_, value_, out_;
  NormWeights ffn_norm_;
  std::vector<Linear> ffn_;
};

}  // namespace dinghy

#endif  // DINGHY_MODEL_LAYERS_ATTENTION_BLOCK_H_
