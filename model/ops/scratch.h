// Memory for one scoring at a time: activations and oneDNN's scratchpads. Each worker owns one.
//
//   Scratch scratch;
//   float* x = scratch.Floats(rows * width);   // 64-byte aligned, not initialised, valid until the scope
//   ends { Scratch::Scope scope(scratch); ... }     // gives back what was taken since
//
// Thread-compatible. Grows to the largest request and stays there.
#ifndef DINGHY_MODEL_OPS_SCRATCH_H_
#define DINGHY_MODEL_OPS_SCRATCH_H_

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

namespace dinghy::ops {

class Scratch {
 public:
  Scratch() = default;
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  // `count` floats, 64-byte aligned, with at least 64 readable and writable bytes behind them, so that vector
  // code may run past the end of a row.
  float* Floats(size_t count) {
    const size_t need = (count + 31) / 16 * 16;
    while (chunk_ < chunks_.size() && chunks_[chunk_].size - used_ < need) {
      ++chunk_;
      used_ = 0;
    }
    if (chunk_ == chunks_.size()) {
      const size_t size = need > kChunk ? need : kChunk;
      chunks_.push_back({Allocate(size), size});
      used_ = 0;
    }
    float* out = chunks_[chunk_].data.get() + used_;
    used_ += need;
    return out;
  }

  class Scope {
   public:
    explicit Scope(Scratch& scratch) : scratch_(scratch), chunk_(scratch.chunk_), used_(scratch.used_) {}
    ~Scope() {
      scratch_.chunk_ = chunk_;
      scratch_.used_ = used_;
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Scratch& scratch_;
    size_t chunk_;
    size_t used_;
  };

 private:
  struct Free {
    void operator()(float* p) const { std::free(p); }
  };
  struct Chunk {
    std::unique_ptr<float[], Free> data;
    size_t size;
  };
  static constexpr size_t kChunk = size_t{1} << 18;  // floats: 1 MiB

  static std::unique_ptr<float[], Free> Allocate(size_t count) {
    void* p = std::aligned_alloc(64, count * sizeof(float));
    if (p == nullptr) throw std::bad_alloc();
    return std::unique_ptr<float[], Free>(static_cast<float*>(p));
  }

  std::vector<Chunk> chunks_;
  size_t chunk_ = 0;  // in use
  size_t used_ = 0;   // floats of it
};

}  // namespace dinghy::ops

#endif  // DINGHY_MODEL_OPS_SCRATCH_H_
