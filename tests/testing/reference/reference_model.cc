#include "tests/testing/reference/reference_model.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "google/protobuf/repeated_ptr_field.h"
#include "tests/testing/reference/reference_layers.h"
#include "tests/testing/reference/reference_self_attention.h"
#include "tests/testing/reference/reference_target_attention.h"
#include "tests/testing/reference/weight_reader.h"

namespace dinghy::reference {
namespace {

using Names = google::protobuf::RepeatedPtrField<std::string>;

constexpr double kNothing = std::numeric_limits<double>::quiet_NaN();

// A value's rows, and whether all other rows may share its only one. At a padded sequence there is one row
// for each of its max_length places; what pad behaviors have not is NaN.
struct LevelRows {
  Matrix rows;
  bool user = false;
  int width = 0;
  int sequence = -1;  // index, at sequence level
};

class Interpreter {
 public:
  Interpreter(const v1::BundleManifest& manifest, const TensorMap& tensors, const FeatureBatch& batch)
      : manifest_(manifest), weights_(tensors), batch_(batch) {}

  ReferenceResult Run() {
    for (int f = 0; f < manifest_.features_size(); ++f) {
      Keep(manifest_.features(f).name(), ReadFeature(manifest_.features(f), batch_.columns.at(f)));
    }
    for (const v1::Layer& layer : manifest_.layers()) Keep(layer.name(), RunLayer(layer));
    for (const v1::Output& output : manifest_.outputs()) {
      const LevelRows& value = values_.at(output.input());
      Row scores;
      for (int c = 0; c < batch_.candidates; ++c) {
        const double raw = value.rows.at(value.user ? 0 : c).at(0);
        scores.push_back(output.link() == v1::Output::SIGMOID ? Calibrate(output, Sigmoid(raw)) : raw);
      }
      result_.scores.push_back(scores);
    }
    return std::move(result_);
  }

 private:
  void Keep(const std::string& name, LevelRows value) {
    result_.values[name] = Real(value);
    values_[name] = std::move(value);
  }

  // Whether each of the value's rows is a real behavior's.
  std::vector<bool> IsReal(const LevelRows& value) const {
    std::vector<bool> real(value.rows.size(), true);
    if (value.sequence < 0) return real;
    const bool left = manifest_.sequences(value.sequence).pad() == v1::Sequence::LEFT;
    const size_t pads = real.size() - batch_.sequence_lengths.at(value.sequence);
    std::fill_n(left ? real.begin() : real.end() - pads, pads, false);
    return real;
  }
  Matrix Real(const LevelRows& value) const {
    const std::vector<bool> real = IsReal(value);
    Matrix out;
    for (size_t r = 0; r < real.size(); ++r) {
      if (real.at(r)) out.push_back(value.rows.at(r));
    }
    return out;
  }
  // Fills the feature's real rows up to max_length where its sequence is padded.
  void AddPads(const v1::Feature& feature, const std::string& tensor, LevelRows& value) const {
    const v1::Sequence& sequence = manifest_.sequences(value.sequence);
    if (sequence.pad() == v1::Sequence::NONE) return;
    Row row(value.width, 0.0);
    if (feature.has_time_since()) row.assign(value.width, kNothing);
    if (feature.id().bag() == v1::IdFeature::SINGLE) row = weights_.ReadRow(tensor, feature.id().pad_row());
    const Matrix pads(sequence.max_length() - value.rows.size(), row);
    const bool left = sequence.pad() == v1::Sequence::LEFT;
    value.rows.insert(left ? value.rows.begin() : value.rows.end(), pads.begin(), pads.end());
  }

