// Random requests for any bundle, encoded already: what the engine is timed on.
//
//   ASSIGN_OR_RETURN(FeatureBatch batch,
//                    SyntheticBatch(manifest, table_rows, {.history = 100, .candidates = 500, .seed = 1}));
//
// Stateless, so thread-safe.
#ifndef DINGHY_SERVER_BENCH_SYNTHETIC_BATCH_H_
#define DINGHY_SERVER_BENCH_SYNTHETIC_BATCH_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "features/feature_batch.h"
#include "proto/bundle.pb.h"

namespace dinghy {

struct SyntheticBatchOptions {
  int history = 0;  // behaviors of each sequence
  int candidates = 1;
  uint64_t seed = 1;
};

// Ids are rows of their table at random, each as likely; bags hold none to four; numbers lie within 1 of
// zero. `table_rows` is the number of rows of manifest.tables(i), as TableRows gives it. The same arguments
// give the same batch. INVALID_ARGUMENT where a sequence cannot hold so many behaviors.
absl::StatusOr<FeatureBatch> SyntheticBatch(const v1::BundleManifest& manifest,
                                            absl::Span<const int64_t> table_rows,
                                            const SyntheticBatchOptions& options);

}  // namespace dinghy

#endif  // DINGHY_SERVER_BENCH_SYNTHETIC_BATCH_H_
