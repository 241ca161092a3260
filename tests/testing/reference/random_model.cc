#include "tests/testing/reference/random_model.h"

#include <algorithm>
#include <cmath>
#include <new>

#include "absl/strings/str_cat.h"

namespace dinghy::reference {

std::string RandomModel::AddTensor(const std::string& name, const std::vector<int64_t>& shape, double scale) {
  Tensor tensor;
  tensor.shape = shape;
  tensor.size = 1;
  for (const int64_t size : shape) tensor.size *= size;
  const size_t bytes = (tensor.size * sizeof(float) + 63) / 64 * 64;
  tensor.data.reset(static_cast<float*>(std::aligned_alloc(64, std::max<size_t>(bytes, 64))));
  if (tensor.data == nullptr) throw std::bad_alloc();
  std::normal_distribution<double> normal(0, scale);
  for (int64_t i = 0; i < tensor.size; ++i) tensor.data[i] = static_cast<float>(normal(random_));
  tensors[name] = std::move(tensor);
  return name;
}

void RandomModel::AddSequence(const std::string& name, int max_length, v1::Sequence::Pad pad) {
  v1::Sequence& sequence = *manifest.add_sequences();
  sequence.set_name(name);
  sequence.set_max_length(max_length);
  sequence.set_pad(pad);
}

void RandomModel::AddTable(const std::string& name, int rows, int dim) {
  v1::Table& table = *manifest.add_tables();
  table.set_name(name);
  table.set_tensor(AddTensor(name + ".table", {rows, dim}, 1.0));
  table.set_dim(dim);
}

v1::Feature* RandomModel::AddFeature(const std::string& name, v1::Level level) {
  v1::Feature* feature = manifest.add_features();
  feature->set_name(name);
  feature->set_level(level);
  if (const size_t dot = name.find('.'); dot != std::string::npos) {
    feature->set_level(v1::SEQUENCE);
    feature->set_sequence(name.substr(0, dot));
  }
  return feature;
}

v1::Feature* RandomModel::AddId(const std::string& name, v1::Level level, const std::string& table,
                                v1::IdFeature::Bag bag) {
  v1::Feature* feature = AddFeature(name, level);
  feature->mutable_id()->set_bag(bag);
  feature->set_table(table);
  return feature;
}

void RandomModel::AddTimeSince(const std::string& name, const std::string& table) {
  v1::Feature* feature = AddFeature(name, v1::SEQUENCE);
  feature->mutable_time_since();
  feature->set_table(table);
}

void RandomModel::AddNumeric(const std::string& name, v1::Level level) {
  AddFeature(name, level)->mutable_numeric();
}

void RandomModel::AddVector(const std::string& name, v1::Level level, int dim) {
  AddFeature(name, level)->mutable_vector()->set_dim(dim);
}

v1::Layer* RandomModel::AddLayer(const std::string& name, const std::vector<std::string>& inputs) {
  v1::Layer* layer = manifest.add_layers();
  layer->set_name(name);
  for (const std::string& input : inputs) layer->add_inputs(input);
  return layer;
}

void RandomModel::AddOutput(const std::string& name, const std::string& input, v1::Output::Link link) {
  v1::Output& output = *manifest.add_outputs();
  output.set_name(name);
  output.set_input(input);
  output.set_link(link);
}

v1::Dense RandomModel::MakeDense(const std::string& prefix, int in, int out, v1::Activation activation,
                                 bool bias) {
  v1::Dense dense;
  dense.set_weight(AddTensor(prefix + ".weight", {out, in}, 1.0 / std::sqrt(in)));
  dense.set_bias(bias ? AddTensor(prefix + ".bias", {out}, 0.2) : "");
  dense.set_activation(activation);
  return dense;
}

v1::LayerNorm RandomModel::MakeNorm(const std::string& prefix, int width) {
  v1::LayerNorm norm;
  norm.set_weight(AddTensor(prefix + ".weight", {width}, 1.0));
  norm.set_bias(AddTensor(prefix + ".bias", {width}, 0.2));
  norm.set_epsilon(1e-3f);
  return norm;
}

v1::BatchNorm RandomModel::MakeBatchNorm(const std::string& prefix, int width, bool affine) {
  v1::BatchNorm norm;
  norm.set_mean(AddTensor(prefix + ".mean", {width}, 0.5));
  norm.set_variance(AddTensor(prefix + ".variance", {width}, 1.0));
  for (int64_t i = 0; i < width; ++i) {
    float& variance = tensors[norm.variance()].data[i];
    variance *= variance;
  }
  norm.set_weight(affine ? AddTensor(prefix + ".weight", {width}, 1.0) : "");
  norm.set_bias(affine ? AddTensor(prefix + ".bias", {width}, 0.2) : "");
  norm.set_epsilon(1e-2f);
  return norm;
}

v1::ActivationParameters RandomModel::MakeParameters(const std::string& prefix, v1::Activation activation,
                                                     int width, bool shared_alpha, bool norm) {
  v1::ActivationParameters out;
  if (activation == v1::LEAKY_RELU) out.set_slope(0.03f);
  if (activation == v1::PRELU || activation == v1::DICE) {
    out.set_alpha(AddTensor(prefix + ".alpha", {shared_alpha ? 1 : width}, 0.5));
  }
  if (activation == v1::DICE && norm)
    *out.mutable_norm() = MakeBatchNorm(prefix + ".norm", width, !shared_alpha);
  return out;
}

v1::DinScore RandomModel::MakeDin(const std::string& prefix, const std::vector<v1::DinScore::Part>& parts,
                                  int width, const std::vector<int>& hidden) {
  v1::DinScore din;
  for (const v1::DinScore::Part part : parts) din.add_parts(part);
  int in = static_cast<int>(parts.size()) * width;
  for (const int out : hidden) {
    *din.add_layers() = MakeDense(absl::StrCat(prefix, ".", din.layers_size()), in, out,
                                  din.layers_size() % 2 == 0 ? v1::SIGMOID : v1::RELU);
    in = out;
  }
  *din.add_layers() = MakeDense(absl::StrCat(prefix, ".", din.layers_size()), in, 1, v1::LINEAR);
  return din;
}

v1::AdditiveScore RandomModel::MakeAdditive(const std::string& prefix, int query_width, int key_width,
                                            int hidden, v1::Activation activation, bool bias) {
  v1::AdditiveScore out;
  out.set_query_weight(
      AddTensor(prefix + ".query_weight", {hidden, query_width}, 1.0 / std::sqrt(query_width)));
  out.set_key_weight(AddTensor(prefix + ".key_weight", {hidden, key_width}, 1.0 / std::sqrt(key_width)));
  out.set_bias(bias ? AddTensor(prefix + ".bias", {hidden}, 0.2) : "");
  out.set_vector(AddTensor(prefix + ".vector", {hidden}, 1.0 / std::sqrt(hidden)));
  out.set_activation(activation);
  return out;
}

v1::BilinearScore RandomModel::MakeBilinear(const std::string& prefix, int query_width, int key_width) {
  v1::BilinearScore out;
  out.set_weight(
      AddTensor(prefix + ".weight", {query_width, key_width}, 1.0 / std::sqrt(query_width * key_width)));
  return out;
}

v1::LatentKeyValue RandomModel::MakeLatent(const std::string& prefix, int query_width, int latent_width,
                                           int value_width) {
  v1::LatentKeyValue out;
  const double scale = 1.0 / std::sqrt(latent_width);
  out.set_key_up(AddTensor(prefix + ".key_up", {query_width, latent_width}, scale));
  out.set_value_up(AddTensor(prefix + ".value_up", {value_width, latent_width}, scale));
  return out;
}

v1::SelfAttention RandomModel::MakeSelfAttention(const std::string& prefix,
                                                 const SelfAttentionOptions& options) {
  v1::SelfAttention out;
  const bool bare = options.wiring == v1::SelfAttention::BARE;
  const int head_width = options.head_width > 0 ? options.head_width : options.width / options.heads;
  const int value_width = options.value_width > 0 ? options.value_width : head_width;
  const int shared = options.key_value_heads > 0 ? options.key_value_heads : options.heads;
  int width = options.width;
  const auto scale = [&](const v1::Dense& dense) {
    Tensor& weight = tensors[dense.weight()];
    for (int64_t i = 0; i < weight.size; ++i) weight.data[i] *= static_cast<float>(options.projection);
  };
  for (int b = 0; b < options.blocks; ++b) {
    const std::string name = absl::StrCat(prefix, ".", b);
    v1::SelfAttention::Block& block = *out.add_blocks();
    if (!bare) *block.mutable_attention_norm() = MakeNorm(name + ".attention_norm", width);
    if (options.latent > 0) {
      *block.mutable_latent() = MakeDense(name + ".latent", width, options.latent, v1::LINEAR);
    }
    const int memory = options.latent > 0 ? options.latent : width;
    *block.mutable_query() = MakeDense(name + ".query", width, options.heads * head_width, v1::LINEAR);
    *block.mutable_key() = MakeDense(name + ".key", memory, shared * head_width, v1::LINEAR);
    scale(block.query());
    scale(block.key());
    *block.mutable_value() =
        MakeDense(name + ".value", memory, shared * value_width, v1::LINEAR, /*bias=*/false);
    const int out_width = bare && options.out_width > 0 ? options.out_width : width;
    *block.mutable_out() = MakeDense(name + ".out", options.heads * value_width, out_width, v1::LINEAR);
    if (!bare) {
      *block.mutable_ffn_norm() = MakeNorm(name + ".ffn_norm", width);
      *block.add_ffn() = MakeDense(name + ".ffn.0", width, width + 3, v1::RELU);
      *block.add_ffn() = MakeDense(name + ".ffn.1", width + 3, width, v1::LINEAR);
    }
    width = out_width;
  }
  out.set_heads(options.heads);
  out.set_wiring(options.wiring);
  out.set_causal(options.causal);
  out.set_input_scale(1.5f);
  if (options.layout != v1::SinusoidalPositions::LAYOUT_UNSPECIFIED) {
    v1::SinusoidalPositions& positions = *out.mutable_sinusoidal();
    positions.set_origin(options.origin);
    positions.set_first(options.origin == v1::FROM_NEWEST ? 1 : 0);
    positions.set_base(1000);
    positions.set_layout(options.layout);
  } else if (options.positions > 0) {
    v1::LearnedPositions& positions = *out.mutable_positions();
    positions.set_tensor(AddTensor(prefix + ".positions", {options.positions, options.width}, 0.5));
    positions.set_origin(options.origin);
    if (options.first_row >= 0) positions.set_first_row(options.first_row);
    if (options.pad_row >= 0) positions.set_pad_row(options.pad_row);
  }
  if (options.input_norm) *out.mutable_input_norm() = MakeNorm(prefix + ".input_norm", options.width);
  if (options.final_norm) *out.mutable_final_norm() = MakeNorm(prefix + ".final_norm", width);
  if (options.pads != v1::SelfAttention::PADS_UNSPECIFIED) out.set_pads(options.pads);
  if (options.window > 0) out.set_window(options.window);
  if (options.key_value_heads > 0) out.set_key_value_heads(options.key_value_heads);
  if (options.linear) out.set_kernel(v1::SelfAttention::ELU_PLUS_ONE);
  return out;
}

FeatureBatch RandomBatch(const RandomModel& model, const BatchShape& shape, uint32_t seed) {
  const v1::BundleManifest& manifest = model.manifest;
  FeatureBatch batch;
  batch.candidates = shape.candidates;
  batch.sequence_lengths = shape.lengths;
  batch.sequence_lengths.resize(manifest.sequences_size());
  batch.full_lengths = batch.sequence_lengths;
  for (const v1::Feature& feature : manifest.features()) {
    std::mt19937 random(seed * 1000 + static_cast<uint32_t>(batch.columns.size()));
    std::normal_distribution<float> normal;
    int rows = feature.level() == v1::USER ? 1 : shape.candidates;
    for (int s = 0; s < manifest.sequences_size(); ++s) {
      if (manifest.sequences(s).name() == feature.sequence()) rows = batch.sequence_lengths[s];
    }
    uint32_t table_rows = 1;
    for (const v1::Table& table : manifest.tables()) {
      if (table.name() == feature.table()) {
        table_rows = static_cast<uint32_t>(model.tensors.find(table.tensor())->second.shape[0]);
      }
    }
    FeatureColumn& column = batch.columns.emplace_back();
    const bool bag =
        feature.id().bag() == v1::IdFeature::BAG_SUM || feature.id().bag() == v1::IdFeature::BAG_MEAN;
    if (bag) column.offsets.push_back(0);
    const int floats = feature.has_vector() ? static_cast<int>(feature.vector().dim()) : 1;
    for (int r = 0; r < rows; ++r) {
      if (feature.has_numeric() || feature.has_vector()) {
        for (int j = 0; j < floats; ++j) column.values.push_back(normal(random));
        continue;
      }
      const uint32_t ids = bag ? random() % 4 : 1;
      for (uint32_t i = 0; i < ids; ++i) column.rows.push_back(static_cast<int>(random() % table_rows));
      if (bag) column.offsets.push_back(static_cast<int>(column.rows.size()));
    }
  }
  return batch;
}

FeatureBatch PickCandidates(const v1::BundleManifest& manifest, const FeatureBatch& batch,
                            const std::vector<int>& order) {
  FeatureBatch out = batch;
  out.candidates = static_cast<int>(order.size());
  for (int f = 0; f < manifest.features_size(); ++f) {
    if (manifest.features(f).level() != v1::CANDIDATE) continue;
    const FeatureColumn& from = batch.columns[f];
    FeatureColumn& to = out.columns[f] = {};
    if (!from.offsets.empty()) to.offsets.push_back(0);
    const size_t width = from.values.size() / std::max(1, batch.candidates);
    for (const int c : order) {
      const int begin = from.offsets.empty() ? c : from.offsets[c];
      const int end = from.offsets.empty() ? c + 1 : from.offsets[c + 1];
      if (!from.rows.empty()) {
        to.rows.insert(to.rows.end(), from.rows.begin() + begin, from.rows.begin() + end);
      }
      if (!from.offsets.empty()) to.offsets.push_back(static_cast<int>(to.rows.size()));
      to.values.insert(to.values.end(), from.values.begin() + static_cast<int64_t>(c * width),
                       from.values.begin() + static_cast<int64_t>((c + 1) * width));
    }
  }
  return out;
}

}  // namespace dinghy::reference
