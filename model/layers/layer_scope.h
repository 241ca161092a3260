// What a feature or layer sees while it is created: the manifest, the weights, and the values before it. It
// also words the errors.
//
//   scope.SetSubject("layer", "tower");
//   ASSIGN_OR_RETURN(DenseWeights dense, scope.FindDense("dense", message, /*in=*/80));
//
// Thread-compatible; lives only while the model is created.
#ifndef DINGHY_MODEL_LAYERS_LAYER_SCOPE_H_
#define DINGHY_MODEL_LAYERS_LAYER_SCOPE_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "model/layers/activation.h"
#include "model/layers/layer.h"
#include "model/model_options.h"
#include "model/ops/gather.h"
#include "model/tensor.h"
#include "proto/bundle.pb.h"

namespace dinghy {

// Wider values are a mistake in the manifest, and would overflow sizes further on.
inline constexpr int64_t kMaxValueWidth = 1 << 20;

// Attention makes primitives for every bucket of histories up to max_length; the limit bounds them.
inline constexpr int64_t kMaxAttentionLength = 4096;

// A dense layer's weights, a batch norm behind the product folded into them.
struct DenseWeights {
  std::vector<float> weight = {};  // [out, in]
  std::vector<float> bias = {};    // [out], or empty
  int64_t in = 0;
  int64_t out = 0;
  Activation activation = {};

  const float* bias_or_null() const { return bias.empty() ? nullptr : bias.data(); }
  int64_t parameters() const {
    return in * out + static_cast<int64_t>(bias.size()) + activation.parameters();
  }
};

// A batch norm: x * scale + shift, column by column.
struct BatchNormWeights {
  std::vector<double> scale;  // [width]
  std::vector<double> shift;  // [width]
};

// A layer norm's weights, borrowed from the TensorMap.
struct NormWeights {
  const float* weight = nullptr;  // [width]
  const float* bias = nullptr;    // [width]
  float epsilon = 0;
};

class LayerScope {
 public:
  // Manifest and tensors must outlive the scope.
  LayerScope(const v1::BundleManifest& manifest, const TensorMap& tensors, const ModelOptions& options = {})
      : manifest_(manifest), tensors_(tensors), options_(options) {}

  const v1::BundleManifest& manifest() const { return manifest_; }
  const ModelOptions& options() const { return options_; }

  // What errors from now on are about: `layer "tower": `.
  void SetSubject(absl::string_view what, absl::string_view name);
  template <typename... Parts>
  absl::Status Error(const Parts&... parts) const {
    return absl::InvalidArgumentError(absl::StrCat(subject_, parts...));
  }

  // Makes a value known under its name; its index is the number of values before. Error: the name is taken
  // or empty, or the width is out of range.
  absl::Status AddValue(const ValueInfo& info);
  const std::vector<ValueInfo>& values() const { return values_; }
  // What a pad behavior has as that value, [width]: a constant of the model, since only real behaviors are
  // computed. Null where it has none: the sequence is not padded, or the value is not defined by the behavior
  // alone.
  void SetPadRow(int value, std::vector<float> row) { pad_rows_[value] = std::move(row); }
  const std::vector<float>* PadRow(int value) const;
  // The sequence's pad behaviors, v1::Sequence::NONE where it has none. Error: the manifest does not say.
  absl::StatusOr<v1::Sequence::Pad> FindPad(int sequence) const;

  // Index of the value, or -1.
  int FindValue(absl::string_view name) const;
  // Index in manifest().sequences(), or -1.
  int FindSequence(absl::string_view name) const;
  // The sequence's max_length. Error: it is absent or beyond what exact attention is for.
  absl::StatusOr<int64_t> FindMaxLength(int sequence) const;
  // The words for where a value lives: "candidate level", `sequence "clicks"`.
  std::string Where(v1::Level level, int sequence) const;

  // The F32 tensor of that name; `shape` is what it must be, -1 where any size of at least 1 is right.
  // `field` is the manifest's field that names it.
  absl::StatusOr<const Tensor*> FindTensor(absl::string_view field, const std::string& name,
                                           const std::vector<int64_t>& shape) const;
  // The embedding table of that name, F32, F16 or I8. Errors: it is not in the manifest or without a dim, its
  // tensor is missing or not [rows, dim], or its scale does not fit the dtype.
  absl::StatusOr<ops::EmbeddingTable> FindTable(const std::string& name) const;
  absl::StatusOr<DenseWeights> FindDense(absl::string_view field, const v1::Dense& dense, int64_t in) const;
  absl::StatusOr<NormWeights> FindNorm(absl::string_view field, const v1::LayerNorm& norm,
                                       int64_t width) const;
  absl::StatusOr<BatchNormWeights> FindBatchNorm(absl::string_view field, const v1::BatchNorm& norm,
                                                 int64_t width) const;
  // `field` and `path` are the manifest's fields of the two.
  absl::StatusOr<Activation> FindActivation(absl::string_view field, v1::Activation activation,
                                            absl::string_view path,
                                            const v1::ActivationParameters& parameters, int64_t width) const;

  // Collects what the probes of ops chose; part of numerics_id.
  void AddChoice(absl::string_view choice);
  const std::string& choices() const { return choices_; }

 private:
  // The tensor of that name and shape, whatever its dtype.
  absl::StatusOr<const Tensor*> FindAnyTensor(absl::string_view field, const std::string& name,
                                              const std::vector<int64_t>& shape) const;
  absl::Status CheckEpsilon(absl::string_view field, bool present, float epsilon) const;

  const v1::BundleManifest& manifest_;
  const TensorMap& tensors_;
  const ModelOptions options_;
  std::string subject_;
  std::vector<ValueInfo> values_;
  std::map<int, std::vector<float>> pad_rows_;  // by value
  std::map<std::string, int, std::less<>> index_;
  std::string choices_;
};

}  // namespace dinghy

#endif  // DINGHY_MODEL_LAYERS_LAYER_SCOPE_H_
