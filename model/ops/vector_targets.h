// Limits Highway to the targets that are tested: AVX3, AVX2 and the baseline. Include before any Highway
// header.
#ifndef DINGHY_MODEL_OPS_VECTOR_TARGETS_H_
#define DINGHY_MODEL_OPS_VECTOR_TARGETS_H_

// Bits 0 to 14 are the x86 targets; bit 14 is SSE2, the x86-64 baseline of newer releases (1.0.3 has no name
// for it, its baseline is EMU128).
#define HWY_DISABLED_TARGETS (0x7FFFLL & ~(HWY_AVX3 | HWY_AVX2 | (1LL << 14)))

#endif  // DINGHY_MODEL_OPS_VECTOR_TARGETS_H_
