#include "tests/testing/reference/reference_layers.h"

#include <algorithm>
#include <cmath>

namespace dinghy::reference {

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

Row Normalize(const BatchNorm& norm, Row x) {
  for (size_t i = 0; i < x.size(); ++i) {
    x.at(i) = (x.at(i) - norm.mean.at(i)) / std::sqrt(norm.variance.at(i) + norm.epsilon);
    if (!norm.weight.empty()) x.at(i) *= norm.weight.at(i);
    if (!norm.bias.empty()) x.at(i) += norm.bias.at(i);
  }
  return x;
}

Row Activate(const Activation& activation, Row x) {
  const Row normed = activation.norm.empty() ? x : Normalize(activation.norm.at(0), x);
  for (size_t i = 0; i < x.size(); ++i) {
    double& v = x.at(i);
    const double alpha =
        activation.alpha.empty() ? 0 : activation.alpha.at(activation.alpha.size() == 1 ? 0 : i);
    switch (activation.kind) {
      case v1::RELU:
        v = std::max(0.0, v);
        break;
      case v1::SIGMOID:
        v = Sigmoid(v);
        break;
      case v1::TANH:
        v = std::tanh(v);
        break;
      case v1::SILU:
        v = v * Sigmoid(v);
        break;
      case v1::LEAKY_RELU:
        v = v > 0 ? v : activation.slope * v;
        break;
      case v1::PRELU:
        v = v > 0 ? v : alpha * v;
        break;
      case v1::DICE: {
        const double p = Sigmoid(normed.at(i));
        v = p * v + alpha * (1 - p) * v;
        break;
      }
      case v1::GELU_ERF:
        v = v * std::erfc(-v / std::sqrt(2.0)) / 2;
        break;
      case v1::GELU_TANH:
        v = v / 2 * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (v + 0.044715 * v * v * v)));
        break;
      default:
        break;
    }
  }
  return x;
}

double Calibrate(const v1::Output& output, double p) {
  if (output.has_negative_downsampling()) return p / (p + (1 - p) / output.negative_downsampling().rate());
  if (output.has_platt()) {
    return Sigmoid(output.platt().slope() * std::log(p / (1 - p)) + output.platt().intercept());
  }
  if (output.has_piecewise_linear()) {
    double x0 = 0, y0 = 0;
    const v1::PiecewiseLinear& line = output.piecewise_linear();
    for (int i = 0; i <= line.x_size(); ++i) {
      const double x1 = i < line.x_size() ? line.x(i) : 1, y1 = i < line.x_size() ? line.y(i) : 1;
      if (p <= x1) return y0 + (p - x0) / (x1 - x0) * (y1 - y0);
      x0 = x1, y0 = y1;
    }
  }
  return p;
}

Row Dense(const DenseLayer& layer, const Row& x) {
  Row out;
  for (size_t n = 0; n < layer.weight.size(); ++n) {
    double sum = layer.bias.empty() ? 0 : layer.bias.at(n);
    for (size_t k = 0; k < layer.weight.at(n).size(); ++k) sum += layer.weight.at(n).at(k) * x.at(k);
    out.push_back(sum);
  }
  if (!layer.norm.empty()) out = Normalize(layer.norm.at(0), out);
  return Activate(layer.activation, out);
}

Row Mlp(const std::vector<DenseLayer>& layers, Row x) {
  for (const DenseLayer& layer : layers) x = Dense(layer, x);
  return x;
}

Row LayerNorm(const Norm& norm, const Row& x) {
  double mean = 0, variance = 0;
  for (const double value : x) mean += value / static_cast<double>(x.size());
  for (const double value : x) variance += (value - mean) * (value - mean) / static_cast<double>(x.size());
  Row out;
  for (size_t i = 0; i < x.size(); ++i) {
    out.push_back((x.at(i) - mean) / std::sqrt(variance + norm.epsilon) * norm.weight.at(i) +
                  norm.bias.at(i));
  }
  return out;
}

void Softmax(Row& x) {
  if (x.empty()) return;
  const double largest = *std::max_element(x.begin(), x.end());
  double sum = 0;
  for (double& value : x) sum += value = std::exp(value - largest);
  for (double& value : x) value /= sum;
}

Row WeightedSum(const Row& weights, const Matrix& values, int width) {
  Row out(width, 0.0);
  for (size_t i = 0; i < values.size(); ++i) {
    for (int j = 0; j < width; ++j) out.at(j) += weights.at(i) * values.at(i).at(j);
  }
  return out;
}

}  // namespace dinghy::reference
