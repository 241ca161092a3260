// The layers of a bundle, ready to score a FeatureBatch.
//
//   ASSIGN_OR_RETURN(auto model, Model::Create(bundle->manifest, bundle->tensors));
//   model->Score(batch, {}, scratch, outputs);
//
// Or in steps, of which the first can be kept for later requests and the last be shared among threads:
//
//   ops::Scratch::Scope scope(scratch);
//   const UserState user = model->ScoreUser(batch, options, scratch);
//   model->StartOutputs(batch, user, options, outputs);
//   model->ScoreRange(batch, user, 0, 64, options, scratch, outputs);     // and all other ranges, on any
//   thread
//
// Const after Create, so thread-safe with one Scratch per thread; every thread calls ops::PrepareThread
// first.
#ifndef DINGHY_MODEL_MODEL_H_
#define DINGHY_MODEL_MODEL_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "features/feature_batch.h"
#include "model/calibration.h"
#include "model/model_options.h"
#include "model/ops/scratch.h"
#include "model/tensor.h"
#include "model/user_state.h"
#include "proto/bundle.pb.h"

namespace dinghy {

class FeatureLookup;
class Layer;
class LayerScope;
struct RunContext;
struct ValueInfo;

struct ModelScoreOptions {
  bool attention = false;  // fill ModelOutputs.attention
  std::vector<std::string>
      debug_names;  // features or layers whose values to return; all must exist (HasName)
  // [kFirstLayerStep + layers + 1]: what is called adds the seconds that each step took, first the features'
  // lookup, then each layer, last the outputs. Empty: no clock is read.
  absl::Span<double> step_seconds = {};

  static constexpr size_t kFirstLayerStep = 1;
};

struct AttentionWeights {
  int layer = 0;     // index in manifest.layers()
  int sequence = 0;  // index in manifest.sequences()
  // [candidates, length], after normalisation: what multiplies the values. Of several heads the mean; of
  // linear attention the weights that it has without computing them, so that they sum to 1; of windows the
  // weight divided by the window's number of behaviors, 0 behind the last window.
  std::vector<float> weights;
};

struct NamedValues {
  std::string name;
  int rows = 0;
  int width = 0;
  std::vector<float> values;  // [rows, width]
};

struct ModelOutputs {
  std::vector<std::vector<float>> scores;  // [outputs][candidates], by manifest.outputs()
  std::vector<AttentionWeights> attention;
  std::vector<NamedValues> debug;
};

// What one layer is, for `inspect`.
struct LayerInfo {
  std::string name;
  std::string kind;  // "dense", "target_attention"
  v1::Level level;
  std::string sequence;  // SEQUENCE level
  int width = 0;
  int64_t parameters = 0;
  // Multiply-adds counted as 2: once per request, per behavior, per candidate, per candidate and behavior,
  // and per pair of behaviors.
  double flops_user = 0, flops_behavior = 0, flops_candidate = 0, flops_pair = 0, flops_behavior_pair = 0;
};

class Model {
 public:
  // Infers levels and widths, checks every shape, packs the weights and makes all primitives; `manifest` and
  // `tensors` must outlive the model (tables are read in place).
  // Errors: INVALID_ARGUMENT naming the layer, what was expected and what came.
  static absl::StatusOr<std::unique_ptr<Model>> Create(const v1::BundleManifest& manifest,
                                                       const TensorMap& tensors,
                                                       const ModelOptions& options = {});
  ~Model();
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  // Scores the batch: outputs.scores[o][c]. Only what `batch` holds for candidate c, the user and the
  // sequences has influence on scores[.][c].
  void Score(const FeatureBatch& batch, const ModelScoreOptions& options, ops::Scratch& scratch,
             ModelOutputs& outputs) const;

  // What depends on the user and the histories alone. It lives in `scratch` until the scope around ends.
  UserState ScoreUser(const FeatureBatch& batch, const ModelScoreOptions& options,
                      ops::Scratch& scratch) const;
  // A copy of `user` in memory of its own, of no more than ranges need: no value of sequence level, which
  // ModelScoreOptions.debug_names then must not name.
  UserState Keep(const UserState& user) const;
  // Multiply-adds counted as 2 that ScoreUser does for the batch, and ScoreRange for each candidate.
  double UserFlops(const FeatureBatch& batch) const;
  double CandidateFlops(const FeatureBatch& batch) const;

  // Gives `outputs` the sizes that the batch and the options ask for, and fills in what is the user's.
  void StartOutputs(const FeatureBatch& batch, const UserState& user, const ModelScoreOptions& options,
                    ModelOutputs& outputs) const;
  // Fills in what `outputs` has of candidates `begin` to `end - 1`; of no others, so that threads may share
  // it. `user` comes from ScoreUser of a batch of the same user and sequence columns and lengths; the options
  // are StartOutputs'. The bits are those of Score.
  void ScoreRange(const FeatureBatch& batch, const UserState& user, int begin, int end,
                  const ModelScoreOptions& options, ops::Scratch& scratch, ModelOutputs& outputs) const;

  bool HasName(std::string_view feature_or_layer) const;
  std::vector<LayerInfo> Layers() const;
  // Hex digest of all that decides bits beside bundle and request: ops::NumericsDescription() and the probes'
  // choices.
  const std::string& numerics_id() const { return numerics_id_; }

 private:
  // One of manifest.outputs(): a layer's single column, through the link.
  struct OutputColumn {
    int value = 0;
    bool sigmoid = false;
    Calibration calibration;
  };

  explicit Model(const v1::BundleManifest& manifest);

  absl::Status CreateOutputs(LayerScope& scope);
  const ValueInfo& LayerValue(size_t layer) const;
  double Flops(const FeatureBatch& batch, bool user) const;
  void WriteScores(const RunContext& context, ModelOutputs& outputs) const;

  const v1::BundleManifest& manifest_;
  std::unique_ptr<FeatureLookup> lookup_;
  std::vector<std::unique_ptr<Layer>> layers_;
  std::vector<OutputColumn> outputs_;
  std::vector<int> attention_layers_;              // indices of the target attention layers
  std::vector<int> attention_keys_;                // by layer: index in values_ of its first keys, or -1
  std::vector<ValueInfo> values_;                  // features, then layers
  std::map<std::string, int, std::less<>> index_;  // of values_
  std::string numerics_id_;
};

}  // namespace dinghy

#endif  // DINGHY_MODEL_MODEL_H_
