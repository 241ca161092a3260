#include "features/column_encoder.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace dinghy {
namespace {

absl::Status Invalid(std::string message) { return absl::InvalidArgumentError(std::move(message)); }

absl::Status CheckTableRow(int64_t row, int64_t table_rows, absl::string_view what) {
  if (row >= 0 && row < table_rows) return absl::OkStatus();
  return Invalid(absl::StrCat(what, ": expected a row below ", table_rows, ", the table's rows, got ", row));
}

// Offset of row `begin`'s first value.
int FirstValue(const v1::Column& column, int begin, int width) {
  if (column.lengths().empty()) return begin * width;
  int offset = 0;
  for (int row = 0; row < begin; ++row) offset += static_cast<int>(column.lengths(row));
  return offset;
}

// What becomes of ids, one after the other, looked up a batch at a time.
template <typename Id>
class FoundIds {
 public:
  FoundIds(const Vocabulary& vocabulary, absl::Span<const Id> ids) : vocabulary_(vocabulary), ids_(ids) {}

  Vocabulary::Found Next() {
    if (next_ == kBatch) {
      const absl::Span<const Id> batch = ids_.subspan(0, kBatch);
      vocabulary_.Find(batch, found_);
      ids_.remove_prefix(batch.size());
      next_ = 0;
    }
    return found_[next_++];
  }

 private:
  static constexpr size_t kBatch = 64;
  const Vocabulary& vocabulary_;
  absl::Span<const Id> ids_;  // still to be looked up
  size_t next_ = kBatch;
  Vocabulary::Found found_[kBatch];
};

}  // namespace

absl::string_view ValueTypeName(v1::Column::ValuesCase type) {
  switch (type) {
    case v1::Column::kInts:
      return "ints";
    case v1::Column::kStrings:
      return "strings";
    case v1::Column::kFloats:
      return "floats";
    default:
      return "no values";
  }
}

int ValueCount(const v1::Column& column) {
  switch (column.values_case()) {
    case v1::Column::kInts:
      return column.ints().values_size();
    case v1::Column::kStrings:
      return column.strings().values_size();
    case v1::Column::kFloats:
      return column.floats().values_size();
    default:
      return 0;
  }
}

absl::StatusOr<std::unique_ptr<ColumnEncoder>> ColumnEncoder::Create(const v1::Feature& feature,
                                                                     const FileContents& files,
                                                                     int64_t table_rows) {
  std::unique_ptr<ColumnEncoder> encoder(new ColumnEncoder(feature));
  const bool has_number = feature.if_missing_case() == v1::Feature::kMissing;
  const bool has_policy = feature.if_missing_case() == v1::Feature::kMissingId;
  absl::Status status;
  bool fits = true;
  switch (feature.kind_case()) {
    case v1::Feature::kId:
      status = encoder->ReadId(files, table_rows);
      fits = !has_number;
      break;
    case v1::Feature::kNumeric:
      status = encoder->ReadNumeric();
      fits = !has_policy;
      break;
    case v1::Feature::kVector:
      status = encoder->ReadVector();
      fits = !has_policy;
      break;
    case v1::Feature::kTimeSince:
      status = encoder->ReadTimeSince(table_rows);
      fits = !has_number && !has_policy;
      break;
    case v1::Feature::KIND_NOT_SET:
      return Invalid("expected id, numeric, vector or time_since, got none");
  }
  if (!status.ok()) return status;
  if (!fits) {
    return Invalid(absl::StrCat(
        "expected `missing` only for numeric and vector, `missing_id` only for id features, got ",
        has_number ? "missing" : "missing_id"));
  }
  return encoder;
}

