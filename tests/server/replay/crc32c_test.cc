#include "server/replay/crc32c.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace dinghy {
namespace {

uint32_t BitByBit(const std::string& data) {
  uint32_t crc = 0xFFFFFFFFu;
  for (const char c : data) {
    crc ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? 0x82F63B78u : 0);
  }
  return ~crc;
}

TEST(Crc32cTest, AgreesWithPublishedVectors) {
  EXPECT_EQ(Crc32c("123456789"), 0xE3069283u);
  EXPECT_EQ(Crc32c(""), 0u);
  // RFC 3720, appendix B.4.
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8A9136AAu);
  EXPECT_EQ(Crc32c(std::string(32, '\xFF')), 0x62A8AB43u);
  std::string rising, falling;
  for (int i = 0; i < 32; ++i) {
    rising.push_back(static_cast<char>(i));
    falling.push_back(static_cast<char>(31 - i));
  }
  EXPECT_EQ(Crc32c(rising), 0x46DD794Eu);
  EXPECT_EQ(Crc32c(falling), 0x113FDB5Cu);
}

TEST(Crc32cTest, AgreesWithOneBitAtATimeAtEveryLength) {
  std::mt19937 random(3);
  std::string data;
  for (int size = 0; size < 100; ++size) {
    EXPECT_EQ(Crc32c(data), BitByBit(data)) << size;
    data.push_back(static_cast<char>(random()));
  }
}

TEST(Crc32cTest, MasksAsTfRecordDoes) {
  // The header of an empty TFRecord ends in these bytes: the masked checksum of eight zeros.
  EXPECT_EQ(MaskCrc(Crc32c(std::string(8, '\0'))), 0x07980329u);
}

}  // namespace
}  // namespace dinghy
