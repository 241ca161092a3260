#include "tests/testing/reference/reference_target_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace dinghy::reference {
namespace {

double Inner(const Row& a, const Row& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a.at(i) * b.at(i);
  return sum;
}

Row Times(const Matrix& matrix, const Row& x) {
  Row out;
  for (const Row& row : matrix) out.push_back(Inner(row, x));
  return out;
}

// Part `index` of `count` equal ones.
template <class T>
std::vector<T> Part(const std::vector<T>& whole, size_t index, size_t count) {
  const size_t size = whole.size() / count;
  return std::vector<T>(whole.begin() + static_cast<std::ptrdiff_t>(index * size),
                        whole.begin() + static_cast<std::ptrdiff_t>((index + 1) * size));
}

double Din(const ScoreFunction& score, Row query, const Row& key) {
  query.resize(query.size() + score.query_zeros, 0.0);
  Row difference, product;
  for (size_t i = 0; i < query.size(); ++i) {
    difference.push_back(query.at(i) - key.at(i));
    product.push_back(query.at(i) * key.at(i));
  }
  std::vector<Row> parts;
  for (const v1::DinScore::Part part : score.parts) {
    parts.push_back(part == v1::DinScore::QUERY        ? query
                    : part == v1::DinScore::KEY        ? key
                    : part == v1::DinScore::DIFFERENCE ? difference
                                                       : product);
  }
  return Mlp(score.layers, Concat(parts)).at(0);
}

double Score(const ScoreFunction& score, const Row& query, const Row& key) {
  switch (score.kind) {
    case ScoreFunction::kDin:
      return Din(score, query, key);
    case ScoreFunction::kAdditive: {
      Row hidden = Times(score.query_weight, query);
      const Row from_key = Times(score.key_weight, key);
      for (size_t i = 0; i < hidden.size(); ++i) {
        hidden.at(i) += from_key.at(i) + (score.bias.empty() ? 0 : score.bias.at(i));
      }
      return Inner(score.vector, Activate({.kind = score.activation, .alpha = {}, .norm = {}}, hidden));
    }
    case ScoreFunction::kBilinear:
      return Inner(query, Times(score.weight, key));
    default:
      return Inner(query, key);
  }
}

// log(elu(x) + 1), so that what underflows elsewhere does not here.
double LogFeature(double x) { return x > 0 ? std::log1p(x) : x; }

// f(q) . f(k) of each behavior, divided by their sum.
Row LinearWeights(const Row& query, const Matrix& keys, double scale) {
  Row logs;
  for (const Row& key : keys) {
    double largest = -std::numeric_limits<double>::infinity();
    Row terms;
    for (size_t i = 0; i < query.size(); ++i) {
      terms.push_back(LogFeature(query.at(i) * scale) + LogFeature(key.at(i)));
      largest = std::max(largest, terms.back());
    }
    double sum = 0;
    for (const double term : terms) sum += std::exp(term - largest);
    logs.push_back(largest + std::log(sum));
  }
  Softmax(logs);
  return logs;
}

// The weights of the behaviors, then those of the pads that take part.
Row Weights(const TargetAttention& attention, const Row& query, const Matrix& keys) {
  if (attention.score.kind == ScoreFunction::kLinear) {
    return LinearWeights(query, keys, attention.score.scale);
  }
  Row weights;
  for (const Row& key : keys) weights.push_back(Score(attention.score, query, key) * attention.score.scale);
  switch (attention.normalization) {
    case v1::TargetAttention::SOFTMAX:
      weights.insert(weights.end(), attention.masks.begin(), attention.masks.end());
      Softmax(weights);
      break;
    case v1::TargetAttention::SIGMOID_EACH:
      for (double& weight : weights) weight = Sigmoid(weight);
      break;
    case v1::TargetAttention::SILU_MEAN:
      for (double& weight : weights) weight *= Sigmoid(weight) / static_cast<double>(keys.size());
      break;
    default:
      break;
  }
  return weights;
}

// One head's pooled values, window by window, with the windows' divisors taken into `weights`.
Row Pool(const TargetAttention& attention, Row& weights, const Matrix& values, const Row& pad, int width) {
  if (attention.windows.empty()) {
    Matrix all = values;
    all.resize(weights.size(), pad);
    const Row out = WeightedSum(weights, all, width);
    weights.resize(values.size());
    return out;
  }
  const int length = static_cast<int>(values.size());
  std::vector<int> order;
  for (int i = 0; i < length; ++i) order.push_back(attention.windows_from_newest ? length - 1 - i : i);
  std::vector<Row> pieces;
  Row used(weights.size(), 0.0);
  int begin = 0;
  for (const int size : attention.windows) {
    const int end = std::min(begin + size, length);
    Row piece(weights.size(), 0.0);
    for (int i = begin; i < end; ++i) {
      used.at(order.at(i)) = piece.at(order.at(i)) = weights.at(order.at(i)) / std::max(1, end - begin);
    }
    pieces.push_back(WeightedSum(piece, values, width));
    begin = end;
  }
  weights = used;
  return Concat(pieces);
}

}  // namespace

Pooled Attend(const TargetAttention& attention, const Row& query, const Matrix& keys, const Matrix& values,
              int width) {
  Pooled out{.value = {}, .weights = Row(keys.size(), 0.0)};
  const bool latent = !attention.key_up.empty();
  for (int head = 0; head < attention.heads; ++head) {
    const int group = head / (attention.heads / attention.key_value_heads);
    const auto head_key = [&](const Row& row) {
      return latent ? Times(Part(attention.key_up, head, attention.heads), row)
                    : Part(row, group, attention.key_value_heads);
    };
    const auto head_value = [&](const Row& row) {
      return latent ? Times(Part(attention.value_up, head, attention.heads), row)
                    : Part(row, group, attention.key_value_heads);
    };
    const int head_width = static_cast<int>(latent ? attention.value_up.size() / attention.heads
                                                   : width / attention.key_value_heads);
    const Row pad = attention.pad_value.empty() ? Row() : head_value(attention.pad_value);
    if (keys.empty()) {
      const size_t pieces = std::max<size_t>(attention.windows.size(), 1);
      out.value = Concat({out.value, attention.empty_is_pad_value ? pad : Row(pieces * head_width, 0.0)});
      continue;
    }
    Matrix own_keys, own_values;
    for (const Row& key : keys) own_keys.push_back(head_key(key));
    for (const Row& value : values) own_values.push_back(head_value(value));
    Row weights = Weights(attention, Part(query, head, attention.heads), own_keys);
    out.value = Concat({out.value, Pool(attention, weights, own_values, pad, head_width)});
    for (size_t i = 0; i < keys.size(); ++i) out.weights.at(i) += weights.at(i) / attention.heads;
  }
  return out;
}

}  // namespace dinghy::reference
