#include "server/bench/timed_runs.h"

#include <algorithm>
#include <chrono>
#include <latch>
#include <thread>

#include "model/ops/cpu.h"

namespace dinghy {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kWarmUps = 3;
constexpr size_t kLeastRuns = 5;

double Seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

std::vector<double> RunsOfOneThread(const TimedWork& work, absl::Duration duration, std::latch& start) {
  for (int i = 0; i < kWarmUps; ++i) work.run();
  std::vector<double> seconds;
  seconds.reserve(1 << 16);
  start.arrive_and_wait();
  const Clock::time_point begin = Clock::now();
  while (seconds.size() < kLeastRuns || Seconds(Clock::now() - begin) < absl::ToDoubleSeconds(duration)) {
    if (work.prepare) work.prepare();
    const Clock::time_point before = Clock::now();
    work.run();
    seconds.push_back(Seconds(Clock::now() - before));
  }
  return seconds;
}

}  // namespace

std::vector<double> TimedRuns(int threads, absl::Duration duration,
                              const std::function<TimedWork(int thread)>& make_work) {
  std::vector<std::vector<double>> by_thread(threads);
  std::latch start(threads);
  std::vector<std::thread> running;
  for (int t = 0; t < threads; ++t) {
    running.emplace_back([&, t] {
      ops::PrepareThread();
      by_thread[t] = RunsOfOneThread(make_work(t), duration, start);
    });
  }
  for (std::thread& thread : running) thread.join();
  std::vector<double> all;
  for (const std::vector<double>& seconds : by_thread) all.insert(all.end(), seconds.begin(), seconds.end());
  return all;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

}  // namespace dinghy
