// The first step of a model: turns the encoded columns into floats. Ids and times pick rows of embedding
// tables (alone, or a bag's sum or mean), numbers and vectors come as they are.
//
//   ASSIGN_OR_RETURN(FeatureLookup lookup, FeatureLookup::Create(scope));
//   lookup.RunUser(context, values);             // values[f] of manifest.features(f)
//   lookup.RunCandidates(context, values);
//
// The features of one level, and of one sequence, lie side by side in the manifest's order, so that most
// input lists need no copy. Const after Create, so thread-safe.
#ifndef DINGHY_MODEL_LAYERS_FEATURE_LOOKUP_H_
#define DINGHY_MODEL_LAYERS_FEATURE_LOOKUP_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "features/feature_batch.h"
#include "model/layers/layer.h"
#include "model/layers/layer_scope.h"
#include "model/ops/gather.h"

namespace dinghy {

class FeatureLookup {
 public:
  FeatureLookup() = default;

  // Adds the manifest's features to the scope's values. The tensors must outlive the lookup: tables are read
  // in place. Errors: INVALID_ARGUMENT naming the feature, what was expected and what came.
  static absl::StatusOr<FeatureLookup> Create(LayerScope& scope);

  // Fills values[f] of user and sequence level, or of the context's candidates, with rows in its scratch.
  void RunUser(const RunContext& context, absl::Span<Value> values) const;
  void RunCandidates(const RunContext& context, absl::Span<Value> values) const;

 private:
  enum class Kind { kSingle, kBagSum, kBagMean, kFloats };
  struct Column {
    Kind kind = Kind::kFloats;
    ops::EmbeddingTable table;  // none for floats
    int width = 0;
    int group = 0;
    int offset = 0;  // of its first float in a row of the group
  };
  // The features that share their rows: 0 user, kCandidates, 2 + s sequence s.
  static constexpr size_t kCandidates = 1;
  struct Group {
    v1::Level level = v1::USER;
    int sequence = -1;
    int width = 0;
  };

  void RunGroup(size_t index, const RunContext& context, absl::Span<Value> values) const;
  // Rows `first` to `first + dst.rows - 1` of the column.
  static void Fill(const Column& column, const FeatureColumn& encoded, int64_t first,
                   const ops::GatheredRows& dst);

  std::vector<Column> columns_;
  std::vector<Group> groups_;
};

}  // namespace dinghy

#endif  // DINGHY_MODEL_LAYERS_FEATURE_LOOKUP_H_
