#include "server/workers/worker_pool.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/ops/cpu.h"

namespace dinghy {

absl::StatusOr<std::unique_ptr<WorkerPool>> WorkerPool::Create(Options options) {
  if (options.workers < 1) {
    return absl::InvalidArgumentError(absl::StrCat("workers: expected at least 1, got ", options.workers));
  }
  if (options.queue < 1) {
    return absl::InvalidArgumentError(absl::StrCat("queue: expected at least 1, got ", options.queue));
  }
  std::unique_ptr<WorkerPool> pool(new WorkerPool(std::move(options)));
  for (int i = 0; i < pool->options_.workers; ++i) {
    pool->threads_.emplace_back([raw = pool.get()] { raw->RunWorker(); });
  }
  return pool;
}

WorkerPool::~WorkerPool() { Shutdown(); }

absl::Status WorkerPool::Submit(Work work) {
  const absl::Time now = options_.now();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (stopping_) return absl::UnavailableError("the server is shutting down");
    if (queue_.size() >= static_cast<size_t>(options_.queue)) {
      return absl::ResourceExhaustedError(
          absl::StrCat("queue: ", queue_.size(), " requests are waiting, the most that may"));
    }
    queue_.push_back({std::move(work), now});
  }
  changed_.notify_one();
  return absl::OkStatus();
}

absl::Duration WorkerPool::RetryAfter() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return usual_service_ * static_cast<int64_t>(queue_.size() + 1) / options_.workers;
}

int WorkerPool::Queued() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<int>(queue_.size());
}

void WorkerPool::Shutdown() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

void WorkerPool::Share(int blocks, ops::Scratch& scratch, WorkerState::BlockTask task) {
  if (blocks < 1) return;
  Shared shared{.task = task, .blocks = blocks};
  std::unique_lock<std::mutex> lock(mutex_);
  shared_.push_back(&shared);
  for (int helpers = std::min(idle_, blocks - 1); helpers > 0; --helpers) changed_.notify_one();
  while (shared.next < shared.blocks) RunBlock(shared, scratch, lock);
  shared.done.wait(lock, [&shared] { return shared.running == 0; });
}

void WorkerPool::RunBlock(Shared& shared, ops::Scratch& scratch, std::unique_lock<std::mutex>& lock) {
  const int block = shared.next++;
  if (shared.next == shared.blocks) std::erase(shared_, &shared);
  ++shared.running;
  lock.unlock();
  shared.task(block, scratch);
  lock.lock();
  if (--shared.running == 0) shared.done.notify_one();  // under the lock: afterwards `shared` may be gone
}

void WorkerPool::RunWorker() {
  ops::PrepareThread();
  WorkerState state;
  state.share = [this, &state](int blocks, WorkerState::BlockTask task) {
    Share(blocks, state.scratch, task);
  };
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    if (!queue_.empty()) {
      Waiting next = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      RunWork(std::move(next), state);
      lock.lock();
    } else if (!shared_.empty()) {
      RunBlock(*shared_.front(), state.scratch, lock);
    } else if (stopping_) {
      return;
    } else {
      ++idle_;
      changed_.wait(lock);
      --idle_;
    }
  }
}

void WorkerPool::RunWork(Waiting next, WorkerState& state) {
  const absl::Time begin = options_.now();
  if (next.work.cancelled && next.work.cancelled()) {
    return next.work.drop(absl::CancelledError("the caller cancelled before scoring began"));
  }
  if (begin >= next.work.deadline) {
    return next.work.drop(absl::DeadlineExceededError("the deadline passed before scoring began"));
  }
  state.queue = begin - next.since;
  next.work.run(state);
  const absl::Duration service = std::max(options_.now() - begin, absl::ZeroDuration());
  std::lock_guard<std::mutex> lock(mutex_);
  usual_service_ = usual_service_ * 0.9 + service * 0.1;
}

}  // namespace dinghy
