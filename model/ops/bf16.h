// bfloat16: the upper half of a float.
#ifndef DINGHY_MODEL_OPS_BF16_H_
#define DINGHY_MODEL_OPS_BF16_H_

#include <bit>
#include <cstdint>

namespace dinghy::ops {

// Whether the CPU multiplies bfloat16 (AVX512_BF16) and no cap forbids it.
bool HasBf16();

// The nearest bfloat16, ties to even. NaN stays NaN.
inline uint16_t ToBf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if (x != x) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

inline float RoundToBf16(float x) { return std::bit_cast<float>(uint32_t{ToBf16(x)} << 16); }

inline void RoundToBf16(float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] = RoundToBf16(x[i]);
}

}  // namespace dinghy::ops

#endif  // DINGHY_MODEL_OPS_BF16_H_
