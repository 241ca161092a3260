// Linear attention (Katharopoulos et al., 2020) where its sums are lost in float: of queries and keys whose
// large elements lie in different columns all of f(q) f(k) can be 0, though the weights, which are ratios of
// these, are not.
#ifndef DINGHY_MODEL_LAYERS_LINEAR_ATTENTION_H_
#define DINGHY_MODEL_LAYERS_LINEAR_ATTENTION_H_

#include <cfloat>
#include <cstdint>

#include "model/layers/layer.h"

namespace dinghy {

// Sums f(q) f(k) below this have lost digits, or all of them.
inline constexpr float kLeastLinearSum = FLT_MIN * (1 << 24);

// pooled [value_width] = sum of weight_j * values_j over `rows` behaviors, with the weights f(q) f(k_j) over
// their sum, f = elu + 1, in double and by logarithms: slow, right at any magnitude. query [key_width],
// before f; keys [rows, key_width] and values [rows, value_width] with the strides of their Values, of which
// only `rows` count. `weights` [rows], or null.
void PoolLinearByLogarithms(const float* query, int64_t key_width, const Value& keys, const Value& values,
                            int64_t value_width, float* pooled, float* weights);

}  // namespace dinghy

#endif  // DINGHY_MODEL_LAYERS_LINEAR_ATTENTION_H_
