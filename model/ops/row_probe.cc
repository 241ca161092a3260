#include "model/ops/row_probe.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "model/ops/scratch.h"

namespace dinghy::ops {
namespace {

// SplitMix64 (Steele, Lea, Flood 2014): the probe's data have to be the same in every build.
class Random {
 public:
  uint64_t Bits() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  // Full mantissas in (-1, 1), so that an other order of summation shows in the last bit.
  void Fill(float* p, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
      p[i] = static_cast<float>(static_cast<int64_t>(Bits()) >> 32) * 0x1p-31f;
    }
  }

 private:
  uint64_t state_ = 1;
};

}  // namespace

bool RowsAreAlike(const RowProbeOptions& options, const std::function<void(const float* x, float* y)>& run) {
  const int64_t rows = options.rows, in = options.in, out = options.out;
  // An other order changes the last bit of a good part of the results, not of each: look at 64 or more.
  const int64_t rounds = std::clamp<int64_t>((64 + out - 1) / out, 2, 32);
  const size_t result_bytes = static_cast<size_t>(out) * sizeof(float);
  Scratch memory;
  float* aligned_x = memory.Floats(static_cast<size_t>(rows * in + 1));
  float* aligned_y = memory.Floats(static_cast<size_t>(rows * out + 1));
  float* row = memory.Floats(static_cast<size_t>(in));
  float* base = memory.Floats(static_cast<size_t>(out));
  float* expected = memory.Floats(static_cast<size_t>(out));
  std::vector<bool> first_half(static_cast<size_t>(rows));
  Random random;
  for (int64_t round = 0; round < rounds; ++round) {
    random.Fill(row, in);
    random.Fill(base, out);
    for (int64_t r = 0; r < rows; ++r) first_half[static_cast<size_t>(r)] = (random.Bits() & 1) != 0;
    bool seen = false;
    for (const bool half : {true, false}) {
      // Nor may the alignment matter: one half of the positions is run off it, in turn.
      const int64_t offset = half == (round % 2 == 0) ? 0 : 1;
      float* x = aligned_x + offset;
      float* y = aligned_y + offset;
      for (int64_t r = 0; r < rows; ++r) {
        if (first_half[static_cast<size_t>(r)] == half) {
          std::memcpy(x + r * in, row, static_cast<size_t>(in) * sizeof(float));
        } else {
          random.Fill(x + r * in, in);
        }
        if (options.accumulate) std::memcpy(y + r * out, base, result_bytes);
      }
      run(x, y);
      for (int64_t r = 0; r < rows; ++r) {
        if (first_half[static_cast<size_t>(r)] != half) continue;
        if (!seen) {
          std::memcpy(expected, y + r * out, result_bytes);
          seen = true;
        } else if (std::memcmp(expected, y + r * out, result_bytes) != 0) {
          return false;
        }
      }
    }
  }
  return true;
}

}  // namespace dinghy::ops
