#include "features/catalog.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace dinghy {
namespace {

absl::Status Annotate(absl::string_view column, const absl::Status& status) {
  return absl::InvalidArgumentError(absl::StrCat("catalog column \"", column, "\": ", status.message()));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Catalog>> Catalog::Read(const std::string& json,
                                                       const v1::Feature& item_feature,
                                                       absl::Span<const CatalogRead> reads) {
  v1::Catalog catalog;
  const auto parsed = google::protobuf::util::JsonStringToMessage(json, &catalog);
  if (!parsed.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("catalog.json: expected protobuf JSON of Catalog, got ", std::string(parsed.message())));
  }
  absl::StatusOr<std::unique_ptr<Catalog>> result = Create(catalog, item_feature, reads);
  if (!result.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("catalog.json: ", result.status().message()));
  }
  return result;
}

absl::StatusOr<std::unique_ptr<Catalog>> Catalog::Create(const v1::Catalog& catalog,
                                                         const v1::Feature& item_feature,
                                                         absl::Span<const CatalogRead> reads) {
  std::unordered_map<std::string_view, const v1::Column*> columns;
  for (const v1::Column& column : catalog.columns()) {
    if (!columns.emplace(column.feature(), &column).second) {
      return Annotate(column.feature(), absl::InvalidArgumentError("expected once, got it again"));
    }
  }
  const auto ids = columns.find(item_feature.name());
  if (ids == columns.end()) {
    return Annotate(item_feature.name(), absl::InvalidArgumentError("expected the item ids, got no column"));
  }
  std::unique_ptr<Catalog> result(new Catalog());
  if (absl::Status status = result->AddItems(*ids->second, item_feature); !status.ok()) {
    return Annotate(item_feature.name(), status);
  }
  for (const CatalogRead& read : reads) {
    const auto column = columns.find(*read.field);
    if (column == columns.end()) {
      return Annotate(*read.field, absl::InvalidArgumentError(
                                       absl::StrCat("expected the values of feature \"",
                                                    read.encoder->feature().name(), "\", got no column")));
    }
    const absl::StatusOr<int> rows = read.encoder->CountRows(*column->second, /*bare_vectors=*/true);
    if (!rows.ok()) return Annotate(*read.field, rows.status());
    if (*rows != result->items_) {
      return Annotate(*read.field, absl::InvalidArgumentError(
                                       absl::StrCat("expected ", result->items_, " rows, got ", *rows)));
    }
    if (result->encoded_.size() <= static_cast<size_t>(read.feature)) {
      result->encoded_.resize(static_cast<size_t>(read.feature) + 1);
    }
    Encoded& encoded = result->encoded_[read.feature];
    encoded.encoder = read.encoder;
    read.encoder->Clear(encoded.column);
    encoded.oov_per_item.resize(static_cast<size_t>(*rows));
    OovCounter oov{.per_row = encoded.oov_per_item.data()};
    if (absl::Status status = read.encoder->Append(*column->second, 0, *rows, encoded.column, oov);
        !status.ok()) {
      return Annotate(*read.field, status);
    }
    if (oov.total == 0) encoded.oov_per_item = {};
  }
  return result;
}

absl::Status Catalog::AddItems(const v1::Column& ids, const v1::Feature& item_feature) {
  const bool integers = item_feature.id().type() == v1::IdFeature::INT64;
  const absl::string_view expected = integers ? "ints" : "strings";
  if (ValueTypeName(ids.values_case()) != expected) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected ", expected, ", got ", ValueTypeName(ids.values_case())));
  }
  items_ = ValueCount(ids);
  const bool one_each =
      std::all_of(ids.lengths().begin(), ids.lengths().end(), [](uint32_t length) { return length == 1; });
  if (!one_each || (!ids.lengths().empty() && ids.lengths_size() != items_)) {
    return absl::InvalidArgumentError("expected one id a row, got other lengths");
  }
  integer_rows_.reserve(integers ? static_cast<size_t>(items_) : 0);
  text_rows_.reserve(integers ? 0 : static_cast<size_t>(items_));
  for (int row = 0; row < items_; ++row) {
    const bool added = integers ? integer_rows_.emplace(ids.ints().values(row), row).second
                                : text_rows_.emplace(ids.strings().values(row), row).second;
    if (!added) {
      return absl::InvalidArgumentError(absl::StrCat(
          "expected each item once, got ",
          integers ? absl::StrCat(ids.ints().values(row)) : ids.strings().values(row), " again"));
    }
  }
  return absl::OkStatus();
}

int Catalog::Find(int64_t item) const {
  const auto found = integer_rows_.find(item);
  return found == integer_rows_.end() ? -1 : found->second;
}

int Catalog::Find(std::string_view item) const {
  const auto found = text_rows_.find(item);
  return found == text_rows_.end() ? -1 : found->second;
}

void Catalog::Append(int feature, int row, int out_row, FeatureColumn& out, OovCounter& oov) const {
  const Encoded& encoded = encoded_[feature];
  encoded.encoder->AppendCopy(encoded.column, row, out);
  if (!encoded.oov_per_item.empty() && encoded.oov_per_item[row] > 0) {
    oov.Add(out_row, encoded.oov_per_item[row]);
  }
}

}  // namespace dinghy