  LevelRows ReadFeature(const v1::Feature& feature, const FeatureColumn& column) const {
    LevelRows out;
    out.user = feature.level() == v1::USER;
    int64_t rows = out.user ? 1 : batch_.candidates;
    for (int s = 0; s < manifest_.sequences_size(); ++s) {
      if (feature.sequence() != manifest_.sequences(s).name()) continue;
      out.sequence = s;
      rows = batch_.sequence_lengths.at(s);
    }
    std::string tensor;
    for (const v1::Table& table : manifest_.tables()) {
      if (table.name() == feature.table()) {
        tensor = table.tensor();
        out.width = static_cast<int>(table.dim());
      }
    }
    if (feature.has_numeric()) out.width = 1;
    if (feature.has_vector()) out.width = static_cast<int>(feature.vector().dim());
    for (int64_t r = 0; r < rows; ++r) {
      if (feature.has_numeric() || feature.has_vector()) {
        Row row;
        for (int j = 0; j < out.width; ++j) row.push_back(column.values.at(r * out.width + j));
        out.rows.push_back(row);
      } else if (feature.id().bag() == v1::IdFeature::BAG_SUM ||
                 feature.id().bag() == v1::IdFeature::BAG_MEAN) {
        Row row(out.width, 0.0);
        const int begin = column.offsets.at(r), end = column.offsets.at(r + 1);
        for (int i = begin; i < end; ++i) {
          const Row one = weights_.ReadRow(tensor, column.rows.at(i));
          const double divisor = feature.id().bag() == v1::IdFeature::BAG_MEAN ? end - begin : 1;
          for (int j = 0; j < out.width; ++j) row.at(j) += one.at(j) / divisor;
        }
        out.rows.push_back(row);
      } else {
        out.rows.push_back(weights_.ReadRow(tensor, column.rows.at(r)));
      }
    }
    if (out.sequence >= 0) AddPads(feature, tensor, out);
    return out;
  }

  LevelRows Concatenate(const Names& names) const {
    LevelRows out;
    out.user = true;
    size_t rows = 1;
    for (const std::string& name : names) {
      const LevelRows& value = values_.at(name);
      out.width += value.width;
      if (value.user) continue;
      out.user = false;
      out.sequence = value.sequence;
      rows = value.rows.size();
    }
    for (size_t r = 0; r < rows; ++r) {
      std::vector<Row> parts;
      for (const std::string& name : names) {
        const LevelRows& value = values_.at(name);
        parts.push_back(value.rows.at(value.user ? 0 : r));
      }
      out.rows.push_back(Concat(parts));
    }
    return out;
  }

  // f(row) over all rows.
  template <class F>
  static LevelRows ForEachRow(const LevelRows& x, int width, F f) {
    LevelRows out{.rows = {}, .user = x.user, .width = width, .sequence = x.sequence};
    for (const Row& row : x.rows) out.rows.push_back(f(row));
    return out;
  }

  LevelRows RunLayer(const v1::Layer& layer) {
    const LevelRows x = layer.inputs().empty() ? LevelRows{} : Concatenate(layer.inputs());
    switch (layer.kind_case()) {
      case v1::Layer::kDense: {
        const DenseLayer dense = weights_.ReadDense(layer.dense());
        return ForEachRow(x, static_cast<int>(dense.weight.size()),
                          [&](const Row& r) { return Dense(dense, r); });
      }
      case v1::Layer::kMlp: {
        const std::vector<DenseLayer> layers = weights_.ReadDenses(layer.mlp().layers());
        return ForEachRow(x, static_cast<int>(layers.back().weight.size()),
                          [&](const Row& r) { return Mlp(layers, r); });
      }
      case v1::Layer::kLayerNorm: {
        const Norm norm = weights_.ReadNorm(layer.layer_norm());
        return ForEachRow(x, x.width, [&](const Row& r) { return LayerNorm(norm, r); });
      }
      case v1::Layer::kActivation:
        return ForEachRow(x, x.width, [&](const Row& r) {
          return Activate(
              weights_.ReadActivation(layer.activation().function(), layer.activation().parameters()), r);
        });
      case v1::Layer::kBatchNorm: {
        const BatchNorm norm = weights_.ReadNorms(true, layer.batch_norm()).at(0);
        return ForEachRow(x, x.width, [&](const Row& r) { return Normalize(norm, r); });
      }
      case v1::Layer::kDot:
        return RunDot(layer.dot());
      case v1::Layer::kAdd:
        return Elementwise(layer.add().terms(), [](double a, double b) { return a + b; });
      case v1::Layer::kMultiply:
        return Elementwise(layer.multiply().terms(), [](double a, double b) { return a * b; });
      case v1::Layer::kPooling:
        return RunPooling(layer.pooling(), x);
      case v1::Layer::kSelfAttention:
        return RunSelfAttention(layer.self_attention(), x);
      default:
        return RunTargetAttention(layer);
    }
  }

