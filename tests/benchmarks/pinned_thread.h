// For programs that time one thread: it stays on one CPU, and the time it has itself been running is what
// counts, whatever others do meanwhile.
#ifndef DINGHY_TESTS_BENCHMARKS_PINNED_THREAD_H_
#define DINGHY_TESTS_BENCHMARKS_PINNED_THREAD_H_

#include <sched.h>
#include <time.h>

#include <chrono>

namespace dinghy {

// Keeps the thread on the first CPU that it may use.
inline void PinToOneCpu() {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed)) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    sched_setaffinity(0, sizeof(one), &one);
    return;
  }
}

// The time that this thread has been running.
inline std::chrono::nanoseconds ThreadTime() {
  timespec time = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

}  // namespace dinghy

#endif  // DINGHY_TESTS_BENCHMARKS_PINNED_THREAD_H_
