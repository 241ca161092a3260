#include "model/model.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/layers/feature_lookup.h"
#include "model/layers/layer.h"
#include "model/layers/layer_scope.h"
#include "model/layers/pad_row.h"
#include "model/ops/bf16.h"
#include "model/ops/cpu.h"
#include "model/ops/vector_math.h"
#include "model/sha256.h"

namespace dinghy {
namespace {

// The table of values of one request, in its scratch: what Score allocates nothing for.
absl::Span<Value> NewValues(size_t count, ops::Scratch& scratch) {
  static_assert(alignof(Value) <= 64 && std::is_trivially_destructible_v<Value>);
  void* memory = scratch.Floats(count * sizeof(Value) / sizeof(float) + 1);
  Value* values = static_cast<Value*>(memory);
  std::uninitialized_value_construct_n(values, count);
  return absl::MakeSpan(values, count);
}

// Adds what passes between its calls to ModelScoreOptions.step_seconds; does nothing where nobody asked.
class StepClock {
 public:
  using Clock = std::chrono::steady_clock;

  explicit StepClock(absl::Span<double> seconds) : seconds_(seconds) {
    if (!seconds_.empty()) last_ = Clock::now();
  }

  void Done(size_t step) {
    if (seconds_.empty()) return;
    const Clock::time_point now = Clock::now();
    seconds_[step] += std::chrono::duration<double>(now - last_).count();
    last_ = now;
  }

 private:
  const absl::Span<double> seconds_;
  Clock::time_point last_;
};

// Whether this CPU, or whoever allows it to be slow, computes in the manifest's precision.
absl::Status CheckPrecision(const v1::BundleManifest& manifest, const ModelOptions& options) {
  if (manifest.precision() != v1::BF16 || ops::HasBf16() || options.allow_emulation) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("precision BF16: expected a CPU with AVX512_BF16, got ",
                                                    ops::CpuDescription(),
                                                    "; with --allow_emulation it is computed slowly"));
}

}  // namespace

Model::Model(const v1::BundleManifest& manifest) : manifest_(manifest) {}
Model::~Model() = default;

absl::StatusOr<std::unique_ptr<Model>> Model::Create(const v1::BundleManifest& manifest,
                                                     const TensorMap& tensors, const ModelOptions& options) {
  if (absl::Status status = CheckPrecision(manifest, options); !status.ok()) return status;
  ops::PrepareThread();
  std::unique_ptr<Model> model(new Model(manifest));
  LayerScope scope(manifest, tensors, options);
  absl::StatusOr<FeatureLookup> lookup = FeatureLookup::Create(scope);
  if (!lookup.ok()) return lookup.status();
  model->lookup_ = std::make_unique<FeatureLookup>(*std::move(lookup));
  for (int i = 0; i < manifest.layers_size(); ++i) {
    absl::StatusOr<std::unique_ptr<Layer>> layer = CreateLayer(manifest.layers(i), scope);
    if (!layer.ok()) return layer.status();
    if (absl::Status status = scope.AddValue((*layer)->info()); !status.ok()) return status;
    FindPadRow(manifest.layers(i), **layer, scope);
    if (manifest.layers(i).has_target_attention()) model->attention_layers_.push_back(i);
    model->layers_.push_back(*std::move(layer));
  }
  if (absl::Status status = model->CreateOutputs(scope); !status.ok()) return status;
  model->values_ = scope.values();
  for (size_t i = 0; i < model->values_.size(); ++i) {
    model->index_[model->values_[i].name] = static_cast<int>(i);
  }
  Sha256 digest;
  digest.Update(absl::StrCat(ops::NumericsDescription(), "\n", scope.choices()));
  model->numerics_id_ = digest.Hex();
  return model;
}

absl::Status Model::CreateOutputs(LayerScope& scope) {
  if (manifest_.outputs().empty()) {
    return absl::InvalidArgumentError("outputs: expected at least one, got none");
  }
  for (const v1::Output& output : manifest_.outputs()) {
    scope.SetSubject("output", output.name());
    const int value = scope.FindValue(output.input());
    if (value < manifest_.features_size()) {
      return scope.Error("input: expected a layer, got ", value < 0 ? "unknown " : "feature ", "\"",
                         output.input(), "\"");
    }
    const ValueInfo& info = scope.values()[value];
    if (info.width != 1) {
      return scope.Error("input: expected layer \"", info.name, "\" to have width 1, got ", info.width);
    }
    if (info.level == v1::SEQUENCE) {
      return scope.Error("input: expected layer \"", info.name, "\" at user or candidate level, got ",
                         scope.Where(info.level, info.sequence));
    }
    if (output.link() != v1::Output::SIGMOID && output.link() != v1::Output::RAW) {
      return scope.Error("link: expected SIGMOID or RAW, got nothing");
    }
    absl::StatusOr<Calibration> calibration = Calibration::Create(output);
    if (!calibration.ok()) return scope.Error(calibration.status().message());
    outputs_.push_back({.value = value,
                        .sigmoid = output.link() == v1::Output::SIGMOID,
                        .calibration = *std::move(calibration)});
  }
  return absl::OkStatus();
}

