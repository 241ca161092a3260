#include "model/layers/layer_scope.h"

#include <cmath>

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

absl::StatusOr<const Tensor*> LayerScope::FindTensor(absl::string_view field, const std::string& name,
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

absl::StatusOr<DenseWeights> LayerScope::FindDense(absl::string_view field, const v1::Dense& dense,
                                                   int64_t in) const {
  const absl::StatusOr<const Tensor*> weight =
      FindTensor(absl::StrCat(field, ".weight"), dense.weight(), {-1, in});
  if (!weight.ok()) return weight.status();
  DenseWeights out;
  out.in = in;
  out.out = (*weight)->shape[0];
  out.weight = (*weight)->data.get();
  out.activation = dense.activation();
  if (out.out > kMaxValueWidth)
    return Error(field, ": expected at most ", kMaxValueWidth, " outputs, got ", out.out);
  if (!dense.has_bias()) {
    return Error(field, ".bias: expected a tensor's name, or \"\" for none, got nothing");
  }
  if (!dense.bias().empty()) {
    const absl::StatusOr<const Tensor*> bias =
        FindTensor(absl::StrCat(field, ".bias"), dense.bias(), {out.out});
    if (!bias.ok()) return bias.status();
    out.bias = (*bias)->data.get();
  }
  if (absl::Status status = CheckActivation(absl::StrCat(field, ".activation"), dense.activation());
      !status.ok()) {
    return status;
  }
  return out;
}

absl::StatusOr<NormWeights> LayerScope::FindNorm(absl::string_view field, const v1::LayerNorm& norm,
                                                 int64_t width) const {
  const absl::StatusOr<const Tensor*> weight =
      FindTensor(absl::StrCat(field, ".weight"), norm.weight(), {width});
  if (!weight.ok()) return weight.status();
  const absl::StatusOr<const Tensor*> bias = FindTensor(absl::StrCat(field, ".bias"), norm.bias(), {width});
  if (!bias.ok()) return bias.status();
  if (!norm.has_epsilon()) return Error(field, ".epsilon: expected a number above 0, got nothing");
  if (!(norm.epsilon() > 0) || !std::isfinite(norm.epsilon())) {
    return Error(field, ".epsilon: expected a number above 0, got ", norm.epsilon());
  }
  NormWeights out;
  out.weight = (*weight)->data.get();
  out.bias = (*bias)->data.get();
  out.epsilon = norm.epsilon();
  return out;
}

absl::Status LayerScope::CheckActivation(absl::string_view field, v1::Activation activation) const {
  switch (activation) {
    case v1::LINEAR:
    case v1::RELU:
    case v1::SIGMOID:
    case v1::TANH:
    case v1::SILU:
      return absl::OkStatus();
    default:
      return Error(field, ": expected an activation, got ",
                   activation == v1::ACTIVATION_UNSPECIFIED ? "nothing" : absl::StrCat(activation));
  }
}

void LayerScope::AddChoice(absl::string_view choice) { absl::StrAppend(&choices_, subject_, choice, "\n"); }

}  // namespace dinghy
