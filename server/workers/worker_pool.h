// Threads that score, behind a bounded queue.
//
//   ASSIGN_OR_RETURN(auto pool, WorkerPool::Create({.workers = ops::CpuBudget(), .queue = 128}));
//   absl::Status status = pool->Submit({.deadline = d, .cancelled = ..., .run = ..., .drop = ...});
//
// There are as many WorkerStates as workers, and who runs work holds one: a thread of the pool, or a caller
// of RunOrSubmit. Thread-safe.
#ifndef DINGHY_SERVER_WORKERS_WORKER_POOL_H_
#define DINGHY_SERVER_WORKERS_WORKER_POOL_H_

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
#include "server/workers/worker_state.h"

namespace dinghy {

// Exactly one of `run` and `drop` is called for accepted work, with one of the pool's states.
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

  // Where a state is free and nothing waits, runs the work here and now: no thread has to wake up for it.
  // Else as Submit. The caller must have called ops::PrepareThread, and nobody may need it meanwhile.
  absl::Status RunOrSubmit(Work work);

  // When a place in the queue is likely to be free: what was refused should not come back earlier.
  absl::Duration RetryAfter() const;

  int Queued() const;

  // Runs task(block, its thread's scratch) once for each of `blocks` blocks: on the calling thread, with
  // `scratch`, and on workers that have nothing else to do; returns when all are done. Waits for no block
  // that has not begun, and work in the queue comes before another block. WorkerState::share of the workers.
  void Share(int blocks, ops::Scratch& scratch, WorkerState::BlockTask task);

  // Takes no more work, finishes what was taken (that of callers, too), and ends the threads. May be called
  // again.
  void Shutdown();

 private:
  struct Waiting {
    Work work;
    absl::Time since;
  };

  // A call of Share, on its thread's stack.
  struct Shared {
    WorkerState::BlockTask task;
    int blocks = 0;
    int next = 0;     // block that nobody has begun
    int running = 0;  // blocks
    std::condition_variable done = {};
  };

  explicit WorkerPool(Options options);
  std::unique_ptr<WorkerState> TakeFreeState() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RunWorker();
  void RunWork(Waiting next, WorkerState& state);
  // Runs the next block, with the lock given back meanwhile.
  void RunBlock(Shared& shared, ops::Scratch& scratch,
                std::unique_lock<std::mutex>& lock) ABSL_NO_THREAD_SAFETY_ANALYSIS;

  const Options options_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Waiting> queue_ ABSL_GUARDED_BY(mutex_);
  std::vector<Shared*> shared_ ABSL_GUARDED_BY(mutex_);  // with blocks that nobody has begun
  std::vector<std::unique_ptr<WorkerState>> free_ ABSL_GUARDED_BY(mutex_);  // the last was used last
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Duration usual_service_ ABSL_GUARDED_BY(mutex_) = absl::Milliseconds(1);  // moving average
  std::vector<std::thread> threads_;
};

}  // namespace dinghy

#endif  // DINGHY_SERVER_WORKERS_WORKER_POOL_H_
