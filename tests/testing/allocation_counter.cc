#include "tests/testing/allocation_counter.h"

#include <dlfcn.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

namespace dinghy {
namespace {

struct Slot {
  std::atomic<pthread_t> thread = 0;  // 0: free
  std::atomic<int64_t> count = 0;
};
// Of the process, as malloc is.
std::array<Slot, 16> slots;
std::atomic<int> scopes = 0;

bool IsOneDnn(const void* code) {
  Dl_info info;
  return dladdr(code, &info) != 0 && std::strstr(info.dli_fname, "libdnnl") != nullptr;
}

[[maybe_unused]] void Count(const void* caller) {
  if (scopes.load(std::memory_order_relaxed) == 0) return;
  const pthread_t self = pthread_self();
  for (Slot& slot : slots) {
    if (slot.thread.load(std::memory_order_relaxed) != self) continue;
    if (!IsOneDnn(caller)) slot.count.fetch_add(1, std::memory_order_relaxed);
    return;
  }
}

}  // namespace

AllocationScope::AllocationScope() : slot_(0) {
  for (; slot_ < static_cast<int>(slots.size()); ++slot_) {
    pthread_t none = 0;
    if (!slots[slot_].thread.compare_exchange_strong(none, pthread_self())) continue;
    slots[slot_].count = 0;
    ++scopes;
    return;
  }
  std::fprintf(stderr, "AllocationScope: expected at most %zu at a time\n", slots.size());
  std::abort();
}

AllocationScope::~AllocationScope() {
  --scopes;
  slots[slot_].thread = 0;
}

int64_t AllocationScope::count() const { return slots[slot_].count; }

}  // namespace dinghy

#ifdef DINGHY_SANITIZE
const bool dinghy::kAllocationsCount = false;
#else
const bool dinghy::kAllocationsCount = true;

// glibc's own, under the names that it keeps for those who replace the usual ones.
extern "C" {
void* __libc_malloc(std::size_t size);
void* __libc_calloc(std::size_t count, std::size_t size);
void* __libc_realloc(void* memory, std::size_t size);
void* __libc_memalign(std::size_t alignment, std::size_t size);

void* malloc(std::size_t size) {
  dinghy::Count(__builtin_return_address(0));
  return __libc_malloc(size);
}
void* calloc(std::size_t count, std::size_t size) {
  dinghy::Count(__builtin_return_address(0));
  return __libc_calloc(count, size);
}
void* realloc(void* memory, std::size_t size) {
  dinghy::Count(__builtin_return_address(0));
  return __libc_realloc(memory, size);
}
void* memalign(std::size_t alignment, std::size_t size) {
  dinghy::Count(__builtin_return_address(0));
  return __libc_memalign(alignment, size);
}
void* aligned_alloc(std::size_t alignment, std::size_t size) {
  dinghy::Count(__builtin_return_address(0));
  return __libc_memalign(alignment, size);
}
int posix_memalign(void** out, std::size_t alignment, std::size_t size) {
  dinghy::Count(__builtin_return_address(0));
  *out = __libc_memalign(alignment, size);
  return *out == nullptr ? ENOMEM : 0;
}
}

void* operator new(std::size_t size) {
  dinghy::Count(__builtin_return_address(0));
  void* memory = __libc_malloc(std::max<std::size_t>(size, 1));
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void* operator new(std::size_t size, std::align_val_t alignment) {
  dinghy::Count(__builtin_return_address(0));
  void* memory = __libc_memalign(static_cast<std::size_t>(alignment), std::max<std::size_t>(size, 1));
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
#endif
