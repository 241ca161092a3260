// One layer of a model: its weights and what it computes from earlier values.
//
//   ASSIGN_OR_RETURN(std::unique_ptr<Layer> layer, CreateLayer(manifest.layers(i), scope));
//   layer->Prepare(context, part);               // once per user
//   context.user = &part;
//   values[i] = layer->Run(context);             // once per range of candidates
//
// Const after CreateLayer, so thread-safe with one RunContext per thread.
#ifndef DINGHY_MODEL_LAYERS_LAYER_H_
#define DINGHY_MODEL_LAYERS_LAYER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "features/feature_batch.h"
#include "model/ops/scratch.h"
#include "proto/bundle.pb.h"

namespace dinghy {

class LayerScope;

// What is known of a feature's or layer's value when the model is loaded.
struct ValueInfo {
  std::string name;
  v1::Level level = v1::USER;
  int sequence = -1;  // SEQUENCE level: index in manifest.sequences()
  int width = 0;
};

// The rows of a feature or layer for the request at hand: [rows, width], `stride` floats from row to row.
struct Value {
  const float* data = nullptr;
  int64_t rows = 0;
  int64_t stride = 0;
};

// What a layer computes of the user and the histories alone, so that it need not be done again for every
// range of candidates. All packed: stride is the width. What a layer does not have stays empty.
struct UserPart {
  Value bias;       // the user's columns times their weight, and the bias: [1, out]
  Value keys;       // target attention: in the form that its score takes them
  Value values;     // target attention: [length, width]
  Value key_rows;   // linear attention: [length, width]
  Value key_sums;   // linear attention: [1, width of the keys]
  Value products;   // linear attention: [width of the keys, width of a head's values]
  Value attention;  // target attention with a query of the user: its weights [1, length]

  template <typename Function>
  void ForEach(Function function) {
    for (Value* value : {&bias, &keys, &values, &key_rows, &key_sums, &products, &attention})
      function(*value);
  }
};

// A request on its way through the layers. Values point into scratch, and live as long as its outermost
// scope, or into a user state.
struct RunContext {
  const FeatureBatch& batch;
  absl::Span<const Value> values;  // features, then the layers that have run
  ops::Scratch& scratch;
  int64_t first = 0;               // candidate of the batch at which the range begins
  int64_t candidates = 0;          // in the range
  const UserPart* user = nullptr;  // Run: what Prepare filled in
  // Where target attention puts its weights [queries, length]; null if nobody asked.
  float* attention = nullptr;
  // Whether values are complete: else a layer may leave out rows that no other layer reads.
  bool complete = false;

  int64_t Rows(v1::Level level, int sequence) const {
    if (level == v1::CANDIDATE) return candidates;
    return level == v1::SEQUENCE ? batch.sequence_lengths[sequence] : 1;
  }
};

// Parameters, and multiply-adds counted as 2, as model.h's LayerInfo says.
struct LayerCost {
  int64_t parameters = 0;
  double user = 0, behavior = 0, candidate = 0, pair = 0, behavior_pair = 0;

  void AddPerRow(v1::Level level, double flops) {
    (level == v1::CANDIDATE ? candidate : level == v1::SEQUENCE ? behavior : user) += flops;
  }
};

class Layer {
 public:
  Layer(ValueInfo info, const LayerCost& cost) : info_(std::move(info)), cost_(cost) {}
  virtual ~Layer() = default;

  // Fills in what the layer has of the user alone, from values of user and sequence level.
  virtual void Prepare(const RunContext&, UserPart&) const {}

  // Computes the value: as many rows as its level has, info().width wide; of candidate level, those of the
  // context's range. A row's bits depend on nothing but its own inputs.
  virtual Value Run(const RunContext& context) const = 0;

  // What a pad behavior has as this value, [width], where the layer itself knows; else empty. Of a layer that
  // works row by row, FindPadRow computes it.
  virtual absl::Span<const float> PadRow() const { return {}; }

  const ValueInfo& info() const { return info_; }
  const LayerCost& cost() const { return cost_; }

 private:
  const ValueInfo info_;
  const LayerCost cost_;
};

// Builds any kind of layer. Errors: INVALID_ARGUMENT naming the layer, what was expected and what came.
absl::StatusOr<std::unique_ptr<Layer>> CreateLayer(const v1::Layer& layer, LayerScope& scope);

// The manifest's word for the kind: "dense", "target_attention"; "" where none is set.
std::string LayerKind(const v1::Layer& layer);

}  // namespace dinghy

#endif  // DINGHY_MODEL_LAYERS_LAYER_H_
