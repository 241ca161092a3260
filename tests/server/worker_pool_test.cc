// The bounded queue and its workers. Work blocks on promises, the clock stands still: nothing here waits for
// time. A pool comes after all that its work refers to, so that its workers have ended when that goes.
#include "server/worker_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>

namespace dinghy {
namespace {

using ::testing::HasSubstr;

// Work that occupies a worker until it is let go.
class Blocker {
 public:
  Work MakeWork() {
    return {.run =
                [this](WorkerState&) {
                  started_.set_value();
                  released_.get_future().wait();
                },
            .drop = [](const absl::Status& status) { ADD_FAILURE() << status; }};
  }
  void AwaitStart() { started_.get_future().wait(); }
  void Release() { released_.set_value(); }

 private:
  std::promise<void> started_;
  std::promise<void> released_;
};

Work Recording(std::promise<absl::Status>& outcome) {
  return {.run = [&outcome](WorkerState&) { outcome.set_value(absl::OkStatus()); },
          .drop = [&outcome](const absl::Status& status) { outcome.set_value(status); }};
}

TEST(WorkerPoolTest, RefusesSenselessOptions) {
  EXPECT_EQ(WorkerPool::Create({.workers = 0}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(WorkerPool::Create({.queue = 0}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(WorkerPoolTest, RunsOnAsManyWorkersAsItHas) {
  Blocker blockers[3];
  auto pool = *WorkerPool::Create({.workers = 3, .queue = 3});
  for (Blocker& blocker : blockers) ASSERT_TRUE(pool->Submit(blocker.MakeWork()).ok());
  for (Blocker& blocker : blockers) blocker.AwaitStart();  // all at the same time
  for (Blocker& blocker : blockers) blocker.Release();
}

TEST(WorkerPoolTest, AFullQueueRefusesWithAHint) {
  Blocker blocker;
  std::promise<absl::Status> first, second, third, fourth;
  auto pool = *WorkerPool::Create({.workers = 1, .queue = 2});
  ASSERT_TRUE(pool->Submit(blocker.MakeWork()).ok());
  blocker.AwaitStart();
  EXPECT_TRUE(pool->Submit(Recording(first)).ok());
  EXPECT_TRUE(pool->Submit(Recording(second)).ok());
  EXPECT_EQ(pool->Queued(), 2);
  const absl::Status refused = pool->Submit(Recording(third));
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(refused.message(), HasSubstr("2"));
  EXPECT_GT(pool->RetryAfter(), absl::ZeroDuration());
  blocker.Release();
  EXPECT_TRUE(first.get_future().get().ok());
  EXPECT_TRUE(second.get_future().get().ok());
  EXPECT_TRUE(pool->Submit(Recording(fourth)).ok());  // there is room again
  EXPECT_TRUE(fourth.get_future().get().ok());
}

TEST(WorkerPoolTest, WorkPastItsDeadlineIsDroppedAndTheWaitIsMeasured) {
  std::atomic<int64_t> now_ms = 1000;
  Blocker blocker;
  std::promise<absl::Status> late, in_time;
  std::promise<absl::Duration> waited;
  auto pool = *WorkerPool::Create(
      {.workers = 1, .queue = 4, .now = [&now_ms] { return absl::FromUnixMillis(now_ms); }});
  ASSERT_TRUE(pool->Submit(blocker.MakeWork()).ok());
  blocker.AwaitStart();
  Work late_work = Recording(late);
  late_work.deadline = absl::FromUnixMillis(1050);
  Work other = Recording(in_time);
  other.deadline = absl::FromUnixMillis(1051);
  Work measured{.run = [&](WorkerState& state) { waited.set_value(state.queue); },
                .drop = [](const absl::Status&) {}};
  ASSERT_TRUE(pool->Submit(std::move(late_work)).ok());
  ASSERT_TRUE(pool->Submit(std::move(other)).ok());
  ASSERT_TRUE(pool->Submit(std::move(measured)).ok());
  now_ms = 1050;
  blocker.Release();
  EXPECT_EQ(late.get_future().get().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(in_time.get_future().get().ok());
  EXPECT_EQ(waited.get_future().get(), absl::Milliseconds(50));
}

TEST(WorkerPoolTest, CancelledWorkIsSkipped) {
  Blocker blocker;
  std::atomic<bool> cancelled = false;
  std::promise<absl::Status> outcome;
  auto pool = *WorkerPool::Create({.workers = 1, .queue = 4});
  ASSERT_TRUE(pool->Submit(blocker.MakeWork()).ok());
  blocker.AwaitStart();
  Work work = Recording(outcome);
  work.cancelled = [&cancelled] { return cancelled.load(); };
  ASSERT_TRUE(pool->Submit(std::move(work)).ok());
  cancelled = true;
  blocker.Release();
  EXPECT_EQ(outcome.get_future().get().code(), absl::StatusCode::kCancelled);
}

TEST(WorkerPoolTest, ShutdownFinishesWhatWasTakenAndTakesNoMore) {
  Blocker blocker;
  std::atomic<int> done = 0;
  std::promise<absl::Status> unused;
  auto pool = *WorkerPool::Create({.workers = 1, .queue = 10});
  ASSERT_TRUE(pool->Submit(blocker.MakeWork()).ok());
  blocker.AwaitStart();
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(
        pool->Submit({.run = [&done](WorkerState&) { ++done; }, .drop = [](const absl::Status&) {}}).ok());
  }
  blocker.Release();
  pool->Shutdown();
  EXPECT_EQ(done, 10);
  EXPECT_EQ(pool->Submit(Recording(unused)).code(), absl::StatusCode::kUnavailable);
  pool->Shutdown();
}

TEST(WorkerPoolTest, ManySubmittersLoseNothing) {
  std::atomic<int> done = 0;
  auto pool = *WorkerPool::Create({.workers = 2, .queue = 1000});
  std::vector<std::thread> submitters;
  for (int t = 0; t < 4; ++t) {
    submitters.emplace_back([&] {
      for (int i = 0; i < 250; ++i) {
        EXPECT_TRUE(
            pool->Submit({.run = [&done](WorkerState&) { ++done; }, .drop = [](const absl::Status&) {}})
                .ok());
      }
    });
  }
  for (std::thread& thread : submitters) thread.join();
  pool->Shutdown();
  EXPECT_EQ(done, 1000);
}

}  // namespace
}  // namespace dinghy
