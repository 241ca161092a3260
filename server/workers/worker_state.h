// What one worker keeps from request to request, and what it says of the last one.
#ifndef DINGHY_SERVER_WORKERS_WORKER_STATE_H_
#define DINGHY_SERVER_WORKERS_WORKER_STATE_H_

#include <cstddef>
#include <functional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "features/behavior/store.h"
#include "features/encoder.h"
#include "features/feature_batch.h"
#include "model/model.h"
#include "model/ops/scratch.h"

namespace dinghy {

// What the user cache did for a request.
struct UserCacheUse {
  bool asked = false;  // else the request had no user's state worth keeping
  bool hit = false;
  int evicted = 0;   // states that went to make room
  size_t bytes = 0;  // in the cache afterwards; where asked
};

// Thread-compatible.
struct WorkerState {
  // Buffers, reused.
  FeatureBatch batch;
  EventList events;
  EncodeNotes notes;
  ops::Scratch scratch;
  ModelOutputs outputs;
  std::string user_key;

  // Runs task(block, scratch) once for each of `blocks` blocks, on this thread and whatever others are idle,
  // each with scratch of its own; returns when all are done. Empty: there are no others.
  using BlockTask = absl::FunctionRef<void(int block, ops::Scratch& scratch)>;
  std::function<void(int blocks, BlockTask task)> share;

  // Where the time went. `queue` is set by the caller before Scorer::Score, which sets the others.
  absl::Duration queue;
  absl::Duration history;
  absl::Duration encode;
  absl::Duration model;
  UserCacheUse user_cache;
};

}  // namespace dinghy

#endif  // DINGHY_SERVER_WORKERS_WORKER_STATE_H_
