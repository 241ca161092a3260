// What a manifest says of reading requests: its features and sequences, checked, and found by name.
//
// Thread-safe: const after Create.
#ifndef DINGHY_FEATURES_SCHEMA_H_
#define DINGHY_FEATURES_SCHEMA_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "features/catalog.h"
#include "features/column_encoder.h"
#include "features/file_contents.h"
#include "proto/bundle.pb.h"

namespace dinghy {

using FeatureIndex = std::unordered_map<std::string_view, int>;  // column name -> index in the manifest

struct SequenceSchema {
  const v1::Sequence* sequence = nullptr;
  FeatureIndex features;  // by field; time_since features, which have no column, are left out
  int time_feature = -1;  // one that reads the time, if any
  int skip_feature = -1;  // behaviors that take its pad row are left out; -1: none are
};

struct Schema {
  // Errors as RequestEncoder::Create.
  static absl::StatusOr<std::unique_ptr<Schema>> Create(const v1::BundleManifest& manifest,
                                                        const FileContents& files,
                                                        absl::Span<const int64_t> table_rows);

  const v1::Feature& feature(int index) const { return manifest->features(index); }
  // The id feature that manifest.item_feature names. Needs item_feature >= 0.
  const v1::Feature& item() const { return manifest->features(item_feature); }

  const v1::BundleManifest* manifest = nullptr;
  std::vector<std::unique_ptr<ColumnEncoder>> encoders;  // by feature
  std::vector<std::string>
      fields;  // by feature: the name of its column; never resized, as the indices below point into it
  std::vector<int> sequence_of;  // by feature: its sequence, or -1
  FeatureIndex user_features;
  FeatureIndex candidate_features;
  std::vector<SequenceSchema> sequences;  // by sequence
  FeatureIndex sequence_index;            // sequence name -> index
  int item_feature = -1;
  std::unique_ptr<Catalog> catalog;  // null where no feature reads it

 private:
  absl::Status AddSequence(const v1::Sequence& sequence);
  absl::Status AddFeature(int index);
  absl::Status SetItemFeature();
  absl::Status SetSkipFeature(SequenceSchema& sequence);
};

}  // namespace dinghy

#endif  // DINGHY_FEATURES_SCHEMA_H_
