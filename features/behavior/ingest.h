// Reads behavior events from files and streams them, in batches, to a store or a server.
//
//   IngestCounts counts;
//   absl::Status status = IngestFile(
//       "events.tsv", {}, [&](absl::Span<const v1::Event> events) { return store->Append(events); }, counts);
//
// JSONL: the protobuf JSON of one Event a line, such as
//
//   {"userId": "alice", "eventTimeMs": "1546300800000", "itemId": "7", "action": "click"}
//
// TSV: a header line names the columns, in any order, separated by tabs; there is no quoting:
//
//   user_id, event_time_ms, action  needed
//   item_id, item_key               one or both; a row has exactly one of them
//   ingest_time_ms                  default: set by the store
//   event_id
//   <name>:int|float|string         a value of the event; an empty cell: the event has no such value
//
// The event_id of an event without one is made of the number of its line in the file, from 0, neither header
// nor empty lines counted, and of its content: events of one millisecond stay apart and in the order of their
// lines, also from one file to another. Empty lines are skipped. Repeating an ingestion is harmless: what is
// there already is counted as duplicates.
#ifndef DINGHY_FEATURES_BEHAVIOR_INGEST_H_
#define DINGHY_FEATURES_BEHAVIOR_INGEST_H_

#include <cstdint>
#include <functional>
#include <istream>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "features/behavior/store.h"
#include "proto/behavior.pb.h"

namespace dinghy {

enum class EventFormat {
  kAuto,  // by the name (.jsonl, .json, .tsv), else by the first line that is not empty: '{' begins JSON
  kJsonl,
  kTsv,
};

struct IngestCounts {
  int64_t read = 0;        // good events read
  int64_t appended = 0;    // of these, stored
  int64_t duplicates = 0;  // of these, there already
  int64_t bad_lines = 0;   // skipped, with skip_bad
};

struct IngestOptions {
  EventFormat format = EventFormat::kAuto;
  int batch_size = 1000;  // events per append, at least 1
  size_t max_line_bytes = 1 << 20;
  // Go on after a bad line; it is counted, and `on_bad_line` is told. Otherwise the first bad line ends the
  // run.
  bool skip_bad = false;
  std::function<void(const absl::Status&)> on_bad_line = nullptr;
  // Called after every append, for showing progress.
  std::function<void(const IngestCounts&)> on_progress = nullptr;
};

using AppendFunction = std::function<absl::StatusOr<AppendResult>(absl::Span<const v1::Event>)>;

// Reads `path`, "-" for standard input. `counts` is added to, and true whatever the outcome: at a bad line
// all events before it have been appended. Errors: INVALID_ARGUMENT naming file:line (DATA_LOSS if the file
// cannot be read further), NOT_FOUND naming the file, or what `append` returned, with the lines of the batch
// that was not stored.
absl::Status IngestFile(const std::string& path, const IngestOptions& options, const AppendFunction& append,
                        IngestCounts& counts);

// The same for a stream; `name` stands in messages.
absl::Status IngestStream(std::istream& stream, const std::string& name, const IngestOptions& options,
                          const AppendFunction& append, IngestCounts& counts);

}  // namespace dinghy

#endif  // DINGHY_FEATURES_BEHAVIOR_INGEST_H_
