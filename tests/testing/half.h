// IEEE 754 binary16 by its definition, as the slow truth.
#ifndef DINGHY_TESTS_TESTING_HALF_H_
#define DINGHY_TESTS_TESTING_HALF_H_

#include <cmath>
#include <cstdint>

namespace dinghy {

// Of finite bits; exact.
inline float HalfToFloat(uint16_t bits) {
  const int exponent = bits >> 10 & 31;
  const int mantissa = bits & 1023;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return static_cast<float>((bits & 0x8000) != 0 ? -magnitude : magnitude);
}

}  // namespace dinghy

#endif  // DINGHY_TESTS_TESTING_HALF_H_
