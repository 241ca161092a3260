#include "features/located_columns.h"

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace dinghy {
namespace {

absl::Status Invalid(std::string message) { return absl::InvalidArgumentError(std::move(message)); }

// Rows of a column that no feature reads.
absl::StatusOr<int> CountUnknownRows(const v1::Column& column) {
  if (column.lengths().empty()) return ValueCount(column);
  int64_t sum = 0;
  for (const uint32_t length : column.lengths()) sum += length;
  if (sum != ValueCount(column)) {
    return Invalid(
        absl::StrCat("expected ", sum, " values, the sum of its lengths, got ", ValueCount(column)));
  }
  return column.lengths_size();
}

}  // namespace

absl::Status ColumnError(absl::string_view place, absl::string_view column, absl::string_view message) {
  return Invalid(absl::StrCat(place, " column \"", column, "\": ", message));
}

absl::Status Locate(const Schema& schema, const Columns& columns, const FeatureIndex& features,
                    absl::string_view place, bool bare_vectors, LocatedColumns& located) {
  const auto check = [&](const v1::Column& column, const absl::StatusOr<int>& rows) -> absl::Status {
    if (!rows.ok()) return ColumnError(place, column.feature(), rows.status().message());
    if (located.rows < 0) located.rows = *rows;
    if (*rows == located.rows) return absl::OkStatus();
    return ColumnError(place, column.feature(),
                       absl::StrCat("expected ", located.rows, " rows, got ", *rows));
  };
  for (const v1::Column& column : columns) {
    const auto feature = features.find(column.feature());
    const bool again = feature == features.end() ? !located.unknown->insert(column.feature()).second
                                                 : located.by_feature[feature->second] != nullptr;
    if (again) return ColumnError(place, column.feature(), "expected once, got it again");
    if (feature == features.end()) continue;
    located.by_feature[feature->second] = &column;
    const ColumnEncoder& encoder = *schema.encoders[feature->second];
    if (absl::Status status = check(column, encoder.CountRows(column, bare_vectors)); !status.ok()) {
      return status;
    }
  }
  if (located.unknown->empty()) return absl::OkStatus();
  for (const v1::Column& column : columns) {
    if (features.contains(column.feature())) continue;
    absl::StatusOr<int> rows = CountUnknownRows(column);
    // It may be another model's vector.
    if (bare_vectors && column.lengths().empty() && located.rows > 0 && *rows > 0 &&
        *rows % located.rows == 0) {
      rows = located.rows;
    }
    if (absl::Status status = check(column, rows); !status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace dinghy
