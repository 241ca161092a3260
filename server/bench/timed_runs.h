// Runs the same work on several threads at once and takes the time of each run.
//
//   std::vector<double> seconds =
//       TimedRuns(2, absl::Seconds(1), [&](int thread) { return TimedWork{.run = [=] { Work(thread); }}; });
//   Median(seconds)
#ifndef DINGHY_SERVER_BENCH_TIMED_RUNS_H_
#define DINGHY_SERVER_BENCH_TIMED_RUNS_H_

#include <functional>
#include <vector>

#include "absl/time/time.h"

namespace dinghy {

struct TimedWork {
  std::function<void()> run;
  std::function<void()> prepare = {};  // before each run, not timed; may be empty
};

// Seconds of every run on every thread, in no order. `make_work(t)` is called on thread t, which runs its
// work a few times before all threads begin together, then for `duration` and at least five times.
std::vector<double> TimedRuns(int threads, absl::Duration duration,
                              const std::function<TimedWork(int thread)>& make_work);

// The middle one; of an even number the mean of the middle two. `values` holds at least one.
double Median(std::vector<double> values);

}  // namespace dinghy

#endif  // DINGHY_SERVER_BENCH_TIMED_RUNS_H_
