#include "tests/testing/reference/reference_self_attention.h"

#include <cmath>
#include <cstdlib>

namespace dinghy::reference {
namespace {

Matrix Plus(const Matrix& a, const Matrix& b) {
  Matrix out = a;
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t j = 0; j < a.at(i).size(); ++j) out.at(i).at(j) += b.at(i).at(j);
  }
  return out;
}

Matrix LayerNorm(const std::vector<Norm>& norm, const Matrix& x) {
  Matrix out;
  for (const Row& row : x) out.push_back(LayerNorm(norm.at(0), row));
  return out;
}

Matrix Ffn(const std::vector<DenseLayer>& layers, const Matrix& x) {
  Matrix out;
  for (const Row& row : x) out.push_back(Mlp(layers, row));
  return out;
}

bool Sees(const SelfAttentionOptions& options, int query, int key) {
  if (options.causal && key > query) return false;
  if (options.window > 0 && std::abs(query - key) >= options.window) return false;
  return options.pads != v1::SelfAttention::MASKED || options.real.at(key);
}

double EluPlusOne(double x) { return x > 0 ? x + 1 : std::exp(x); }

// The columns of one head.
Row Head(const Row& x, int head, int heads) {
  const size_t width = x.size() / heads;
  return Row(x.begin() + head * width, x.begin() + (head + 1) * width);
}

// The weights of one query over the keys that it sees.
Row Weights(const SelfAttentionOptions& options, Row query, const std::vector<Row>& keys) {
  Row weights;
  for (const Row& key : keys) {
    double score = 0;
    for (size_t d = 0; d < query.size(); ++d) {
      score += options.linear ? EluPlusOne(query.at(d)) * EluPlusOne(key.at(d))
                              : query.at(d) * key.at(d) / std::sqrt(static_cast<double>(query.size()));
    }
    weights.push_back(score);
  }
  if (!options.linear) {
    Softmax(weights);
    return weights;
  }
  double sum = 0;
  for (const double weight : weights) sum += weight;
  for (double& weight : weights) weight /= sum;
  return weights;
}

Matrix MultiHead(const SelfAttentionBlock& block, const SelfAttentionOptions& options, const Matrix& query,
                 const Matrix& memory) {
  const int count = static_cast<int>(query.size());
  Matrix q, k, v, out;
  for (const Row& row : query) q.push_back(Dense(block.query, row));
  for (const Row& row : memory) {
    const Row source = Mlp(block.latent, row);
    k.push_back(Dense(block.key, source));
    v.push_back(Dense(block.value, source));
  }
  for (int i = 0; i < count; ++i) {
    std::vector<Row> attended;
    for (int head = 0; head < options.heads; ++head) {
      const int shared = head / (options.heads / options.key_value_heads);
      std::vector<Row> keys, values;
      for (int j = 0; j < count; ++j) {
        if (!Sees(options, i, j)) continue;
        keys.push_back(Head(k.at(j), shared, options.key_value_heads));
        values.push_back(Head(v.at(j), shared, options.key_value_heads));
      }
      const int width = static_cast<int>(v.at(0).size()) / options.key_value_heads;
      attended.push_back(
          WeightedSum(Weights(options, Head(q.at(i), head, options.heads), keys), values, width));
    }
    out.push_back(Dense(block.out, Concat(attended)));
  }
  return out;
}

Matrix RunWiring(const SelfAttentionBlock& block, const SelfAttentionOptions& options, const Matrix& x) {
  switch (options.wiring) {
    case v1::SelfAttention::BARE:
      return MultiHead(block, options, x, x);
    case v1::SelfAttention::PRE_NORM: {
      const Matrix normed = LayerNorm(block.attention_norm, x);
      const Matrix attended = Plus(x, MultiHead(block, options, normed, normed));
      return Plus(attended, Ffn(block.ffn, LayerNorm(block.ffn_norm, attended)));
    }
    case v1::SelfAttention::POST_NORM: {
      const Matrix attended = LayerNorm(block.attention_norm, Plus(x, MultiHead(block, options, x, x)));
      return LayerNorm(block.ffn_norm, Plus(attended, Ffn(block.ffn, attended)));
    }
    default: {
      const Matrix query = LayerNorm(block.attention_norm, x);
      const Matrix normed = LayerNorm(block.ffn_norm, Plus(query, MultiHead(block, options, query, x)));
      return Plus(normed, Ffn(block.ffn, normed));
    }
  }
}

}  // namespace

Matrix RunSelfAttentionBlock(const SelfAttentionBlock& block, const SelfAttentionOptions& options, Matrix x) {
  if (x.empty()) return x;
  x = RunWiring(block, options, x);
  if (options.pads == v1::SelfAttention::ZEROED) {
    for (size_t i = 0; i < x.size(); ++i) {
      if (!options.real.at(i)) x.at(i).assign(x.at(i).size(), 0.0);
    }
  }
  return x;
}

Row SinusoidalRow(const v1::SinusoidalPositions& positions, double position, int width) {
  Row out(width);
  for (int i = 0; i < width / 2; ++i) {
    const double angle = position / std::pow(positions.base(), 2.0 * i / width);
    const bool halves = positions.layout() == v1::SinusoidalPositions::HALVES;
    out.at(halves ? i : 2 * i) = std::sin(angle);
    out.at(halves ? width / 2 + i : 2 * i + 1) = std::cos(angle);
  }
  return out;
}

}  // namespace dinghy::reference
