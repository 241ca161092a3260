// What the heads of a self-attention block do: each row's query over the rows it may see.
//
//   ASSIGN_OR_RETURN(HeadAttention heads, HeadAttention::Create(options));
//   heads.Run(q, k, v, {.rows = length}, out, scratch);
//
// Const after Create, so thread-safe.
#ifndef DINGHY_MODEL_LAYERS_HEAD_ATTENTION_H_
#define DINGHY_MODEL_LAYERS_HEAD_ATTENTION_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "model/ops/gemm.h"
#include "model/ops/scratch.h"

namespace dinghy {

// The rows of one history. All pad behaviors that it has in the trainer are alike, so one row stands for
// them.
struct HistoryRows {
  int64_t rows = 0;  // real behaviors, oldest first, behind the pad row where there is one
  int64_t pads = 0;  // above 0: row 0 is the pad row, and counts so often as a key
};

class HeadAttention {
 public:
  struct Options {
    int64_t heads = 1;            // of queries
    int64_t key_value_heads = 1;  // divides heads; query head h reads h / (heads / key_value_heads)
    int64_t head_width = 0;       // of queries and keys
    int64_t value_width = 0;      // of a head's values
    int64_t max_length = 0;
    bool causal = false;
    int64_t window = 0;   // a row sees those at a distance below it; 0: all
    bool linear = false;  // kernel ELU_PLUS_ONE instead of the softmax
    bool onednn = false;  // products of the softmax through oneDNN instead of ops::SoftmaxAttention

    bool operator==(const Options&) const = default;
  };
  static absl::StatusOr<HeadAttention> Create(const Options& options);

  const Options& options() const { return options_; }
  int64_t query_width() const { return options_.heads * options_.head_width; }
  int64_t key_width() const { return options_.key_value_heads * options_.head_width; }
  int64_t values_width() const { return options_.key_value_heads * options_.value_width; }
  int64_t out_width() const { return options_.heads * options_.value_width; }

  // Rows of q [query_width()], k [key_width()], v [values_width()] and out [out_width()], packed:
  // BucketRows(rows) of each; those of q, k and v from `rows` on must be zero, those of out are not meant to
  // be read. q is overwritten. rows.rows >= 1.
  void Run(float* q, float* k, const float* v, const HistoryRows& rows, float* out,
           ops::Scratch& scratch) const;

  // Whether one row can be computed without the others.
  bool TakesOneQuery() const { return !options_.linear && !options_.onednn; }
  // The newest row alone, with the same bits: of q and out there is only that. TakesOneQuery() must hold.
  void RunNewest(float* q, const float* k, const float* v, const HistoryRows& rows, float* out,
                 ops::Scratch& scratch) const;

 private:
  void ScaleQueries(float* q, int64_t rows) const;
  // q and out begin with row `first`.
  void RunSoftmax(float* q, const float* k, const float* v, const HistoryRows& rows, int64_t first,
                  float* out, ops::Scratch& scratch) const;
  // The same with oneDNN's products, a bucket's rows of queries at a time.
  void RunOneDnn(float* q, const float* k, const float* v, const HistoryRows& rows, float* out,
                 ops::Scratch& scratch) const;
  void RunLinear(float* q, float* k, const float* v, int64_t rows, float* out, ops::Scratch& scratch) const;
  // Turns row `r` of scores [columns] into weights.
  void Weigh(int64_t r, const HistoryRows& rows, int64_t columns, float* scores) const;

  Options options_;
  // With oneDNN, by bucket of keys: q k^T and weights v for kBucketRows queries.
  std::vector<std::unique_ptr<ops::Gemm>> score_;
  std::vector<std::unique_ptr<ops::Gemm>> weigh_;
};

}  // namespace dinghy

#endif  // DINGHY_MODEL_LAYERS_HEAD_ATTENTION_H_