  template <class Terms, class F>
  LevelRows Elementwise(const Terms& terms, F f) const {
    LevelRows out;
    std::vector<LevelRows> inputs;
    size_t rows = 1;
    out.user = true;
    for (const v1::InputList& term : terms) {
      inputs.push_back(Concatenate(term.inputs()));
      if (inputs.back().user) continue;
      out.user = false;
      out.sequence = inputs.back().sequence;
      rows = inputs.back().rows.size();
    }
    out.width = inputs.at(0).width;
    for (size_t r = 0; r < rows; ++r) {
      Row row = inputs.at(0).rows.at(inputs.at(0).user ? 0 : r);
      for (size_t t = 1; t < inputs.size(); ++t) {
        const Row& other = inputs.at(t).rows.at(inputs.at(t).user ? 0 : r);
        for (size_t j = 0; j < row.size(); ++j) row.at(j) = f(row.at(j), other.at(j));
      }
      out.rows.push_back(row);
    }
    return out;
  }

  LevelRows RunDot(const v1::Dot& dot) const {
    const LevelRows left = Concatenate(dot.left()), right = Concatenate(dot.right());
    LevelRows out{.rows = {}, .user = left.user && right.user, .width = 1, .sequence = -1};
    out.sequence = (left.user ? right : left).sequence;
    for (size_t r = 0; r < (left.user ? right : left).rows.size(); ++r) {
      const Row& a = left.rows.at(left.user ? 0 : r);
      const Row& b = right.rows.at(right.user ? 0 : r);
      double sum = 0;
      for (size_t j = 0; j < a.size(); ++j) sum += a.at(j) * b.at(j);
      out.rows.push_back({sum});
    }
    return out;
  }

  LevelRows RunPooling(const v1::Pooling& pooling, const LevelRows& x) const {
    Matrix real = Real(x);
    // The mean of pad behaviors, and the last of them.
    if (real.empty() && pooling.empty() == v1::PAD_VALUE) real = {x.rows.back()};
    const double n = static_cast<double>(real.size());
    Row weights(real.size(), pooling.method() == v1::Pooling::SUM ? 1.0 : 1.0 / n);
    if (pooling.method() == v1::Pooling::LAST && !real.empty()) {
      std::fill(weights.begin(), weights.end(), 0.0);
      weights.back() = 1;
    }
    return {.rows = {WeightedSum(weights, real, x.width)}, .user = true, .width = x.width};
  }

  // The position of the row at `place`, the `index`-th real behavior.
  Row PositionRow(const v1::SelfAttention& attention, const LevelRows& x, int place, int index) const {
    const int from_newest = batch_.sequence_lengths.at(x.sequence) - 1 - index;
    if (attention.has_sinusoidal()) {
      const v1::SinusoidalPositions& positions = attention.sinusoidal();
      const int n = positions.origin() == v1::FROM_NEWEST ? from_newest : index;
      return SinusoidalRow(positions, positions.first() + n, x.width);
    }
    const v1::LearnedPositions& positions = attention.positions();
    int row = positions.origin() == v1::FROM_NEWEST ? from_newest : index;
    if (positions.origin() == v1::FROM_SLOT) row = static_cast<int>(positions.first_row()) + place;
    return weights_.ReadRow(positions.tensor(), row);
  }

  void AddPositions(const v1::SelfAttention& attention, LevelRows& x) const {
    const std::vector<bool> real = IsReal(x);
    int index = 0;
    for (size_t i = 0; i < x.rows.size(); ++i) {
      Row& row = x.rows.at(i);
      for (double& value : row) value *= attention.input_scale();
      if (attention.position_kind_case() != v1::SelfAttention::POSITION_KIND_NOT_SET) {
        Row position(row.size(), kNothing);
        if (real.at(i)) position = PositionRow(attention, x, static_cast<int>(i), index++);
        if (!real.at(i) && attention.positions().has_pad_row()) {
          position = weights_.ReadRow(attention.positions().tensor(), attention.positions().pad_row());
        }
        for (size_t j = 0; j < row.size(); ++j) row.at(j) += position.at(j);
      }
      if (!real.at(i) && attention.pads() == v1::SelfAttention::ZEROED) row.assign(row.size(), 0.0);
    }
  }

