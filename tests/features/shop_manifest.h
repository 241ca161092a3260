// A manifest that uses every kind of feature, its files, and a request that fits it.
//
//   ShopManifest shop;                      // writes the files
//   auto encoder = shop.CreateEncoder();    // shop.manifest may be changed before
#ifndef DINGHY_TESTS_FEATURES_SHOP_MANIFEST_H_
#define DINGHY_TESTS_FEATURES_SHOP_MANIFEST_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "features/encoder.h"
#include "proto/bundle.pb.h"
#include "proto/scoring.pb.h"

namespace dinghy {

// Parses protobuf text; a failure ends the test program.
template <typename Message>
Message Parse(const std::string& text);

class ShopManifest {
 public:
  ShopManifest();

  absl::StatusOr<std::unique_ptr<RequestEncoder>> CreateEncoder() const;

  // The feature or sequence of that name, to be changed.
  v1::Feature& feature(const std::string& name);
  int feature_index(const std::string& name) const;

  v1::BundleManifest manifest;
  std::vector<int64_t> table_rows = {100, 10, 6, 5, 8};  // item, category, tag, segment, time
  EncoderOptions options = {.max_candidates = 4};
  FileContents files;
};

// Three candidates, four clicks (one more than are kept) and one purchase.
v1::ScoreRequest MakeShopRequest();

// The column of that name, to be changed; a failure ends the test program.
v1::Column& FindColumn(google::protobuf::RepeatedPtrField<v1::Column>& columns, const std::string& name);
void RemoveColumn(google::protobuf::RepeatedPtrField<v1::Column>& columns, const std::string& name);

}  // namespace dinghy

#endif  // DINGHY_TESTS_FEATURES_SHOP_MANIFEST_H_
