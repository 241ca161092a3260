// A vector of floats that starts at a cache line, so that vectors at whole multiples of their size do not
// cross one.
#ifndef DINGHY_MODEL_OPS_ALIGNED_VECTOR_H_
#define DINGHY_MODEL_OPS_ALIGNED_VECTOR_H_

#include <cstddef>
#include <new>
#include <vector>

namespace dinghy::ops {

template <class T>
struct CacheLineAllocator {
  using value_type = T;
  CacheLineAllocator() = default;
  template <class U>
  CacheLineAllocator(const CacheLineAllocator<U>&) {}
  T* allocate(size_t n) { return static_cast<T*>(::operator new(n * sizeof(T), std::align_val_t(64))); }
  void deallocate(T* p, size_t) { ::operator delete(p, std::align_val_t(64)); }
  friend bool operator==(const CacheLineAllocator&, const CacheLineAllocator&) { return true; }
};

using AlignedFloats = std::vector<float, CacheLineAllocator<float>>;

}  // namespace dinghy::ops

#endif  // DINGHY_MODEL_OPS_ALIGNED_VECTOR_H_