  LevelRows RunSelfAttention(const v1::SelfAttention& attention, LevelRows x) const {
    AddPositions(attention, x);
    const auto normalize = [&](bool present, const v1::LayerNorm& message) {
      if (!present) return;
      for (Row& row : x.rows) row = LayerNorm(weights_.ReadNorm(message), row);
    };
    normalize(attention.has_input_norm(), attention.input_norm());
    SelfAttentionOptions options{.heads = static_cast<int>(attention.heads()),
                                 .key_value_heads = static_cast<int>(attention.heads()),
                                 .causal = attention.causal(),
                                 .window = static_cast<int>(attention.window()),
                                 .linear = attention.kernel() == v1::SelfAttention::ELU_PLUS_ONE,
                                 .wiring = attention.wiring(),
                                 .pads = v1::SelfAttention::MASKED,
                                 .real = IsReal(x)};
    if (attention.has_key_value_heads())
      options.key_value_heads = static_cast<int>(attention.key_value_heads());
    if (attention.pads() != v1::SelfAttention::PADS_UNSPECIFIED) options.pads = attention.pads();
    for (const v1::SelfAttention::Block& block : attention.blocks()) {
      SelfAttentionBlock weights{.query = weights_.ReadDense(block.query()),
                                 .key = weights_.ReadDense(block.key()),
                                 .value = weights_.ReadDense(block.value()),
                                 .out = weights_.ReadDense(block.out()),
                                 .ffn = weights_.ReadDenses(block.ffn())};
      if (block.has_latent()) weights.latent = {weights_.ReadDense(block.latent())};
      if (block.has_attention_norm()) weights.attention_norm = {weights_.ReadNorm(block.attention_norm())};
      if (block.has_ffn_norm()) weights.ffn_norm = {weights_.ReadNorm(block.ffn_norm())};
      x.rows = RunSelfAttentionBlock(weights, options, x.rows);
      x.width = static_cast<int>(weights.out.weight.size());
    }
    normalize(attention.has_final_norm(), attention.final_norm());
    if (options.pads == v1::SelfAttention::MASKED) {
      for (size_t i = 0; i < x.rows.size(); ++i) {
        if (!options.real.at(i)) x.rows.at(i).assign(x.width, kNothing);
      }
    }
    return x;
  }

  TargetAttention ReadTargetAttention(const v1::TargetAttention& message, int sequence,
                                      const Row& pad) const {
    TargetAttention out{.score = weights_.ReadScore(message), .normalization = message.normalization()};
    if (message.has_linear()) out.score.kind = ScoreFunction::kLinear;
    if (message.has_auto_()) {
      const bool is_short = batch_.full_lengths.at(sequence) <= static_cast<int>(message.auto_().max_short());
      out.score =
          weights_.ReadScore(is_short ? message.auto_().short_history() : message.auto_().long_history());
      out.score.scale *= message.scale();
    }
    if (message.has_heads()) out.heads = static_cast<int>(message.heads());
    out.key_value_heads =
        message.has_key_value_heads() ? static_cast<int>(message.key_value_heads()) : out.heads;
    if (message.has_latent()) {
      out.key_up = weights_.ReadMatrix(message.latent().key_up());
      out.value_up = weights_.ReadMatrix(message.latent().value_up());
    }
    out.windows.assign(message.windows().sizes().begin(), message.windows().sizes().end());
    out.windows_from_newest = message.windows().origin() == v1::FROM_NEWEST;
    out.pad_value = pad;
    out.empty_is_pad_value = message.empty() == v1::PAD_VALUE;
    if (message.has_mask()) {
      const int pads =
          static_cast<int>(manifest_.sequences(sequence).max_length()) - batch_.sequence_lengths.at(sequence);
      out.masks.assign(pads, message.mask());
    }
    return out;
  }

  LevelRows RunTargetAttention(const v1::Layer& layer) {
    const v1::TargetAttention& message = layer.target_attention();
    const LevelRows queries = Concatenate(message.query());
    const LevelRows keys = Concatenate(message.keys());
    const LevelRows values = Concatenate(message.values());
    const Matrix real_keys = Real(keys), real_values = Real(values);
    const std::vector<bool> real = IsReal(values);
    const auto pad = std::find(real.begin(), real.end(), false);
    const TargetAttention attention = ReadTargetAttention(
        message, keys.sequence, pad == real.end() ? Row() : values.rows.at(pad - real.begin()));
    LevelRows out{.rows = {}, .user = queries.user, .width = 0};
    for (const Row& query : queries.rows) {
      const Pooled pooled = Attend(attention, query, real_keys, real_values, values.width);
      out.rows.push_back(pooled.value);
      out.width = static_cast<int>(pooled.value.size());
      result_.attention[layer.name()].push_back(pooled.weights);
    }
    return out;
  }

  const v1::BundleManifest& manifest_;
  const WeightReader weights_;
  const FeatureBatch& batch_;
  std::map<std::string, LevelRows> values_;
  ReferenceResult result_;
};

}  // namespace

ReferenceResult RunReferenceModel(const v1::BundleManifest& manifest, const TensorMap& tensors,
                                  const FeatureBatch& batch) {
  return Interpreter(manifest, tensors, batch).Run();
}

}  // namespace dinghy::reference
