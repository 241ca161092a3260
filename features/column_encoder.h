// One feature's columns: raw values become table rows or floats.
//
//   ASSIGN_OR_RETURN(auto encoder, ColumnEncoder::Create(feature, files, table_rows));
//   encoder->Clear(out);
//   RETURN_IF_ERROR(encoder->Append(column, /*begin=*/0, /*rows=*/5, out, oov));
//
// A row of length 0 has no value: an empty bag, or the feature's missing value. A missing value is first
// rounded to float, as a column would carry it. Thread-safe: const after Create.
#ifndef DINGHY_FEATURES_COLUMN_ENCODER_H_
#define DINGHY_FEATURES_COLUMN_ENCODER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "features/feature_batch.h"
#include "features/file_contents.h"
#include "features/vocabulary.h"
#include "proto/bundle.pb.h"
#include "proto/scoring.pb.h"

namespace dinghy {

// Where ids that took an OOV or pad row are counted.
struct OovCounter {
  int64_t total = 0;
  uint32_t* flags = nullptr;   // where not null: flags[row] gets OUT_OF_VOCABULARY
  int32_t* per_row = nullptr;  // where not null: counts by row

  void Add(int row, int32_t ids = 1) {
    total += ids;
    if (flags != nullptr) flags[row] |= v1::OUT_OF_VOCABULARY;
    if (per_row != nullptr) per_row[row] += ids;
  }
};

// "ints", "strings", "floats" or "no values".
absl::string_view ValueTypeName(v1::Column::ValuesCase type);

// Number of values of any type.
int ValueCount(const v1::Column& column);

class ColumnEncoder {
 public:
  // Checks every field of `feature` that is about its values. `table_rows`: rows of its embedding table.
  // `feature` must outlive the encoder. Errors: INVALID_ARGUMENT naming the field, NOT_FOUND naming the file;
  // the caller puts the feature's name in front.
  static absl::StatusOr<std::unique_ptr<ColumnEncoder>> Create(const v1::Feature& feature,
                                                               const FileContents& files, int64_t table_rows);

  const v1::Feature& feature() const { return *feature_; }
  bool has_missing() const { return feature_->if_missing_case() != v1::Feature::IF_MISSING_NOT_SET; }
  bool is_bag() const { return is_bag_; }

  // Rows of `column`, whose type is checked. Without lengths: one value a row, or, where `bare_vectors`, a
  // vector's dim values.
  absl::StatusOr<int> CountRows(const v1::Column& column, bool bare_vectors) const;

  // Empties `out`, keeping its capacity.
  void Clear(FeatureColumn& out) const;

  // Appends rows [begin, begin + rows) of a column that CountRows took. Rows of `oov` count from 0 at
  // `begin`.
  absl::Status Append(const v1::Column& column, int begin, int rows, FeatureColumn& out,
                      OovCounter& oov) const;

  // Appends one row without a value. Needs has_missing().
  void AppendMissing(FeatureColumn& out) const;

  // Appends row `row` of `from`, an encoded column of the same feature.
  void AppendCopy(const FeatureColumn& from, int row, FeatureColumn& out) const;

  // Leaves of `column` the rows `rows[i] - begin`, ascending.
  void Keep(absl::Span<const int> rows, int begin, FeatureColumn& column) const;

  // time_since features: appends the bucket of an age in milliseconds, at least 0.
  void AppendAge(int64_t age_ms, FeatureColumn& out) const;

 private:
  explicit ColumnEncoder(const v1::Feature& feature) : feature_(&feature) {}

  absl::Status ReadId(const FileContents& files, int64_t table_rows);
  absl::Status ReadNumeric();
  absl::Status ReadVector();
  absl::Status ReadTimeSince(int64_t table_rows);

  template <typename Values>
  absl::Status AppendIds(const v1::Column& column, const Values& values, int begin, int rows,
                         FeatureColumn& out, OovCounter& oov) const;
  template <typename Values>
  absl::Status AppendNumbers(const v1::Column& column, const Values& values, int begin, int rows,
                             FeatureColumn& out) const;
  absl::Status AppendVectors(const v1::Column& column, int begin, int rows, FeatureColumn& out) const;
  absl::Status CheckLength(const v1::Column& column, int row) const;
  float Normalise(double value) const { return static_cast<float>((value - mean_) / stddev_); }

  const v1::Feature* feature_;
  std::unique_ptr<Vocabulary> vocabulary_;  // id features
  bool is_bag_ = false;
  int width_ = 1;             // values of a row that is neither a bag nor absent
  int32_t missing_row_ = -1;  // -1 for bags: an absent bag is empty
  double mean_ = 0;
  double stddev_ = 1;
  float missing_value_ = 0;  // numeric: normalised
  std::vector<int64_t> boundaries_ms_;
  int32_t first_row_ = 0;
};

}  // namespace dinghy

#endif  // DINGHY_FEATURES_COLUMN_ENCODER_H_
