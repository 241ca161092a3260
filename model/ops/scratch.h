// Memory for one scoring at a time: activations and oneDNN's scratchpads. Each worker owns one.
//
//   Scratch scratch;
//   float* x = scratch.Floats(rows * width);   // 64-byte aligned, not initialised, valid until the scope
//   ends { Scratch::Scope scope(scratch); ... }     // gives back what was taken since
//
// One block that holds the largest request so far. Where a request needs more, further blocks come beside it,
// and at the end of the outermost scope all make way for one of the size that was needed, and a quarter more:
// a block is replaced a few times on the way to the largest request, whatever the order of sizes, and never
// again. It is not given back: limits on candidates and behaviors bound it, and to fault a few megabytes in
// again costs as much as a request.
//
// Thread-compatible.
#ifndef DINGHY_MODEL_OPS_SCRATCH_H_
#define DINGHY_MODEL_OPS_SCRATCH_H_

#include <algorithm>
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
    while (block_ < blocks_.size() && blocks_[block_].size - used_ < need) {
      ++block_;
      used_ = 0;
    }
    if (block_ == blocks_.size()) AddBlock(need);
    float* out = blocks_[block_].data.get() + used_;
    used_ += need;
    live_ += need;
    most_ = std::max(most_, live_);
    return out;
  }

  // Floats of all blocks together.
  size_t capacity() const {
    size_t sum = 0;
    for (const Block& block : blocks_) sum += block.size;
    return sum;
  }

  class Scope {
   public:
    explicit Scope(Scratch& scratch)
        : scratch_(scratch), block_(scratch.block_), used_(scratch.used_), live_(scratch.live_) {}
    ~Scope() {
      scratch_.block_ = block_;
      scratch_.used_ = used_;
      scratch_.live_ = live_;
      if (live_ == 0 && scratch_.blocks_.size() > 1) scratch_.blocks_.clear();
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Scratch& scratch_;
    const size_t block_;
    const size_t used_;
    const size_t live_;
  };

 private:
  struct Free {
    void operator()(float* p) const { std::free(p); }
  };
  struct Block {
    std::unique_ptr<float[], Free> data;
    size_t size;
  };
  static constexpr size_t kLeast = size_t{1} << 18;  // floats: 1 MiB

  // One of all that was ever needed at a time, where it is the first, else of at least half of what there is.
  void AddBlock(size_t need) {
    const size_t size = std::max({need, kLeast, blocks_.empty() ? most_ + most_ / 4 : capacity() / 2});
    const size_t rounded = (size + 15) / 16 * 16;
    void* p = std::aligned_alloc(64, rounded * sizeof(float));
    if (p == nullptr) throw std::bad_alloc();
    blocks_.push_back({std::unique_ptr<float[], Free>(static_cast<float*>(p)), rounded});
    used_ = 0;
  }

  std::vector<Block> blocks_;
  size_t block_ = 0;  // in use
  size_t used_ = 0;   // floats of it
  size_t live_ = 0;   // floats that were taken and not given back, of all blocks
  size_t most_ = 0;   // the largest live_ so far
};

}  // namespace dinghy::ops

#endif  // DINGHY_MODEL_OPS_SCRATCH_H_
