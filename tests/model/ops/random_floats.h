// Test data: reproducible random floats, and bit-exact comparison.
#ifndef DINGHY_TESTS_MODEL_OPS_RANDOM_FLOATS_H_
#define DINGHY_TESTS_MODEL_OPS_RANDOM_FLOATS_H_

#include <bit>
#include <cstdint>
#include <random>
#include <vector>

namespace dinghy::ops {

class RandomFloats {
 public:
  explicit RandomFloats(uint32_t seed) : generator_(seed) {}

  std::vector<float> operator()(int64_t n, float low = -1.0f, float high = 1.0f) {
    std::uniform_real_distribution<float> uniform(low, high);
    std::vector<float> out(static_cast<size_t>(n));
    for (float& v : out) v = uniform(generator_);
    return out;
  }

 private:
  std::mt19937 generator_;
};

inline uint32_t Bits(float v) { return std::bit_cast<uint32_t>(v); }

inline std::vector<uint32_t> Bits(const std::vector<float>& v) {
  std::vector<uint32_t> out;
  for (const float f : v) out.push_back(Bits(f));
  return out;
}

}  // namespace dinghy::ops

#endif  // DINGHY_TESTS_MODEL_OPS_RANDOM_FLOATS_H_
