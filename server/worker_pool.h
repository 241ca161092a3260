// Threads that score, behind a bounded queue.
//
//   ASSIGN_OR_RETURN(auto pool, WorkerPool::Create({.workers = ops::CpuBudget(), .queue = 128}));
//   absl::Status status = pool->Submit({.deadline = d, .cancelled = ..., .run = ..., .drop = ...});
//
// Each thread owns one WorkerState. Thread-safe.
#ifndef DINGHY_SERVER_WORKER_POOL_H_
#define DINGHY_SERVER_WORKER_POOL_H_

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/scorer.h"

namespace dinghy {

// Exactly one of `run` and `drop` is called for accepted work, on a worker.
struct Work {
  absl::Time deadline = absl::InfiniteFuture();
  std::function<bool()> cancelled = nullptr;  // may be empty; asked when a worker gets to it
  // Does the work; WorkerState::queue is how long it waited.
  std::function<void(WorkerState&)> run = nullptr;
  // DEADLINE_EXCEEDED: the deadline had passed when a worker got to it; CANCELLED: nobody waits for it any
  // more.
  std::function<void(const absl::Status&)> drop = nullptr;
};

class WorkerPool {
 public:
  struct Options {
    int workers = 1;
    int queue = 64;  // work that may wait
    std::function<absl::Time()> now = [] { return absl::Now(); };
  };

  // INVALID_ARGUMENT if workers or queue is below 1.
  static absl::StatusOr<std::unique_ptr<WorkerPool>> Create(Options options);
  // Shuts down.
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // Takes the work, or says why not, with neither function called: RESOURCE_EXHAUSTED (the queue is full),
  // UNAVAILABLE (shutting down). Never blocks.
  absl::Status Submit(Work work);

  // When a place in the queue is likely to be free: what was refused should not come back earlier.
  absl::Duration RetryAfter() const;

  int Queued() const;

  // Takes no more work, finishes what was taken, and ends the threads. May be called again.
  void Shutdown();

 private:
  struct Waiting {
    Work work;
    absl::Time since;
  };

  explicit WorkerPool(Options options) : options_(std::move(options)) {}
  void RunWorker();

  const Options options_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Waiting> queue_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Duration usual_service_ ABSL_GUARDED_BY(mutex_) = absl::Milliseconds(1);  // moving average
  std::vector<std::thread> threads_;
};

}  // namespace dinghy

#endif  // DINGHY_SERVER_WORKER_POOL_H_
