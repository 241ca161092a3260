// A request and its histories, encoded: what a model reads.
//
//   FeatureBatch batch;                          // reused from request to request; keeps its capacity
//   RETURN_IF_ERROR(encoder.Encode(request, batch, notes));
//   batch.columns[f].rows                        // feature f of manifest.features()
//
// Thread-compatible.
#ifndef DINGHY_FEATURES_FEATURE_BATCH_H_
#define DINGHY_FEATURES_FEATURE_BATCH_H_

#include <cstdint>
#include <vector>

namespace dinghy {

// One feature over the n rows of its level: 1 (user), the sequence's length, or the number of candidates.
struct FeatureColumn {
  // Embedding table rows, of id and time_since features: [n], or for bags all ids in a row. Always inside the
  // vocabulary's range.
  std::vector<int32_t> rows;
  // Bags only: [n + 1]; the ids of row i are rows[offsets[i]] to rows[offsets[i + 1] - 1].
  std::vector<int32_t> offsets;
  // Numeric features, normalised: [n]. Vectors: [n, dim], row-major. Always finite.
  std::vector<float> values;
};

struct FeatureBatch {
  int candidates = 0;
  std::vector<int> sequence_lengths;  // by index in manifest.sequences(); 0 to max_length
  // The same before anything was left out to save time: what a model may choose by, so that it takes the same
  // way with less of the history.
  std::vector<int> full_lengths;
  std::vector<FeatureColumn> columns;  // by index in manifest.features()
};

}  // namespace dinghy

#endif  // DINGHY_FEATURES_FEATURE_BATCH_H_
