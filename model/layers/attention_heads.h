// How target attention cuts query, keys and values into heads.
//
//   ASSIGN_OR_RETURN(AttentionHeads heads, AttentionHeads::Create(message, query_width, scope));
#ifndef DINGHY_MODEL_LAYERS_ATTENTION_HEADS_H_
#define DINGHY_MODEL_LAYERS_ATTENTION_HEADS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/layers/layer_scope.h"
#include "proto/bundle.pb.h"

namespace dinghy {

// Query head h reads key and value head h / group(), from column h / group() * (width / key_value_heads) on.
struct AttentionHeads {
  int64_t heads = 1;
  int64_t key_value_heads = 1;  // divides heads

  int64_t group() const { return heads / key_value_heads; }

  // Errors: the score takes no heads, or they do not divide the query.
  static absl::StatusOr<AttentionHeads> Create(const v1::TargetAttention& message, int64_t query_width,
                                               const LayerScope& scope);

  // That the keys have as many columns a head as the query.
  absl::Status CheckKeys(int64_t query_width, int64_t key_width, const LayerScope& scope) const;
  // That the values can be cut.
  absl::Status CheckValues(int64_t value_width, const LayerScope& scope) const;
};

}  // namespace dinghy

#endif  // DINGHY_MODEL_LAYERS_ATTENTION_HEADS_H_
