#include "model/layers/layer_scope.h"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include "absl/strings/str_join.h"

namespace dinghy {
namespace {

std::string ShapeText(const std::vector<int64_t>& shape) {
  return absl::StrCat("[",
                      absl::StrJoin(shape, ", ",
                                    [](std::string* out, int64_t size) {
                                      if (size < 0) {
                                        out->append("any");
                                      } else {
                                        absl::StrAppend(out, size);
                                      }
                                    }),
                      "]");
}

// y = (x W^T + b) * scale + shift, as weights of one product; each rounded once.
void Fold(const BatchNormWeights& norm, DenseWeights& dense) {
  const bool had_bias = !dense.bias.empty();
  dense.bias.resize(dense.out);
  for (int64_t row = 0; row < dense.out; ++row) {
    for (int64_t k = 0; k < dense.in; ++k) {
      float& weight = dense.weight[row * dense.in + k];
      weight = static_cast<float>(weight * norm.scale[row]);
    }
    const double bias = had_bias ? dense.bias[row] : 0.0;
    dense.bias[row] = static_cast<float>(bias * norm.scale[row] + norm.shift[row]);
  }
}

}  // namespace

void LayerScope::SetSubject(absl::string_view what, absl::string_view name) {
  subject_ = absl::StrCat(what, " \"", name, "\": ");
}

absl::Status LayerScope::AddValue(const ValueInfo& info) {
  if (info.name.empty()) return Error("expected a name, got none");
  if (info.width < 1 || info.width > kMaxValueWidth) {
    return Error("width: expected 1 to ", kMaxValueWidth, ", got ", info.width);
  }
  if (!index_.emplace(info.name, static_cast<int>(values_.size())).second) {
    return Error("expected a name of its own, got one that an earlier feature or layer has");
  }
  values_.push_back(info);
  return absl::OkStatus();
}

const std::vector<float>* LayerScope::PadRow(int value) const {
  const auto it = pad_rows_.find(value);
  return it == pad_rows_.end() ? nullptr : &it->second;
}

absl::StatusOr<v1::Sequence::Pad> LayerScope::FindPad(int sequence) const {
  const v1::Sequence::Pad pad = manifest_.sequences(sequence).pad();
  if (pad == v1::Sequence::PAD_UNSPECIFIED) {
    return Error("expected pad NONE, LEFT or RIGHT of ", Where(v1::SEQUENCE, sequence), ", got nothing");
  }
  return pad;
}

int LayerScope::FindValue(absl::string_view name) const {
  const auto it = index_.find(name);
  return it == index_.end() ? -1 : it->second;
}

int LayerScope::FindSequence(absl::string_view name) const {
  for (int i = 0; i < manifest_.sequences_size(); ++i) {
    if (manifest_.sequences(i).name() == name) return i;
  }
  return -1;
}

absl::StatusOr<int64_t> LayerScope::FindMaxLength(int sequence) const {
  const int64_t length = manifest_.sequences(sequence).max_length();
  if (length < 1 || length > kMaxAttentionLength) {
    return Error("expected a max_length of 1 to ", kMaxAttentionLength, " of ", Where(v1::SEQUENCE, sequence),
                 ", got ", length);
  }
  return length;
}

std::string LayerScope::Where(v1::Level level, int sequence) const {
  if (level == v1::SEQUENCE) return absl::StrCat("sequence \"", manifest_.sequences(sequence).name(), "\"");
  return level == v1::CANDIDATE ? "candidate level" : "user level";
}

absl::StatusOr<const Tensor*> LayerScope::FindAnyTensor(absl::string_view field, const std::string& name,
                                                        const std::vector<int64_t>& shape) const {
  const auto it = tensors_.find(name);
  if (it == tensors_.end()) {
    return Error(field, ": expected a tensor of the bundle, got \"", name, "\", which is in no file");
  }
  const Tensor& tensor = it->second;
  bool fits = tensor.shape.size() == shape.size();
  for (size_t i = 0; fits && i < shape.size(); ++i) {
    fits = shape[i] < 0 ? tensor.shape[i] >= 1 : tensor.shape[i] == shape[i];
  }
  if (!fits) {
    return Error(field, " \"", name, "\": expected shape ", ShapeText(shape), ", got ",
                 ShapeText(tensor.shape));
  }
  return &tensor;
}

absl::StatusOr<const Tensor*> LayerScope::FindTensor(absl::string_view field, const std::string& name,
                                                     const std::vector<int64_t>& shape) const {
  const absl::StatusOr<const Tensor*> tensor = FindAnyTensor(field, name, shape);
  if (tensor.ok() && (*tensor)->dtype != DType::kF32) {
    return Error(field, " \"", name, "\": expected dtype F32, as all but embedding tables, got ",
                 DTypeName((*tensor)->dtype));
  }
  return tensor;
}

absl::StatusOr<ops::EmbeddingTable> LayerScope::FindTable(const std::string& name) const {
  const auto& tables = manifest_.tables();
  const auto table =
      std::find_if(tables.begin(), tables.end(), [&name](const v1::Table& t) { return t.name() == name; });
  if (table == tables.end()) return Error("table: expected a table of the manifest, got \"", name, "\"");
  const std::string label = absl::StrCat("table \"", name, "\": ");
  if (!table->has_dim()) return Error(label, "dim: expected a number, got nothing");
  const absl::StatusOr<const Tensor*> found =
      FindAnyTensor(absl::StrCat(label, "tensor"), table->tensor(), {-1, table->dim()});
  if (!found.ok()) return found.status();
  const Tensor& tensor = **found;
  ops::EmbeddingTable out{.f32 = tensor.data.get(),
                          .f16 = tensor.f16.get(),
                          .i8 = tensor.i8.get(),
                          .rows = tensor.shape[0],
                          .width = table->dim()};
  if (tensor.dtype != DType::kI8) {
    if (table->scale().empty()) return out;
    return Error(label, "scale: expected none, since tensor \"", table->tensor(), "\" is ",
                 DTypeName(tensor.dtype), ", got \"", table->scale(), "\"");
  }
  if (table->scale().empty()) {
    return Error(label, "scale: expected a tensor's name, since tensor \"", table->tensor(),
                 "\" is I8, got nothing");
  }
  const absl::StatusOr<const Tensor*> scale =
      FindTensor(absl::StrCat(label, "scale"), table->scale(), {out.rows});
  if (!scale.ok()) return scale.status();
  out.scale = (*scale)->data.get();
  for (int64_t row = 0; row < out.rows; ++row) {
    if (std::isfinite(out.scale[row] * 128.0f)) continue;
    return Error(label, "scale \"", table->scale(),
                 "\": expected numbers whose product with -128 is finite, got ", out.scale[row], " in row ",
                 row);
  }
  return out;
}

absl::StatusOr<DenseWeights> LayerScope::FindDense(absl::string_view field, const v1::Dense& dense,
                                                   int64_t in) const {
  const absl::StatusOr<const Tensor*> weight =
      FindTensor(absl::StrCat(field, ".weight"), dense.weight(), {-1, in});
  if (!weight.ok()) return weight.status();
  DenseWeights out;
  out.in = in;
  out.out = (*weight)->shape[0];
  if (out.out > kMaxValueWidth)
    return Error(field, ": expected at most ", kMaxValueWidth, " outputs, got ", out.out);
  out.weight.assign((*weight)->data.get(), (*weight)->data.get() + out.out * in);
  if (!dense.has_bias()) {
    return Error(field, ".bias: expected a tensor's name, or \"\" for none, got nothing");
  }
  if (!dense.bias().empty()) {
    const absl::StatusOr<const Tensor*> bias =
        FindTensor(absl::StrCat(field, ".bias"), dense.bias(), {out.out});
    if (!bias.ok()) return bias.status();
    out.bias.assign((*bias)->data.get(), (*bias)->data.get() + out.out);
  }
  if (dense.has_norm()) {
    const absl::StatusOr<BatchNormWeights> norm =
        FindBatchNorm(absl::StrCat(field, ".norm"), dense.norm(), out.out);
    if (!norm.ok()) return norm.status();
    Fold(*norm, out);
  }
  absl::StatusOr<Activation> activation =
      FindActivation(absl::StrCat(field, ".activation"), dense.activation(),
                     absl::StrCat(field, ".parameters"), dense.parameters(), out.out);
  if (!activation.ok()) return activation.status();
  out.activation = *std::move(activation);
  return out;
}

absl::StatusOr<NormWeights> LayerScope::FindNorm(absl::string_view field, const v1::LayerNorm& norm,
                                                 int64_t width) const {
  const absl::StatusOr<const Tensor*> weight =
      FindTensor(absl::StrCat(field, ".weight"), norm.weight(), {width});
  if (!weight.ok()) return weight.status();
  const absl::StatusOr<const Tensor*> bias = FindTensor(absl::StrCat(field, ".bias"), norm.bias(), {width});
  if (!bias.ok()) return bias.status();
  if (absl::Status status = CheckEpsilon(field, norm.has_epsilon(), norm.epsilon()); !status.ok())
    return status;
  NormWeights out;
  out.weight = (*weight)->data.get();
  out.bias = (*bias)->data.get();
  out.epsilon = norm.epsilon();
  return out;
}

absl::StatusOr<BatchNormWeights> LayerScope::FindBatchNorm(absl::string_view field, const v1::BatchNorm& norm,
                                                           int64_t width) const {
  const float* parts[4] = {};  // mean, variance, weight, bias; null where there is none
  const std::tuple<absl::string_view, const std::string*, bool> names[4] = {
      {"mean", &norm.mean(), true},
      {"variance", &norm.variance(), true},
      {"weight", &norm.weight(), norm.has_weight()},
      {"bias", &norm.bias(), norm.has_bias()}};
  for (int i = 0; i < 4; ++i) {
    const auto& [name, tensor_name, present] = names[i];
    const std::string path = absl::StrCat(field, ".", name);
    if (!present) return Error(path, ": expected a tensor's name, or \"\" for none, got nothing");
    if (i >= 2 && tensor_name->empty()) continue;
    const absl::StatusOr<const Tensor*> tensor = FindTensor(path, *tensor_name, {width});
    if (!tensor.ok()) return tensor.status();
    parts[i] = (*tensor)->data.get();
  }
  if (absl::Status status = CheckEpsilon(field, norm.has_epsilon(), norm.epsilon()); !status.ok())
    return status;
  BatchNormWeights out;
  for (int64_t i = 0; i < width; ++i) {
    const double variance = parts[1][i];
    if (!(variance >= 0) || !std::isfinite(variance)) {
      return Error(field, ".variance \"", norm.variance(), "\": expected numbers of at least 0, got ",
                   variance, " in column ", i);
    }
    const double scale = (parts[2] != nullptr ? parts[2][i] : 1.0) / std::sqrt(variance + norm.epsilon());
    out.scale.push_back(scale);
    out.shift.push_back((parts[3] != nullptr ? parts[3][i] : 0.0) - parts[0][i] * scale);
    if (!std::isfinite(static_cast<float>(scale)) || !std::isfinite(static_cast<float>(out.shift.back()))) {
      return Error(field, ": expected a finite scale and shift, got an overflow in column ", i);
    }
  }
  return out;
}

absl::StatusOr<Activation> LayerScope::FindActivation(absl::string_view field, v1::Activation activation,
                                                      absl::string_view path,
                                                      const v1::ActivationParameters& parameters,
                                                      int64_t width) const {
  if (activation == v1::ACTIVATION_UNSPECIFIED || !v1::Activation_IsValid(activation)) {
    return Error(field, ": expected an activation, got ",
                 activation == v1::ACTIVATION_UNSPECIFIED ? "nothing" : absl::StrCat(activation));
  }
  const std::string name = v1::Activation_Name(activation);
  const bool takes_alpha = activation == v1::PRELU || activation == v1::DICE;
  for (const auto& [part, set, taken, needed] :
       {std::tuple{"slope", parameters.has_slope(), activation == v1::LEAKY_RELU, true},
        std::tuple{"alpha", !parameters.alpha().empty(), takes_alpha, true},
        std::tuple{"norm", parameters.has_norm(), activation == v1::DICE, false}}) {
    if (set && !taken) return Error(path, ".", part, ": expected none for ", name, ", got one");
    if (!set && taken && needed) return Error(path, ".", part, ": expected one for ", name, ", got nothing");
  }
  Activation out;
  out.kind = activation;
  out.width = width;
  out.slope = parameters.slope();
  if (!std::isfinite(out.slope)) return Error(path, ".slope: expected a finite number, got ", out.slope);
  if (takes_alpha) {
    const std::string alpha_path = absl::StrCat(path, ".alpha");
    const auto it = tensors_.find(parameters.alpha());
    const bool shared = it != tensors_.end() && it->second.shape == std::vector<int64_t>{1};
    if (!shared && it != tensors_.end() && it->second.shape != std::vector<int64_t>{width}) {
      return Error(alpha_path, " \"", parameters.alpha(), "\": expected shape [", width, "] or [1], got ",
                   ShapeText(it->second.shape));
    }
    const absl::StatusOr<const Tensor*> alpha =
        FindTensor(alpha_path, parameters.alpha(), {shared ? 1 : width});
    if (!alpha.ok()) return alpha.status();
    const float* data = (*alpha)->data.get();
    for (int64_t i = 0; i < width; ++i) out.alpha.push_back(data[shared ? 0 : i]);
  }
  if (activation == v1::DICE) {
    out.norm_scale.assign(width, 1.0f);
    out.norm_shift.assign(width, 0.0f);
    if (parameters.has_norm()) {
      const absl::StatusOr<BatchNormWeights> norm =
          FindBatchNorm(absl::StrCat(path, ".norm"), parameters.norm(), width);
      if (!norm.ok()) return norm.status();
      out.norm_scale.assign(norm->scale.begin(), norm->scale.end());
      out.norm_shift.assign(norm->shift.begin(), norm->shift.end());
    }
  }
  return out;
}

absl::Status LayerScope::CheckEpsilon(absl::string_view field, bool present, float epsilon) const {
  if (!present) return Error(field, ".epsilon: expected a number above 0, got nothing");
  if (epsilon > 0 && std::isfinite(epsilon)) return absl::OkStatus();
  return Error(field, ".epsilon: expected a number above 0, got ", epsilon);
}

void LayerScope::AddChoice(absl::string_view choice) { absl::StrAppend(&choices_, subject_, choice, "\n"); }

}  // namespace dinghy
