// The bounded queue and its workers. Work blocks on promises, the clock stands still: nothing here waits for
// time. A pool comes after all that its work refers to, so that its workers have ended when that goes.
#include "server/workers/worker_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <future>
#include <vector>

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

TEST(WorkerPoolTest, ACallerRunsItsWorkWhereAStateIsFreeAndNothingWaits) {
  Blocker blocker;
  std::promise<absl::Status> waiting;
  std::thread::id ran_on;
  auto pool = *WorkerPool::Create({.workers = 1, .queue = 1});
  const Work recording{.run = [&](WorkerState&) { ran_on = std::this_thread::get_id(); },
                       .drop = [](const absl::Status& status) { ADD_FAILURE() << status; }};
  ASSERT_TRUE(pool->RunOrSubmit(recording).ok());
  EXPECT_EQ(ran_on, std::this_thread::get_id());

  ASSERT_TRUE(pool->Submit(blocker.MakeWork()).ok());
  blocker.AwaitStart();
  ASSERT_TRUE(pool->RunOrSubmit(Recording(waiting)).ok());
  EXPECT_EQ(pool->Queued(), 1);
  EXPECT_EQ(pool->RunOrSubmit(recording).code(), absl::StatusCode::kResourceExhausted);
  blocker.Release();
  EXPECT_TRUE(waiting.get_future().get().ok());
}

TEST(WorkerPoolTest, ACallersWorkCountsAsAWorkers) {
  Blocker blocker;
  std::promise<absl::Status> waiting;
  std::future<absl::Status> waited = waiting.get_future();
  auto pool = *WorkerPool::Create({.workers = 1, .queue = 1});
  std::thread caller([&] { EXPECT_TRUE(pool->RunOrSubmit(blocker.MakeWork()).ok()); });
  blocker.AwaitStart();
  ASSERT_TRUE(pool->Submit(Recording(waiting)).ok());
  EXPECT_EQ(pool->Queued(), 1);                     // the only worker must not begin it beside the caller's
  std::thread shutdown([&] { pool->Shutdown(); });  // waits for both
  blocker.Release();
  EXPECT_TRUE(waited.get().ok());
  caller.join();
  shutdown.join();
  EXPECT_EQ(pool->Queued(), 0);
}

TEST(WorkerPoolTest, ACallersWorkPastItsDeadlineIsDropped) {
  std::promise<absl::Status> late;
  auto pool = *WorkerPool::Create({.workers = 1, .queue = 1, .now = [] { return absl::FromUnixMillis(10); }});
  Work work = Recording(late);
  work.deadline = absl::FromUnixMillis(10);
  ASSERT_TRUE(pool->RunOrSubmit(std::move(work)).ok());
  EXPECT_EQ(late.get_future().get().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST(WorkerPoolTest, ManySubmittersLoseNothing) {
  std::atomic<int> done = 0;
  auto pool = *WorkerPool::Create({.workers = 2, .queue = 1000});
  std::vector<std::thread> submitters;
  for (int t = 0; t < 4; ++t) {
    submitters.emplace_back([&] {
      for (int i = 0; i < 250; ++i) {
        Work work{.run = [&done](WorkerState&) { ++done; }, .drop = [](const absl::Status&) {}};
        EXPECT_TRUE((i % 2 == 0 ? pool->Submit(std::move(work)) : pool->RunOrSubmit(std::move(work))).ok());
      }
    });
  }
  for (std::thread& thread : submitters) thread.join();
  pool->Shutdown();
  EXPECT_EQ(done, 1000);
}

TEST(WorkerPoolTest, SharedBlocksRunOnceEach) {
  auto pool = *WorkerPool::Create({.workers = 3});
  ops::Scratch scratch;
  for (const int blocks : {0, 1, 2, 7, 100}) {
    std::vector<std::atomic<int>> runs(blocks);
    pool->Share(blocks, scratch, [&](int block, ops::Scratch&) { ++runs[block]; });
    for (int block = 0; block < blocks; ++block) EXPECT_EQ(runs[block], 1) << block;
  }
}

TEST(WorkerPoolTest, IdleWorkersTakeBlocks) {
  auto pool = *WorkerPool::Create({.workers = 2});
  ops::Scratch scratch;
  std::barrier<> together(3);  // all three must be at work at the same time
  pool->Share(3, scratch, [&](int, ops::Scratch&) { together.arrive_and_wait(); });
}

TEST(WorkerPoolTest, BusyWorkersAreNotWaitedFor) {
  Blocker blocker;
  auto pool = *WorkerPool::Create({.workers = 1});
  ASSERT_TRUE(pool->Submit(blocker.MakeWork()).ok());
  blocker.AwaitStart();
  ops::Scratch scratch;
  int sum = 0;
  pool->Share(4, scratch, [&](int block, ops::Scratch& given) {
    EXPECT_EQ(&given, &scratch);
    sum += block;
  });
  EXPECT_EQ(sum, 6);
  blocker.Release();
}

TEST(WorkerPoolTest, WorkInTheQueueComesBeforeAnotherBlock) {
  auto pool = *WorkerPool::Create({.workers = 1});
  ops::Scratch scratch;
  std::promise<int> work;
  std::future<int> worked = work.get_future();
  std::atomic<int> helped = 0;
  std::barrier<> together(2);
  pool->Share(100, scratch, [&](int block, ops::Scratch& given) {
    if (block < 2) together.arrive_and_wait();
    if (&given != &scratch) {
      // The only worker is here: what comes now is next.
      if (++helped > 1) return;
      EXPECT_TRUE(pool->Submit({.run = [&](WorkerState&) { work.set_value(helped); }}).ok());
      return;
    }
    worked.wait();
  });
  EXPECT_EQ(worked.get(), 1);
}

TEST(WorkerPoolTest, WorkersHelpEachOther) {
  auto pool = *WorkerPool::Create({.workers = 2});
  std::promise<void> done;
  std::barrier<> together(2);
  ASSERT_TRUE(pool->Submit({.run =
                                [&](WorkerState& state) {
                                  state.share(2, [&](int, ops::Scratch&) { together.arrive_and_wait(); });
                                  done.set_value();
                                },
                            .drop = [](const absl::Status& status) { ADD_FAILURE() << status; }})
                  .ok());
  done.get_future().wait();
}

}  // namespace
}  // namespace dinghy
