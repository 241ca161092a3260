// Histories in an embedded RocksDB: one folder, one process.
//
//   ASSIGN_OR_RETURN(auto store, OpenRocksDbStore({.path = "/var/lib/dinghy/behavior"}));
//
// One record per event. Key: the byte 1, the length of the user id (2 bytes), the user id, event_time_ms (8)
// and event_id (8), numbers big-endian: no user's keys begin with another's, and a user's events lie together
// in their order. Value: the serialized Event. Thread-safe.
#ifndef DINGHY_FEATURES_BEHAVIOR_ROCKSDB_STORE_H_
#define DINGHY_FEATURES_BEHAVIOR_ROCKSDB_STORE_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "features/behavior/store.h"

namespace dinghy {

struct RocksDbOptions {
  std::string path;  // made where it does not exist
  // Sync the write-ahead log before an append is acknowledged. Without it a crash of the process loses
  // nothing, a crash of the machine may lose acknowledged events.
  bool sync = true;
  // Gives ingest_time_ms to events that have none.
  std::function<absl::Time()> now = [] { return absl::Now(); };
};

// Errors: INVALID_ARGUMENT without a path; FAILED_PRECONDITION naming the folder if it is open already, here
// or in another process, or cannot be a folder; DATA_LOSS if the database is damaged; UNAVAILABLE for other
// failures.
absl::StatusOr<std::unique_ptr<BehaviorStore>> OpenRocksDbStore(RocksDbOptions options);

}  // namespace dinghy

#endif  // DINGHY_FEATURES_BEHAVIOR_ROCKSDB_STORE_H_
