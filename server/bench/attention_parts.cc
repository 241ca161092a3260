#include "server/bench/attention_parts.h"

#include <algorithm>
#include <cstdlib>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/bench/timed_runs.h"

namespace dinghy {
namespace {

// The name of a weight [rows, columns] of zeros, which it adds.
std::string Zeros(int64_t rows, int64_t columns, TensorMap& tensors) {
  const std::string name = absl::StrCat("bench.zeros_", rows, "x", columns);
  Tensor tensor;
  tensor.shape = {rows, columns};
  tensor.size = rows * columns;
  tensor.data.reset(static_cast<float*>(std::calloc(rows * columns, sizeof(float))));
  tensors.try_emplace(name, std::move(tensor));
  return name;
}

v1::Dense Linear(std::string weight) {
  v1::Dense dense;
  dense.set_weight(std::move(weight));
  dense.set_bias("");
  dense.set_activation(v1::LINEAR);
  return dense;
}

v1::Layer* AttentionOf(v1::BundleManifest& manifest) {
  return manifest.mutable_layers(manifest.layers_size() - 2);
}

// The layers up to `layer`, which is `width` wide, and an output, which must be one column.
v1::BundleManifest UpTo(const v1::BundleManifest& manifest, int layer, int width, TensorMap& tensors) {
  v1::BundleManifest out = manifest;
  out.mutable_layers()->DeleteSubrange(layer + 1, manifest.layers_size() - layer - 1);
  v1::Layer* last = out.add_layers();
  last->set_name("bench.output");
  last->add_inputs(manifest.layers(layer).name());
  *last->mutable_dense() = Linear(Zeros(1, width, tensors));
  out.clear_outputs();
  v1::Output* output = out.add_outputs();
  output->set_name("bench");
  output->set_input("bench.output");
  output->set_link(v1::Output::RAW);
  return out;
}

bool CanNarrow(const v1::TargetAttention& attention) {
  const bool plain =
      attention.has_din() || attention.has_additive() || attention.has_dot() || attention.has_bilinear();
  return plain && !attention.has_latent() && !attention.has_windows();
}

// One column a head in place of the values of the attention, which is `width` wide.
void NarrowValues(int width, TensorMap& tensors, v1::BundleManifest& manifest) {
  v1::Layer attention = *AttentionOf(manifest);
  v1::TargetAttention& message = *attention.mutable_target_attention();
  const int heads = message.has_heads() ? static_cast<int>(message.heads()) : 1;
  const int groups = message.has_key_value_heads() ? static_cast<int>(message.key_value_heads()) : heads;
  v1::Layer values;
  values.set_name("bench.values");
  *values.mutable_inputs() = message.values();
  *values.mutable_dense() = Linear(Zeros(groups, width / heads * groups, tensors));
  message.clear_values();
  message.add_values(values.name());
  v1::Layer output = manifest.layers(manifest.layers_size() - 1);
  *output.mutable_dense() = Linear(Zeros(1, heads, tensors));
  manifest.mutable_layers()->DeleteSubrange(manifest.layers_size() - 2, 2);
  *manifest.add_layers() = std::move(values);
  *manifest.add_layers() = std::move(attention);
  *manifest.add_layers() = std::move(output);
}

void LeaveOutActivations(v1::DinScore& din) {
  for (v1::Dense& layer : *din.mutable_layers()) {
    layer.set_activation(v1::LINEAR);
    layer.clear_parameters();
  }
}

void LeaveOutMiddleLayers(TensorMap& tensors, v1::DinScore& din) {
  const int64_t width = tensors.find(din.layers(0).weight())->second.shape[0];
  din.mutable_layers()->DeleteSubrange(1, din.layers_size() - 1);
  *din.add_layers() = Linear(Zeros(1, width, tensors));
}

}  // namespace

absl::StatusOr<std::unique_ptr<AttentionParts>> AttentionParts::Create(Bundle& bundle,
                                                                       const ModelOptions& options) {
  const absl::StatusOr<std::unique_ptr<Model>> whole =
      Model::Create(bundle.manifest, bundle.tensors, options);
  if (!whole.ok()) return whole.status();
  const std::vector<LayerInfo> layers = (*whole)->Layers();
  auto parts = std::unique_ptr<AttentionParts>(new AttentionParts);
  for (int layer = 0; layer < bundle.manifest.layers_size(); ++layer) {
    if (!bundle.manifest.layers(layer).has_target_attention()) continue;
    absl::Status status = parts->AddForms(bundle, layer, layers[layer].width, options);
    if (!status.ok()) return status;
  }
  return parts;
}

absl::Status AttentionParts::AddForms(Bundle& bundle, int layer, int width, const ModelOptions& options) {
  v1::BundleManifest manifest = UpTo(bundle.manifest, layer, width, bundle.tensors);
  std::vector<Form>& forms = forms_[layer];
  const auto add = [&](double AttentionShares::*part) -> absl::Status {
    Form form{.manifest = std::make_unique<v1::BundleManifest>(manifest), .part = part};
    absl::StatusOr<std::unique_ptr<Model>> model = Model::Create(*form.manifest, bundle.tensors, options);
    if (!model.ok()) return model.status();
    form.model = *std::move(model);
    form.step_seconds.resize(ModelScoreOptions::kFirstLayerStep + manifest.layers_size() + 1);
    form.step = ModelScoreOptions::kFirstLayerStep + manifest.layers_size() - 2;
    forms.push_back(std::move(form));
    return absl::OkStatus();
  };
  if (absl::Status status = add(nullptr); !status.ok()) return status;
  const v1::TargetAttention& attention = bundle.manifest.layers(layer).target_attention();
  if (!CanNarrow(attention)) return absl::OkStatus();
  NarrowValues(width, bundle.tensors, manifest);
  if (absl::Status status = add(&AttentionShares::pooling); !status.ok()) return status;
  if (!attention.has_din()) return absl::OkStatus();
  v1::DinScore& din = *AttentionOf(manifest)->mutable_target_attention()->mutable_din();
  LeaveOutActivations(din);
  if (absl::Status status = add(&AttentionShares::activation); !status.ok()) return status;
  if (din.layers_size() < 3) return absl::OkStatus();
  LeaveOutMiddleLayers(bundle.tensors, din);
  return add(&AttentionShares::second_gemm);
}

void AttentionParts::Run(const FeatureBatch& batch, const std::function<void()>& prepare) {
  for (auto& [layer, forms] : forms_) {
    for (Form& form : forms) {
      std::fill(form.step_seconds.begin(), form.step_seconds.end(), 0.0);
      ModelScoreOptions options;
      options.step_seconds = absl::MakeSpan(form.step_seconds);
      if (prepare) prepare();
      form.model->Score(batch, options, scratch_, outputs_);
      form.seconds.push_back(form.step_seconds[form.step]);
    }
  }
}

std::map<int, AttentionShares> AttentionParts::TakeShares() {
  std::map<int, AttentionShares> out;
  for (auto& [layer, forms] : forms_) {
    AttentionShares& shares = out[layer];
    double before = Median(forms[0].seconds);
    const double all = before;
    for (Form& form : forms) {
      // What costs nothing may seem to cost less than that.
      const double left = std::min(before, Median(form.seconds));
      if (form.part != nullptr) shares.*form.part = (before - left) / all;
      before = left;
      form.seconds.clear();
    }
    shares.pair_gemm = before / all;
  }
  return out;
}

}  // namespace dinghy