absl::Status ColumnEncoder::ReadId(const FileContents& files, int64_t table_rows) {
  const v1::IdFeature& id = feature_->id();
  if (id.bag() != v1::IdFeature::SINGLE && id.bag() != v1::IdFeature::BAG_SUM &&
      id.bag() != v1::IdFeature::BAG_MEAN) {
    return Invalid(absl::StrCat("id.bag: expected SINGLE, BAG_SUM or BAG_MEAN, got ",
                                v1::IdFeature::Bag_Name(id.bag())));
  }
  is_bag_ = id.bag() != v1::IdFeature::SINGLE;
  absl::StatusOr<std::unique_ptr<Vocabulary>> vocabulary = Vocabulary::Create(id, files);
  if (!vocabulary.ok()) return vocabulary.status();
  vocabulary_ = *std::move(vocabulary);
  if (absl::Status status = CheckTableRow(vocabulary_->max_row(), table_rows, "id"); !status.ok()) {
    return status;
  }
  if (feature_->if_missing_case() != v1::Feature::kMissingId) return absl::OkStatus();
  switch (feature_->missing_id()) {
    case v1::OOV_ROW:
      if (!id.has_oov_row()) return Invalid("id.oov_row (missing_id is OOV_ROW): expected a value, got none");
      missing_row_ = static_cast<int32_t>(id.oov_row());
      return absl::OkStatus();
    case v1::PAD_ROW:
      if (is_bag_) return absl::OkStatus();
      if (!id.has_pad_row()) return Invalid("id.pad_row (missing_id is PAD_ROW): expected a value, got none");
      missing_row_ = static_cast<int32_t>(id.pad_row());
      return absl::OkStatus();
    default:
      return Invalid(absl::StrCat("missing_id: expected OOV_ROW or PAD_ROW, got ",
                                  v1::IdPolicy_Name(feature_->missing_id())));
  }
}

absl::Status ColumnEncoder::ReadNumeric() {
  const v1::NumericFeature& numeric = feature_->numeric();
  if (!numeric.has_mean()) return Invalid("numeric.mean: expected a value, got none");
  if (!numeric.has_stddev()) return Invalid("numeric.stddev: expected a value, got none");
  if (!std::isfinite(numeric.mean())) {
    return Invalid(absl::StrCat("numeric.mean: expected a finite number, got ", numeric.mean()));
  }
  if (!std::isfinite(numeric.stddev()) || numeric.stddev() <= 0) {
    return Invalid(absl::StrCat("numeric.stddev: expected a finite number above 0, got ", numeric.stddev()));
  }
  mean_ = numeric.mean();
  stddev_ = numeric.stddev();
  missing_value_ = Normalise(static_cast<float>(feature_->missing()));
  if (has_missing() && !std::isfinite(missing_value_)) {
    return Invalid(absl::StrCat("missing: expected a number that normalises to a finite float, got ",
                                feature_->missing()));
  }
  return absl::OkStatus();
}

absl::Status ColumnEncoder::ReadVector() {
  const v1::VectorFeature& vector = feature_->vector();
  if (!vector.has_dim()) return Invalid("vector.dim: expected a value, got none");
  if (vector.dim() == 0 || vector.dim() > 1u << 20) {
    return Invalid(absl::StrCat("vector.dim: expected 1 to ", 1 << 20, ", got ", vector.dim()));
  }
  width_ = static_cast<int>(vector.dim());
  missing_value_ = static_cast<float>(feature_->missing());
  if (!std::isfinite(missing_value_)) {
    return Invalid(absl::StrCat("missing: expected a finite float, got ", feature_->missing()));
  }
  return absl::OkStatus();
}

absl::Status ColumnEncoder::ReadTimeSince(int64_t table_rows) {
  const v1::TimeSince& time = feature_->time_since();
  if (!time.has_first_row()) return Invalid("time_since.first_row: expected a value, got none");
  boundaries_ms_.assign(time.boundaries_ms().begin(), time.boundaries_ms().end());
  const auto bad = std::adjacent_find(boundaries_ms_.begin(), boundaries_ms_.end(),
                                      [](int64_t a, int64_t b) { return a >= b; });
  if (bad != boundaries_ms_.end()) {
    return Invalid(absl::StrCat("time_since.boundaries_ms: expected strictly ascending values, got ", *bad,
                                " before ", *(bad + 1)));
  }
  const int64_t last = int64_t{time.first_row()} + static_cast<int64_t>(boundaries_ms_.size());
  if (last > std::numeric_limits<int32_t>::max()) {
    return Invalid(absl::StrCat("time_since: expected rows of at most 2147483647, got ", last));
  }
  first_row_ = static_cast<int32_t>(time.first_row());
  return CheckTableRow(last, table_rows, "time_since");
}

