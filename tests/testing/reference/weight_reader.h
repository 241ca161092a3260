// The weights that a manifest's messages name, as the references take them.
//
//   DenseLayer layer = WeightReader(tensors).ReadDense(message);
//
// What is missing throws or crashes. Thread-safe.
#ifndef DINGHY_TESTS_TESTING_REFERENCE_WEIGHT_READER_H_
#define DINGHY_TESTS_TESTING_REFERENCE_WEIGHT_READER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "model/tensor.h"
#include "proto/bundle.pb.h"
#include "tests/testing/reference/matrix.h"
#include "tests/testing/reference/reference_layers.h"
#include "tests/testing/reference/reference_target_attention.h"

namespace dinghy::reference {

class WeightReader {
 public:
  explicit WeightReader(const TensorMap& tensors) : tensors_(tensors) {}

  Row ReadRow(const std::string& tensor, int64_t row) const {
    const Tensor& t = tensors_.find(tensor)->second;
    const int64_t width = t.shape.back();
    return Row(t.data.get() + row * width, t.data.get() + (row + 1) * width);
  }
  Matrix ReadMatrix(const std::string& tensor) const {
    Matrix out;
    for (int64_t r = 0; r < tensors_.find(tensor)->second.shape.at(0); ++r) out.push_back(ReadRow(tensor, r));
    return out;
  }
  DenseLayer ReadDense(const v1::Dense& dense) const {
    return {.weight = ReadMatrix(dense.weight()),
            .bias = dense.bias().empty() ? Row() : ReadRow(dense.bias(), 0),
            .norm = ReadNorms(dense.has_norm(), dense.norm()),
            .activation = ReadActivation(dense.activation(), dense.parameters())};
  }
  std::vector<BatchNorm> ReadNorms(bool present, const v1::BatchNorm& norm) const {
    if (!present) return {};
    return {{.mean = ReadRow(norm.mean(), 0),
             .variance = ReadRow(norm.variance(), 0),
             .weight = norm.weight().empty() ? Row() : ReadRow(norm.weight(), 0),
             .bias = norm.bias().empty() ? Row() : ReadRow(norm.bias(), 0),
             .epsilon = norm.epsilon()}};
  }
  Activation ReadActivation(v1::Activation kind, const v1::ActivationParameters& parameters) const {
    return {.kind = kind,
            .slope = parameters.slope(),
            .alpha = parameters.alpha().empty() ? Row() : ReadRow(parameters.alpha(), 0),
            .norm = ReadNorms(parameters.has_norm(), parameters.norm())};
  }
  template <class Denses>
  std::vector<DenseLayer> ReadDenses(const Denses& denses) const {
    std::vector<DenseLayer> out;
    for (const v1::Dense& dense : denses) out.push_back(ReadDense(dense));
    return out;
  }
  Norm ReadNorm(const v1::LayerNorm& norm) const {
    return {.weight = ReadRow(norm.weight(), 0), .bias = ReadRow(norm.bias(), 0), .epsilon = norm.epsilon()};
  }

  // Of a TargetAttention or a branch of its `auto`.
  template <class Message>
  ScoreFunction ReadScore(const Message& message) const {
    ScoreFunction out{.kind = ScoreFunction::kDot, .scale = message.scale()};
    if (message.has_din()) {
      out.kind = ScoreFunction::kDin;
      for (const int part : message.din().parts()) {
        out.parts.push_back(static_cast<v1::DinScore::Part>(part));
      }
      out.layers = ReadDenses(message.din().layers());
      out.query_zeros = static_cast<int>(message.din().query_zeros());
    } else if (message.has_additive()) {
      out.kind = ScoreFunction::kAdditive;
      out.query_weight = ReadMatrix(message.additive().query_weight());
      out.key_weight = ReadMatrix(message.additive().key_weight());
      if (!message.additive().bias().empty()) out.bias = ReadRow(message.additive().bias(), 0);
      out.vector = ReadRow(message.additive().vector(), 0);
      out.activation = message.additive().activation();
    } else if (message.has_bilinear()) {
      out.kind = ScoreFunction::kBilinear;
      out.weight = ReadMatrix(message.bilinear().weight());
    }
    return out;
  }

 private:
  const TensorMap& tensors_;
};

}  // namespace dinghy::reference

#endif  // DINGHY_TESTS_TESTING_REFERENCE_WEIGHT_READER_H_
