// Turns a request into columns of table rows and floats, by the features of a bundle's manifest.
//
//   ASSIGN_OR_RETURN(auto encoder, RequestEncoder::Create(manifest, bundle->files, table_rows, {}));
//   RETURN_IF_ERROR(encoder->Encode(request, batch, notes));   // batch and notes are reused
//
// Takes only requests that are resolved: request_time_ms is set and `sequences` holds every history there is
// (a sequence that is absent is empty). Thread-safe: const after Create.
//
// How columns are read: without lengths there is one value a row; a vector of a user or candidate feature may
// also come as rows * dim values without lengths. A row of length 0 has no value: a bag is empty, any other
// feature takes its missing value or the request is refused. Numeric features take ints as well. Columns that
// no feature reads must have as many rows as the others, or a multiple of as many values. An item that the
// catalog does not hold leaves its catalog features missing.
#ifndef DINGHY_FEATURES_ENCODER_H_
#define DINGHY_FEATURES_ENCODER_H_

#include <google/protobuf/repeated_field.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "features/feature_batch.h"
#include "features/file_contents.h"
#include "proto/behavior.pb.h"
#include "proto/bundle.pb.h"
#include "proto/scoring.pb.h"

namespace dinghy {

struct Schema;

// What encoding noticed, beside the batch.
struct EncodeNotes {
  std::vector<uint32_t> candidate_flags;  // CandidateFlag bits, one per candidate
  std::vector<std::string>
      unknown_columns;           // columns of the request that no feature reads; sorted, each once
  std::vector<int64_t> oov_ids;  // ids that took an OOV or pad row, by index in manifest.features(); counts
                                 // those of behaviors that were left out for their pad row
  // By index in manifest.sequences(): numbers of the behaviors that are used, ascending, in the request's
  // sequence.
  std::vector<std::vector<int>> used_behaviors;
};

struct EncoderOptions {
  int max_candidates = 1000;
};

class RequestEncoder {
 public:
  // Checks the features, sequences and tables' names of `manifest` (every explicit field present, policies
  // with their rows, hash examples true) and reads vocabulary files and catalog.json, which it finds in
  // `files`. `table_rows[i]` is the number of rows of manifest.tables(i): every row that a feature can
  // produce must exist. `manifest` must outlive the encoder. Errors: INVALID_ARGUMENT naming the feature and
  // field, NOT_FOUND naming the file.
  static absl::StatusOr<std::unique_ptr<RequestEncoder>> Create(const v1::BundleManifest& manifest,
                                                                const FileContents& files,
                                                                absl::Span<const int64_t> table_rows,
                                                                const EncoderOptions& options);
  ~RequestEncoder();

  // Encodes `request` into `batch`, whose capacity is kept. Sequences are cut to max_length as the manifest
  // says, then behaviors are left out that take the pad row of the sequence's skip_pad_of; what is
  // left are the full lengths. Errors: INVALID_ARGUMENT naming the column, what was expected and what came.
  absl::Status Encode(const v1::ScoreRequest& request, FeatureBatch& batch, EncodeNotes& notes) const;

  // Number of candidates of a request: the rows of its candidate columns. INVALID_ARGUMENT where they are
  // unequal, or beyond max_candidates.
  absl::StatusOr<int> CountCandidates(const v1::ScoreRequest& request) const;

  // Replaces `data` by the inline form of `events` (oldest first) for sequence `index` of the manifest: what
  // a request carries and a log keeps. Holds the columns that the model reads from events; catalog columns
  // are left to the catalog. An event without a value that a feature reads gives that feature's missing
  // value: its row has length 0, so that encoding gives the same as for a missing column. A bag holds all
  // values of its name, and so do vectors. Numbers are kept as floats, integers among them rounded. Errors:
  // INVALID_ARGUMENT naming the event where its item or value has the wrong type, or is missing and the
  // feature has no missing value; then what `data` holds is of no use.
  absl::Status FromEvents(int index, const google::protobuf::RepeatedPtrField<v1::Event>& events,
                          v1::SequenceData& data) const;

 private:
  RequestEncoder(std::unique_ptr<const Schema> schema, const EncoderOptions& options);

  const std::unique_ptr<const Schema> schema_;
  const EncoderOptions options_;
};

// Copies into `to` those behaviors of `from` whose numbers `behaviors` holds, ascending, such as
// EncodeNotes::used_behaviors. `from` must have equal columns, as those of a request that was encoded.
void CopyBehaviors(const v1::SequenceData& from, absl::Span<const int> behaviors, v1::SequenceData& to);

}  // namespace dinghy

#endif  // DINGHY_FEATURES_ENCODER_H_
