// One layer of a model: its weights and what it computes from earlier values.
//
//   ASSIGN_OR_RETURN(std::unique_ptr<Layer> layer, CreateLayer(manifest.layers(i), scope));
//   values[i] = layer->Run(context);
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

// A request on its way through the layers. Values point into `scratch` and live as long as its outermost
// scope.
struct RunContext {
  const FeatureBatch& batch;
  absl::Span<const Value> values;  // features, then the layers that have run
  ops::Scratch& scratch;
  // Where target attention puts its weights [candidates, length]; null if nobody asked.
  std::vector<float>* attention = nullptr;
  // Whether values are complete: else a layer may leave out rows that no other layer reads.
  bool complete = false;

  int64_t Rows(v1::Level level, int sequence) const {
    if (level == v1::CANDIDATE) return batch.candidates;
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

  // Computes the value: as many rows as its level has, info().width wide.
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
