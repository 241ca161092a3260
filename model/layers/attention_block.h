// One self-attention block over a history (SASRec, Kang and McAuley, 2018): multi-head attention and a
// feed-forward part, in one of several wirings. Both run on the real behaviors, and on one row for all pad
// ones where they are attended; only the products of two run-time matrices see the bucket's padding.
//
//   ASSIGN_OR_RETURN(AttentionBlock block, AttentionBlock::Create(field, attention, index, options, scope));
//   x = block.Run(x, {.rows = length}, scratch);
//
// Const after Create, so thread-safe.
#ifndef DINGHY_MODEL_LAYERS_ATTENTION_BLOCK_H_
#define DINGHY_MODEL_LAYERS_ATTENTION_BLOCK_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "model/layers/head_attention.h"
#include "model/layers/layer.h"
#include "model/layers/layer_scope.h"
#include "model/ops/gemm.h"

namespace dinghy {

class AttentionBlock {
 public:
  // Block `index` of `attention`, whose fields beside the blocks must have been checked, over rows of
  // `width`.
  static absl::StatusOr<AttentionBlock> Create(const v1::SelfAttention& attention, int index, int64_t width,
                                               int64_t max_length, LayerScope& scope);

  // x: [rows.rows, width], packed; it is overwritten. Returns [rows.rows, out_width()], packed: x itself, or
  // memory of `scratch`. rows.rows >= 1.
  float* Run(float* x, const HistoryRows& rows, ops::Scratch& scratch) const;

  // Whether the newest row can be computed without the others.
  bool TakesNewest() const { return heads_.TakesOneQuery(); }
  // The newest row alone, [out_width()], with the same bits: what the rows before it come to is not computed
  // but for keys and values. TakesNewest() must hold, and
  // rows.rows be above 1; else as Run.
  float* RunNewest(float* x, const HistoryRows& rows, ops::Scratch& scratch) const;

  int64_t out_width() const { return out_.out; }

  // `newest_alone`: of RunNewest instead of Run.
  void AddCost(bool newest_alone, LayerCost& cost) const;

 private:
  struct Linear {
    std::unique_ptr<ops::RowLinear> rows;
    int64_t in = 0;
    int64_t out = 0;
    Activation activation;
    int64_t parameters = 0;

    void Run(const float* x, int64_t length, float* y, ops::Scratch& scratch) const;
  };
  static absl::StatusOr<Linear> CreateLinear(const std::string& field, const v1::Dense& dense, int64_t in,
                                             LayerScope& scope);
  absl::Status CreateHeads(const std::string& field, const v1::SelfAttention& attention,
                           const v1::SelfAttention::Block& block, int64_t max_length, LayerScope& scope);
  absl::Status CreateFeedForward(const std::string& field, const v1::SelfAttention::Block& block,
                                 LayerScope& scope);

  // Run from row `first` on, 0 or the newest.
  float* RunFrom(int64_t first, float* x, const HistoryRows& rows, ops::Scratch& scratch) const;
  // out [rows - first, out_width()] = MHA(query, memory, memory); query begins with row `first`, memory with
  // row 0.
  void Attend(int64_t first, const float* query, const float* memory, const HistoryRows& rows, float* out,
              ops::Scratch& scratch) const;
  // out [length, width] = FFN(x).
  void FeedForward(const float* x, int64_t length, float* out, ops::Scratch& scratch) const;

  int64_t width_ = 0;
  v1::SelfAttention::Wiring wiring_ = v1::SelfAttention::WIRING_UNSPECIFIED;
  HeadAttention heads_;
  Linear latent_;  // out 0 where there is none
  Linear query_, key_, value_, out_;
  NormWeights attention_norm_;
  NormWeights ffn_norm_;
  std::vector<Linear> ffn_;
};

}  // namespace dinghy

#endif  // DINGHY_MODEL_LAYERS_ATTENTION_BLOCK_H_
