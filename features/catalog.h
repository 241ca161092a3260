// The item catalog of a bundle: features of items, encoded once, found by item id.
//
//   ASSIGN_OR_RETURN(auto catalog, Catalog::Read(files.at("catalog.json"), item, reads));
//   int row = catalog->Find(int64_t{17});                         // -1: not in the catalog
//   if (row >= 0) catalog->Append(feature, row, 0, out, oov);
//
// Thread-safe: const after Read.
#ifndef DINGHY_FEATURES_CATALOG_H_
#define DINGHY_FEATURES_CATALOG_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "features/column_encoder.h"
#include "features/feature_batch.h"
#include "proto/bundle.pb.h"
#include "proto/catalog.pb.h"

namespace dinghy {

// A feature that reads a catalog column.
struct CatalogRead {
  int feature;               // index in the manifest
  const std::string* field;  // the catalog column's name
  const ColumnEncoder* encoder;
};

class Catalog {
 public:
  // Reads catalog.json, whose text is `json`, and encodes the columns that `reads` names; `item_feature` is
  // the id feature whose ids are the key. The encoders must outlive the catalog. Errors: INVALID_ARGUMENT
  // naming the file and the column.
  static absl::StatusOr<std::unique_ptr<Catalog>> Read(const std::string& json,
                                                       const v1::Feature& item_feature,
                                                       absl::Span<const CatalogRead> reads);
  // The same of a catalog in memory, without the file's name in errors.
  static absl::StatusOr<std::unique_ptr<Catalog>> Create(const v1::Catalog& catalog,
                                                         const v1::Feature& item_feature,
                                                         absl::Span<const CatalogRead> reads);

  int items() const { return items_; }

  // The row of an item, -1 where it is not in the catalog.
  int Find(int64_t item) const;
  int Find(std::string_view item) const;

  // Appends what `feature` (one of `reads`) is for the item of `row`. `out_row`: the row for `oov`.
  void Append(int feature, int row, int out_row, FeatureColumn& out, OovCounter& oov) const;

 private:
  struct Encoded {
    const ColumnEncoder* encoder = nullptr;
    FeatureColumn column;               // [items]
    std::vector<int32_t> oov_per_item;  // [items], or empty where there are none
  };
  struct TextHash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };

  Catalog() = default;
  absl::Status AddItems(const v1::Column& ids, const v1::Feature& item_feature);

  int items_ = 0;
  std::unordered_map<int64_t, int> integer_rows_;
  std::unordered_map<std::string, int, TextHash, std::equal_to<>> text_rows_;
  std::vector<Encoded> encoded_;  // by feature; empty where it is not read
};

}  // namespace dinghy

#endif  // DINGHY_FEATURES_CATALOG_H_
