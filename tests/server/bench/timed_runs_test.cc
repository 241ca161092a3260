#include "server/bench/timed_runs.h"

#include <array>
#include <atomic>

#include "gtest/gtest.h"

namespace dinghy {
namespace {

TEST(TimedRunsTest, RunsOnEveryThreadAfterWarmingUp) {
  std::array<std::atomic<int>, 3> runs{};
  std::array<std::atomic<int>, 3> prepared{};
  const std::vector<double> seconds = TimedRuns(3, absl::ZeroDuration(), [&](int thread) {
    return TimedWork{.run = [&runs, thread] { ++runs[thread]; },
                     .prepare = [&prepared, thread] { ++prepared[thread]; }};
  });
  EXPECT_EQ(seconds.size(), 15);  // five of each thread
  for (const double one : seconds) EXPECT_GE(one, 0);
  for (int thread = 0; thread < 3; ++thread) {
    EXPECT_EQ(prepared[thread], 5);
    EXPECT_EQ(runs[thread], 8);
  }
}

TEST(TimedRunsTest, Median) {
  EXPECT_EQ(Median({4}), 4);
  EXPECT_EQ(Median({9, 1, 2}), 2);
  EXPECT_EQ(Median({9, 1, 2, 4}), 3);
}

}  // namespace
}  // namespace dinghy
