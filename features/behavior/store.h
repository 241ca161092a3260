// Where behavior histories live.
//
//   std::unique_ptr<BehaviorStore> store = ...;   // memory_store.h, rocksdb_store.h
//   RETURN_IF_ERROR(store->Append({event}).status());
//   EventList events;
//   RETURN_IF_ERROR(store->Fetch("alice", query, events));   // again and again with the same `events`
//
// Implementations are thread-safe. A fetch sees every append that was acknowledged before it began.
#ifndef DINGHY_FEATURES_BEHAVIOR_STORE_H_
#define DINGHY_FEATURES_BEHAVIOR_STORE_H_

#include <google/protobuf/repeated_field.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/behavior.pb.h"

namespace dinghy {

// A list that is used again reuses its events and their texts: nothing is allocated in steady state.
using EventList = google::protobuf::RepeatedPtrField<v1::Event>;

class BehaviorReader {
 public:
  virtual ~BehaviorReader() = default;

  // Replaces `events` by the events of `user_id` that `query` asks for, oldest first by (event_time_ms,
  // event_id). No such user: none. Errors: UNAVAILABLE if the backend fails, DATA_LOSS naming the key if a
  // record cannot be read; then what `events` holds is of no use.
  virtual absl::Status Fetch(std::string_view user_id, const v1::HistoryQuery& query,
                             EventList& events) const = 0;
};

struct AppendResult {
  int64_t appended = 0;
  int64_t duplicates = 0;  // were there already; left as they are
};

class BehaviorWriter {
 public:
  virtual ~BehaviorWriter() = default;

  // Stores `events`, all or none. Returns once they are as durable as the backend is configured.
  // Errors: INVALID_ARGUMENT naming the first bad event (see CheckEvent); UNAVAILABLE if the backend fails.
  virtual absl::StatusOr<AppendResult> Append(absl::Span<const v1::Event> events) = 0;

  // Erases all events of `user_id`; returns how many there were.
  virtual absl::StatusOr<int64_t> DeleteUser(std::string_view user_id) = 0;
};

class BehaviorStore : public BehaviorReader, public BehaviorWriter {
 public:
  // What a log line says of it: backend, place, durability.
  virtual std::string Describe() const = 0;
};

// OK, or INVALID_ARGUMENT naming the event: it needs a user_id of 1 to 1024 bytes, an item, an action and
// event_time_ms >= 0; its values need names and are finite; all text is UTF-8.
absl::Status CheckEvent(const v1::Event& event);

}  // namespace dinghy

#endif  // DINGHY_FEATURES_BEHAVIOR_STORE_H_
