#include "model/layers/linear_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace dinghy {
namespace {

double LogOfF(double x) { return x > 0 ? std::log1p(x) : x; }

// log of f(q) f(k).
double LogOfProduct(const float* query, const float* key, int64_t width) {
  double largest = -std::numeric_limits<double>::infinity();
  for (int64_t i = 0; i < width; ++i) largest = std::max(largest, LogOfF(query[i]) + LogOfF(key[i]));
  double sum = 0;
  for (int64_t i = 0; i < width; ++i) sum += std::exp(LogOfF(query[i]) + LogOfF(key[i]) - largest);
  return largest + std::log(sum);
}

}  // namespace

void PoolLinearByLogarithms(const float* query, int64_t key_width, const Value& keys, const Value& values,
                            int64_t value_width, float* pooled, float* weights) {
  double largest = -std::numeric_limits<double>::infinity();
  for (int64_t r = 0; r < keys.rows; ++r) {
    largest = std::max(largest, LogOfProduct(query, keys.data + r * keys.stride, key_width));
  }
  double sum = 0;
  for (int64_t r = 0; r < keys.rows; ++r) {
    sum += std::exp(LogOfProduct(query, keys.data + r * keys.stride, key_width) - largest);
  }
  std::fill_n(pooled, value_width, 0.0f);
  for (int64_t r = 0; r < keys.rows; ++r) {
    const double weight =
        std::exp(LogOfProduct(query, keys.data + r * keys.stride, key_width) - largest) / sum;
    if (weights != nullptr) weights[r] = static_cast<float>(weight);
    const float* value = values.data + r * values.stride;
    for (int64_t j = 0; j < value_width; ++j) pooled[j] += static_cast<float>(weight * value[j]);
  }
}

}  // namespace dinghy
