// CRC-32C (Castagnoli; RFC 3720, appendix B.4), by tables, eight bytes a step.
//
//   Crc32c("123456789") == 0xE3069283
#ifndef DINGHY_SERVER_REPLAY_CRC32C_H_
#define DINGHY_SERVER_REPLAY_CRC32C_H_

#include <cstdint>
#include <string_view>

namespace dinghy {

uint32_t Crc32c(std::string_view data);

// As TFRecord stores it: rotated and shifted, so that a checksum over bytes that hold a checksum stays
// useful.
constexpr uint32_t MaskCrc(uint32_t crc) { return ((crc >> 15) | (crc << 17)) + 0xA282EAD8u; }

}  // namespace dinghy

#endif  // DINGHY_SERVER_REPLAY_CRC32C_H_
