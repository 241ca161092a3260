// Where a request has the columns that features read.
//
//   LocatedColumns located{.unknown = &unknown, .by_feature = columns.data()};
//   RETURN_IF_ERROR(Locate(schema, request.candidates(), schema.candidate_features, "candidates",
//                          /*bare_vectors=*/true, located));
//
// Thread-compatible.
#ifndef DINGHY_FEATURES_LOCATED_COLUMNS_H_
#define DINGHY_FEATURES_LOCATED_COLUMNS_H_

#include <memory_resource>
#include <string_view>
#include <unordered_set>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "features/schema.h"
#include "proto/scoring.pb.h"

namespace dinghy {

using Columns = google::protobuf::RepeatedPtrField<v1::Column>;
using UnknownColumns = std::pmr::unordered_set<std::string_view>;

struct LocatedColumns {
  int rows = -1;                            // -1: there are no columns
  UnknownColumns* unknown = nullptr;        // names of columns that no feature reads
  const v1::Column** by_feature = nullptr;  // by index in the manifest
};

// INVALID_ARGUMENT. `place`: what the column lies in, such as `candidates`.
absl::Status ColumnError(absl::string_view place, absl::string_view column, absl::string_view message);

// Puts the columns of one level, read by `features`, into `located` and checks that they have equal rows. A
// second call adds columns to the same level. `bare_vectors`: vectors may come without lengths.
absl::Status Locate(const Schema& schema, const Columns& columns, const FeatureIndex& features,
                    absl::string_view place, bool bare_vectors, LocatedColumns& located);

}  // namespace dinghy

#endif  // DINGHY_FEATURES_LOCATED_COLUMNS_H_
