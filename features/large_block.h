// Memory for tables that are read at random. From 4 MiB on it lies in huge pages where the kernel gives them
// (2 MiB on x86, by madvise): a read then seldom has to walk the page tables first, which costs as much as
// the read.
//
//   std::vector<Slot, LargeBlockAllocator<Slot>> slots(20'000'000);
//
// Stateless, so thread-safe.
#ifndef DINGHY_FEATURES_LARGE_BLOCK_H_
#define DINGHY_FEATURES_LARGE_BLOCK_H_

#include <sys/mman.h>

#include <cstddef>
#include <cstdlib>
#include <limits>
#include <new>

namespace dinghy {

// At least `bytes`, aligned to 64 bytes or more, not initialized; null if there are none. Freed with
// std::free.
inline void* AllocateLargeBlock(size_t bytes) {
  constexpr size_t kLine = 64;
  constexpr size_t kHugePage = size_t{2} << 20;
  const size_t align = bytes < 2 * kHugePage ? kLine : kHugePage;
  if (bytes > std::numeric_limits<size_t>::max() - align) return nullptr;
  const size_t allocated = (bytes + align - 1) / align * align;
  void* p = std::aligned_alloc(align, allocated);
  // Where the kernel refuses, the block is as good, only slower.
  if (p != nullptr && align == kHugePage) madvise(p, allocated, MADV_HUGEPAGE);
  return p;
}

template <typename T>
struct LargeBlockAllocator {
  using value_type = T;
  LargeBlockAllocator() = default;
  template <typename U>
  LargeBlockAllocator(const LargeBlockAllocator<U>&) {}  // NOLINT: as allocators are required to convert

  T* allocate(size_t count) {
    if (count > std::numeric_limits<size_t>::max() / sizeof(T)) throw std::bad_alloc();
    void* p = AllocateLargeBlock(count * sizeof(T));
    if (p == nullptr) throw std::bad_alloc();
    return static_cast<T*>(p);
  }
  void deallocate(T* p, size_t) { std::free(p); }
  bool operator==(const LargeBlockAllocator&) const { return true; }
};

}  // namespace dinghy

#endif  // DINGHY_FEATURES_LARGE_BLOCK_H_