absl::StatusOr<int> ColumnEncoder::CountRows(const v1::Column& column, bool bare_vectors) const {
  const v1::Column::ValuesCase type = column.values_case();
  bool right = false;
  absl::string_view expected = "floats";
  switch (feature_->kind_case()) {
    case v1::Feature::kId:
      expected = feature_->id().type() == v1::IdFeature::INT64 ? "ints" : "strings";
      right = ValueTypeName(type) == expected;
      break;
    case v1::Feature::kNumeric:
      right = type == v1::Column::kFloats || type == v1::Column::kInts;
      break;
    default:
      right = type == v1::Column::kFloats;
  }
  if (!right) return Invalid(absl::StrCat("expected ", expected, ", got ", ValueTypeName(type)));

  const int values = ValueCount(column);
  if (!column.lengths().empty()) {
    int64_t sum = 0;
    for (const uint32_t length : column.lengths()) sum += length;
    if (sum != values) {
      return Invalid(absl::StrCat("expected ", sum, " values, the sum of its lengths, got ", values));
    }
    return column.lengths_size();
  }
  if (!bare_vectors || width_ == 1) return values;
  if (values % width_ != 0) {
    return Invalid(absl::StrCat("expected a multiple of ", width_, " values, got ", values));
  }
  return values / width_;
}

void ColumnEncoder::Clear(FeatureColumn& out) const {
  out.rows.clear();
  out.offsets.clear();
  out.values.clear();
  if (is_bag_) out.offsets.push_back(0);
}

absl::Status ColumnEncoder::Append(const v1::Column& column, int begin, int rows, FeatureColumn& out,
                                   OovCounter& oov) const {
  switch (feature_->kind_case()) {
    case v1::Feature::kId:
      return column.has_ints() ? AppendIds(column, column.ints().values(), begin, rows, out, oov)
                               : AppendIds(column, column.strings().values(), begin, rows, out, oov);
    case v1::Feature::kNumeric:
      return column.has_ints() ? AppendNumbers(column, column.ints().values(), begin, rows, out)
                               : AppendNumbers(column, column.floats().values(), begin, rows, out);
    default:
      return AppendVectors(column, begin, rows, out);
  }
}

// A row must have `width_` values, or none where the feature says what a missing value is.
absl::Status ColumnEncoder::CheckLength(const v1::Column& column, int row) const {
  if (column.lengths().empty()) return absl::OkStatus();
  const uint32_t length = column.lengths(row);
  if (length == static_cast<uint32_t>(width_) || (length == 0 && has_missing())) return absl::OkStatus();
  return Invalid(absl::StrCat("row ", row, ": expected ", width_, " values, got ", length,
                              length == 0 ? ", and the feature has no missing value" : ""));
}

template <typename Values>
absl::Status ColumnEncoder::AppendIds(const v1::Column& column, const Values& values, int begin, int rows,
                                      FeatureColumn& out, OovCounter& oov) const {
  const bool one_each = column.lengths().empty();
  int next = FirstValue(column, begin, 1);
  const int last = FirstValue(column, begin + rows, 1);
  FoundIds found_ids(*vocabulary_, absl::MakeConstSpan(values.data() + next, last - next));
  out.rows.reserve(out.rows.size() + static_cast<size_t>(std::max(rows, last - next)));
  for (int row = begin; row < begin + rows; ++row) {
    const int length = one_each ? 1 : static_cast<int>(column.lengths(row));
    if (!is_bag_ && !one_each) {
      if (absl::Status status = CheckLength(column, row); !status.ok()) return status;
      if (length == 0) {
        out.rows.push_back(missing_row_);
        continue;
      }
    }
    for (const int end = next + length; next < end; ++next) {
      const Vocabulary::Found found = found_ids.Next();
      if (found.row < 0) {
        return Invalid(
            absl::StrCat("row ", row, ": expected an id of the vocabulary, got ", values.Get(next)));
      }
      if (!found.known) oov.Add(row - begin);
      out.rows.push_back(found.row);
    }
    if (is_bag_) out.offsets.push_back(static_cast<int32_t>(out.rows.size()));
  }
  return absl::OkStatus();
}

