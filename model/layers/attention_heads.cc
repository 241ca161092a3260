#include "model/layers/attention_heads.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace dinghy {

absl::StatusOr<AttentionHeads> AttentionHeads::Create(const v1::TargetAttention& message, int64_t query_width,
                                                      const LayerScope& scope) {
  AttentionHeads out;
  if (message.has_heads()) out.heads = message.heads();
  out.key_value_heads = message.has_key_value_heads() ? message.key_value_heads() : out.heads;
  if (out.heads == 1 && out.key_value_heads == 1) return out;
  if (!message.has_dot() && !message.has_linear()) {
    return scope.Error(message.has_heads() ? "heads" : "key_value_heads",
                       ": expected none, as only dot and linear scores have heads, got ",
                       message.has_heads() ? out.heads : out.key_value_heads);
  }
  if (out.heads < 1 || query_width % out.heads != 0) {
    return scope.Error("heads: expected a divisor of the query's width ", query_width, ", got ", out.heads);
  }
  if (message.has_latent() && message.has_key_value_heads()) {
    return scope.Error("key_value_heads: expected none beside latent, got ", out.key_value_heads);
  }
  if (out.key_value_heads < 1 || out.heads % out.key_value_heads != 0) {
    return scope.Error("key_value_heads: expected a divisor of heads ", out.heads, ", got ",
                       out.key_value_heads);
  }
  return out;
}

absl::Status AttentionHeads::CheckKeys(int64_t query_width, int64_t key_width,
                                       const LayerScope& scope) const {
  const int64_t head_width = query_width / heads;
  if (key_width == key_value_heads * head_width) return absl::OkStatus();
  const std::string want = heads == 1 ? absl::StrCat("the query's width ", query_width)
                                      : absl::StrCat("width ", key_value_heads * head_width, ", heads of ",
                                                     head_width, " columns as the query's");
  return scope.Error("keys: expected ", want, ", got ", key_width);
}

absl::Status AttentionHeads::CheckValues(int64_t value_width, const LayerScope& scope) const {
  if (value_width % key_value_heads != 0) {
    return scope.Error("values: expected a width that ", key_value_heads, " heads divide, got ", value_width);
  }
  return absl::OkStatus();
}

}  // namespace dinghy
