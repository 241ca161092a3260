// Counts what a thread allocates, by operator new or by malloc and its kin, in any library.
//
//   AllocationScope scope;                    // of this thread
//   model->Score(batch, {}, scratch, outputs);
//   EXPECT_EQ(scope.count(), 0);
//
// Linking it replaces the process's operator new and malloc, and so is nothing for sanitizers, which replace
// them as well: there kAllocationsCount is false and nothing is counted. oneDNN builds a small map of
// arguments at every execution, which no interface of it avoids: what it allocates itself is not counted.
//
// Thread-safe; at most 16 scopes at a time, one a thread.
#ifndef DINGHY_TESTS_TESTING_ALLOCATION_COUNTER_H_
#define DINGHY_TESTS_TESTING_ALLOCATION_COUNTER_H_

#include <cstdint>

namespace dinghy {

extern const bool kAllocationsCount;

class AllocationScope {
 public:
  AllocationScope();
  ~AllocationScope();
  AllocationScope(const AllocationScope&) = delete;
  AllocationScope& operator=(const AllocationScope&) = delete;

  // Allocations of this thread since the scope began.
  int64_t count() const;

 private:
  int slot_;
};

}  // namespace dinghy

#endif  // DINGHY_TESTS_TESTING_ALLOCATION_COUNTER_H_