template <typename Values>
absl::Status ColumnEncoder::AppendNumbers(const v1::Column& column, const Values& values, int begin, int rows,
                                          FeatureColumn& out) const {
  int next = FirstValue(column, begin, 1);
  for (int row = begin; row < begin + rows; ++row) {
    if (absl::Status status = CheckLength(column, row); !status.ok()) return status;
    if (!column.lengths().empty() && column.lengths(row) == 0) {
      out.values.push_back(missing_value_);
      continue;
    }
    const float value = Normalise(static_cast<double>(values.Get(next)));
    if (!std::isfinite(value)) {
      return Invalid(absl::StrCat(
          "row ", row, ": expected a finite number",
          std::isfinite(static_cast<double>(values.Get(next))) ? " that normalises to a finite float" : "",
          ", got ", values.Get(next)));
    }
    out.values.push_back(value);
    ++next;
  }
  return absl::OkStatus();
}

absl::Status ColumnEncoder::AppendVectors(const v1::Column& column, int begin, int rows,
                                          FeatureColumn& out) const {
  const auto& values = column.floats().values();
  int next = FirstValue(column, begin, width_);
  for (int row = begin; row < begin + rows; ++row) {
    if (absl::Status status = CheckLength(column, row); !status.ok()) return status;
    if (!column.lengths().empty() && column.lengths(row) == 0) {
      out.values.insert(out.values.end(), static_cast<size_t>(width_), missing_value_);
      continue;
    }
    for (const int end = next + width_; next < end; ++next) {
      if (!std::isfinite(values.Get(next))) {
        return Invalid(absl::StrCat("row ", row, ": expected finite numbers, got ", values.Get(next)));
      }
    }
    out.values.insert(out.values.end(), values.data() + next - width_, values.data() + next);
  }
  return absl::OkStatus();
}

void ColumnEncoder::AppendMissing(FeatureColumn& out) const {
  if (feature_->has_id()) {
    if (missing_row_ >= 0) out.rows.push_back(missing_row_);
    if (is_bag_) out.offsets.push_back(static_cast<int32_t>(out.rows.size()));
  } else {
    out.values.insert(out.values.end(), static_cast<size_t>(width_), missing_value_);
  }
}

void ColumnEncoder::AppendCopy(const FeatureColumn& from, int row, FeatureColumn& out) const {
  if (is_bag_) {
    out.rows.insert(out.rows.end(), from.rows.begin() + from.offsets[row],
                    from.rows.begin() + from.offsets[row + 1]);
    out.offsets.push_back(static_cast<int32_t>(out.rows.size()));
  } else if (feature_->has_id()) {
    out.rows.push_back(from.rows[row]);
  } else {
    const auto begin = from.values.begin() + static_cast<ptrdiff_t>(row) * width_;
    out.values.insert(out.values.end(), begin, begin + width_);
  }
}

void ColumnEncoder::Keep(absl::Span<const int> rows, int begin, FeatureColumn& column) const {
  size_t kept = 0;  // values of rows that were moved to the front, which never overtake those still to come
  if (is_bag_) {
    for (size_t i = 0; i < rows.size(); ++i) {
      const int32_t first = column.offsets[rows[i] - begin];
      const int32_t last = column.offsets[rows[i] - begin + 1];
      column.offsets[i] = static_cast<int32_t>(kept);
      for (int32_t id = first; id < last; ++id) column.rows[kept++] = column.rows[id];
    }
    column.offsets.resize(rows.size() + 1);
    column.offsets.back() = static_cast<int32_t>(kept);
    column.rows.resize(kept);
  } else if (feature_->has_id() || feature_->has_time_since()) {
    for (const int row : rows) column.rows[kept++] = column.rows[row - begin];
    column.rows.resize(kept);
  } else {
    for (const int row : rows) {
      const auto from = column.values.begin() + static_cast<ptrdiff_t>(row - begin) * width_;
      std::copy(from, from + width_, column.values.begin() + static_cast<ptrdiff_t>(kept++) * width_);
    }
    column.values.resize(kept * static_cast<size_t>(width_));
  }
}

void ColumnEncoder::AppendAge(int64_t age_ms, FeatureColumn& out) const {
  const auto above = std::upper_bound(boundaries_ms_.begin(), boundaries_ms_.end(), age_ms);
  out.rows.push_back(first_row_ + static_cast<int32_t>(above - boundaries_ms_.begin()));
}

}  // namespace dinghy
