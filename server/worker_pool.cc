#include "server/worker_pool.h"

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

void WorkerPool::RunWorker() {
  ops::PrepareThread();
  WorkerState state;
  while (true) {
    Waiting next;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
      if (queue_.empty()) return;
      next = std::move(queue_.front());
      queue_.pop_front();
    }
    const absl::Time begin = options_.now();
    if (next.work.cancelled && next.work.cancelled()) {
      next.work.drop(absl::CancelledError("the caller cancelled before scoring began"));
      continue;
    }
    if (begin >= next.work.deadline) {
      next.work.drop(absl::DeadlineExceededError("the deadline passed before scoring began"));
      continue;
    }
    state.queue = begin - next.since;
    next.work.run(state);
    const absl::Duration service = std::max(options_.now() - begin, absl::ZeroDuration());
    std::lock_guard<std::mutex> lock(mutex_);
    usual_service_ = usual_service_ * 0.9 + service * 0.1;
  }
}

}  // namespace dinghy
