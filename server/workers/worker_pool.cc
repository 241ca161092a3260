#include "server/workers/worker_pool.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/ops/cpu.h"

namespace dinghy {

WorkerPool::WorkerPool(Options options) : options_(std::move(options)) {
  for (int i = 0; i < options_.workers; ++i) {
    auto state = std::make_unique<WorkerState>();
    state->share = [this, &scratch = state->scratch](int blocks, WorkerState::BlockTask task) {
      Share(blocks, scratch, task);
    };
    free_.push_back(std::move(state));
  }
}

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

absl::Status WorkerPool::RunOrSubmit(Work work) {
  std::unique_ptr<WorkerState> state;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!stopping_ && queue_.empty() && !free_.empty()) state = TakeFreeState();
  }
  if (state == nullptr) return Submit(std::move(work));
  RunWork({std::move(work), options_.now()}, *state);
  std::lock_guard<std::mutex> lock(mutex_);
  free_.push_back(std::move(state));
  if (stopping_) {
    changed_.notify_all();  // workers that are to end, and Shutdown
  } else if (!queue_.empty() || !shared_.empty()) {
    changed_.notify_one();
  }
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
  // Callers of RunOrSubmit.
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return free_.size() == static_cast<size_t>(options_.workers); });
}

void WorkerPool::Share(int blocks, ops::Scratch& scratch, WorkerState::BlockTask task) {
  if (blocks < 1) return;
  Shared shared{.task = task, .blocks = blocks};
  std::unique_lock<std::mutex> lock(mutex_);
  shared_.push_back(&shared);
  const int helpers = std::min(static_cast<int>(free_.size()), blocks - 1);
  for (int i = 0; i < helpers; ++i) changed_.notify_one();
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

std::unique_ptr<WorkerState> WorkerPool::TakeFreeState() {
  std::unique_ptr<WorkerState> state = std::move(free_.back());
  free_.pop_back();
  return state;
}

void WorkerPool::RunWorker() {
  ops::PrepareThread();
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stopping_ || !queue_.empty()) {
    if (free_.empty() || (queue_.empty() && shared_.empty())) {
      changed_.wait(lock);
      continue;
    }
    std::unique_ptr<WorkerState> state = TakeFreeState();
    if (!queue_.empty()) {
      Waiting next = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      RunWork(std::move(next), *state);
      lock.lock();
    } else {
      RunBlock(*shared_.front(), state->scratch, lock);
    }
    free_.push_back(std::move(state));
  }
  changed_.notify_all();  // others may wait for a state, with no more work for it
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