void Model::Score(const FeatureBatch& batch, const ModelScoreOptions& options, ops::Scratch& scratch,
                  ModelOutputs& outputs) const {
  ops::Scratch::Scope scope(scratch);
  StepClock clock(options.step_seconds);
  const absl::Span<Value> values = NewValues(values_.size(), scratch);
  lookup_->Run(batch, scratch, values);
  clock.Done(0);
  outputs.attention.resize(options.attention ? attention_layers_.size() : 0);
  RunContext context{
      .batch = batch, .values = values, .scratch = scratch, .complete = !options.debug_names.empty()};
  size_t attention = 0;
  for (size_t i = 0; i < layers_.size(); ++i) {
    context.attention = nullptr;
    if (attention < outputs.attention.size() && attention_layers_[attention] == static_cast<int>(i)) {
      AttentionWeights& weights = outputs.attention[attention++];
      const std::string& key = manifest_.layers(i).target_attention().keys(0);
      weights.layer = static_cast<int>(i);
      weights.sequence = values_[index_.find(key)->second].sequence;
      context.attention = &weights.weights;
    }
    values[manifest_.features_size() + i] = layers_[i]->Run(context);
    clock.Done(ModelScoreOptions::kFirstLayerStep + i);
  }
  WriteScores(context, outputs);
  clock.Done(ModelScoreOptions::kFirstLayerStep + layers_.size());
  WriteDebug(options, context, outputs);
}

void Model::WriteScores(const RunContext& context, ModelOutputs& outputs) const {
  outputs.scores.resize(outputs_.size());
  const int64_t candidates = context.batch.candidates;
  for (size_t o = 0; o < outputs_.size(); ++o) {
    const Value& value = context.values[outputs_[o].value];
    std::vector<float>& scores = outputs.scores[o];
    scores.resize(candidates);
    for (int64_t c = 0; c < candidates; ++c) {
      scores[c] = value.data[values_[outputs_[o].value].level == v1::USER ? 0 : c * value.stride];
    }
    if (!outputs_[o].calibration.empty()) {
      for (float& score : scores) score = outputs_[o].calibration.Probability(score);
    } else if (outputs_[o].sigmoid) {
      ops::Sigmoid(scores.data(), candidates);
    }
  }
}

void Model::WriteDebug(const ModelScoreOptions& options, const RunContext& context,
                       ModelOutputs& outputs) const {
  outputs.debug.resize(options.debug_names.size());
  for (size_t i = 0; i < options.debug_names.size(); ++i) {
    const int index = index_.find(options.debug_names[i])->second;
    const Value& value = context.values[index];
    NamedValues& named = outputs.debug[i];
    named.name = options.debug_names[i];
    named.rows = static_cast<int>(value.rows);
    named.width = values_[index].width;
    named.values.clear();
    for (int64_t r = 0; r < value.rows; ++r) {
      const float* row = value.data + r * value.stride;
      named.values.insert(named.values.end(), row, row + named.width);
    }
  }
}

bool Model::HasName(std::string_view feature_or_layer) const { return index_.count(feature_or_layer) != 0; }

std::vector<LayerInfo> Model::Layers() const {
  std::vector<LayerInfo> out;
  for (size_t i = 0; i < layers_.size(); ++i) {
    const ValueInfo& value = layers_[i]->info();
    const LayerCost& cost = layers_[i]->cost();
    LayerInfo info;
    info.name = value.name;
    info.kind = LayerKind(manifest_.layers(static_cast<int>(i)));
    info.level = value.level;
    if (value.level == v1::SEQUENCE) info.sequence = manifest_.sequences(value.sequence).name();
    info.width = value.width;
    info.parameters = cost.parameters;
    info.flops_user = cost.user;
    info.flops_behavior = cost.behavior;
    info.flops_candidate = cost.candidate;
    info.flops_pair = cost.pair;
    info.flops_behavior_pair = cost.behavior_pair;
    out.push_back(std::move(info));
  }
  return out;
}

}  // namespace dinghy
