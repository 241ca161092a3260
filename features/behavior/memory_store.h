// Histories in memory: for tests, for trying things out, and for servers that are fed anew at start.
//
//   std::unique_ptr<BehaviorStore> store = NewMemoryStore();
//
// Thread-safe. Nothing survives the process. It never fails.
#ifndef DINGHY_FEATURES_BEHAVIOR_MEMORY_STORE_H_
#define DINGHY_FEATURES_BEHAVIOR_MEMORY_STORE_H_

#include <functional>
#include <memory>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "features/behavior/store.h"

namespace dinghy {

// `now` gives ingest_time_ms to events that have none.
std::unique_ptr<BehaviorStore> NewMemoryStore(std::function<absl::Time()> now = [] { return absl::Now(); });

}  // namespace dinghy

#endif  // DINGHY_FEATURES_BEHAVIOR_MEMORY_STORE_H_
