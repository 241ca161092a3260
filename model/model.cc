#include "model/model.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/layers/feature_lookup.h"
#include "model/layers/layer.h"
#include "model/layers/layer_scope.h"
#include "model/layers/pad_row.h"
#include "model/ops/bf16.h"
#include "model/ops/cpu.h"
#include "model/sha256.h"

namespace dinghy {
namespace {

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
    model->attention_keys_.push_back(-1);
    if (manifest.layers(i).has_target_attention()) {
      model->attention_layers_.push_back(i);
      model->attention_keys_.back() = scope.FindValue(manifest.layers(i).target_attention().keys(0));
    }
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
