#include "model/safetensors.h"

#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/safetensors_header.h"
#include "tests/testing/test_bundle.h"

namespace dinghy {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Reads `bytes` as a file of `size` bytes.
absl::Status ReadAs(const std::string& bytes, uint64_t size, TensorMap& tensors) {
  size_t at = 0;
  return ReadSafetensors(
      "w.safetensors", size,
      [&](absl::Span<char> out) {
        if (bytes.size() - at < out.size()) return absl::DataLossError("w.safetensors: expected more bytes");
        std::memcpy(out.data(), bytes.data() + at, out.size());
        at += out.size();
        return absl::OkStatus();
      },
      tensors);
}

absl::Status Read(const std::string& bytes, TensorMap& tensors) {
  return ReadAs(bytes, bytes.size(), tensors);
}

// What reading a file of this header and `data_bytes` zeros says.
absl::Status ReadHeader(const std::string& header, size_t data_bytes) {
  TensorMap tensors;
  return Read(SafetensorsFile(header, std::string(data_bytes, '\0')), tensors);
}

std::string Entry(const std::string& name, const std::string& shape, uint64_t begin, uint64_t end) {
  return absl::StrCat("\"", name, R"(":{"dtype":"F32","shape":[)", shape, R"(],"data_offsets":[)", begin, ",",
                      end, "]}");
}

void ExpectError(const absl::Status& status, absl::StatusCode code, const std::string& part) {
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(part));
  EXPECT_THAT(std::string(status.message()), HasSubstr("w.safetensors"));
}

void ExpectDataLoss(const absl::Status& status, const std::string& part) {
  ExpectError(status, absl::StatusCode::kDataLoss, part);
}

std::vector<float> Values(const Tensor& tensor) {
  return std::vector<float>(tensor.data.get(), tensor.data.get() + tensor.size);
}

TEST(SafetensorsTest, ReadsTensorsFromAnyAddressIntoAlignedMemory) {
  const TestTensors written = {{"a", {{2, 3}, {1, 2, 3, 4, 5, 6}}},
                               {"b", {{}, {7}}},
                               {"none", {{0, 4}, {}}},
                               {"z", {{2}, {-8, 0.5f}}}};
  for (int padding = 0; padding < 8; ++padding) {
    std::string file = SerializeSafetensors(written);
    uint64_t header_bytes;
    std::memcpy(&header_bytes, file.data(), 8);
    const std::string header = file.substr(8, header_bytes) + std::string(padding, ' ');
    file = SafetensorsFile(header, file.substr(8 + header_bytes));
    TensorMap tensors;
    ASSERT_EQ(Read(file, tensors), absl::OkStatus());
    ASSERT_EQ(tensors.size(), written.size());
    for (const auto& [name, expected] : written) {
      const Tensor& tensor = tensors.at(name);
      EXPECT_EQ(tensor.shape, expected.shape) << name;
      EXPECT_EQ(Values(tensor), expected.values) << name;
      EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.data.get()) % 64, 0u) << name;
    }
  }
}

TEST(SafetensorsTest, TensorsHaveReadableSlackBehind) {
  for (int64_t count : {0, 1, 15, 16, 17, 1000}) {
    const auto floats = AllocateElements<float>(count);
    ASSERT_NE(floats, nullptr);
    for (int64_t i = 0; i < 16; ++i) EXPECT_EQ(floats[count + i], 0.0f);
  }
}

TEST(SafetensorsTest, RefusesToAllocateWhatNoMachineHas) {
  EXPECT_EQ(AllocateElements<float>(std::numeric_limits<int64_t>::max()), nullptr);
  EXPECT_EQ(AllocateElements<float>(-1), nullptr);
}

TEST(SafetensorsTest, IgnoresMetadata) {
  EXPECT_EQ(ReadHeader(R"({"__metadata__":{"format":"pt"},)" + Entry("a", "1", 0, 4) + "}", 4),
            absl::OkStatus());
}

TEST(SafetensorsTest, DecodesEscapedNames) {
  TensorMap tensors;
  const std::string header = "{" + Entry(R"(q\"\\\/\n\u00e9\u20ac\uD83D\uDE00)", "1", 0, 4) + "}";
  ASSERT_EQ(Read(SafetensorsFile(header, std::string(4, '\0')), tensors), absl::OkStatus());
  EXPECT_EQ(tensors.begin()->first, "q\"\\/\n\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80");
}

// Every prefix of a file is refused, whether the reader knows the size or trusted a longer one.
TEST(SafetensorsTest, RefusesEveryTruncation) {
  const std::string file = SerializeSafetensors({{"a", {{2, 3}, {1, 2, 3, 4, 5, 6}}}, {"b", {{2}, {7, 8}}}});
  for (size_t size = 0; size < file.size(); ++size) {
    TensorMap tensors;
    ExpectDataLoss(Read(file.substr(0, size), tensors), "expected");
    ExpectDataLoss(ReadAs(file.substr(0, size), file.size(), tensors), "expected");
  }
}

TEST(SafetensorsTest, RefusesHeaderLengths) {
  TensorMap tensors;
  std::string file = SerializeSafetensors({{"a", {{1}, {1}}}});
  for (uint64_t length : {uint64_t{file.size()}, uint64_t{file.size() - 7}, uint64_t{1} << 32,
                          uint64_t{1} << 63, ~uint64_t{0}, ~uint64_t{0} - 7}) {
    std::memcpy(file.data(), &length, 8);
    ExpectDataLoss(Read(file, tensors), absl::StrCat("got a length of ", length));
  }
  // Shorter than it is: what remains is no JSON.
  const uint64_t length = 0;
  std::memcpy(file.data(), &length, 8);
  ExpectDataLoss(Read(file, tensors), "expected '{', got the end");
  // A file may be large, a header not.
  const uint64_t large = 200'000'000;
  std::memcpy(file.data(), &large, 8);
  ExpectDataLoss(ReadAs(file, 1'000'000'000'000, tensors), "at most 100000000 bytes");
}

TEST(SafetensorsTest, RefusesWrongSizes) {
  ExpectDataLoss(ReadHeader("{" + Entry("a", "2,3", 0, 20) + "}", 20),
                 "tensor \"a\": expected 24 bytes for F32 of shape [2, 3], got 20");
  ExpectDataLoss(ReadHeader("{" + Entry("a", "2", 0, 8) + "}", 4),
                 "expected data_offsets within the file's 4 bytes of data, got [0, 8]");
  ExpectDataLoss(ReadHeader("{" + Entry("a", "2", 8, 0) + "}", 8), "got [8, 0]");
  ExpectDataLoss(ReadHeader("{" + Entry("a", "2", 0, 8) + "}", 9), "expected 8 bytes of data");
  ExpectDataLoss(ReadHeader("{}", 1), "expected 0 bytes of data");
}

TEST(SafetensorsTest, RefusesOverflow) {
  // 2^62 * 4 bytes and 2^32 * 2^32 elements are both 0 in 64 bits.
  ExpectDataLoss(ReadHeader("{" + Entry("a", "4611686018427387904", 0, 0) + "}", 0), "overflows");
  ExpectDataLoss(ReadHeader("{" + Entry("a", "4294967296,4294967296", 0, 0) + "}", 0), "overflows");
  ExpectDataLoss(ReadHeader("{" + Entry("a", "9223372036854775807,3", 0, 4) + "}", 4), "overflows");
  ExpectDataLoss(ReadHeader("{" + Entry("a", "9223372036854775808", 0, 4) + "}", 4),
                 "expected an integer below 2^63");
  ExpectDataLoss(ReadHeader("{" + Entry("a", "1", 0, ~uint64_t{0}) + "}", 4),
                 "expected an integer below 2^63");
  ExpectDataLoss(ReadHeader("{" + Entry("a", "1", 9223372036854775803, 9223372036854775807) + "}", 4),
                 "within the file's 4 bytes");
}

TEST(SafetensorsTest, RefusesOverlapsAndHoles) {
  ExpectDataLoss(ReadHeader("{" + Entry("a", "2", 0, 8) + "," + Entry("b", "2", 4, 12) + "}", 12),
                 "tensor \"b\": overlaps the tensor before it: expected data_offsets to begin at 8, got 4");
  ExpectDataLoss(ReadHeader("{" + Entry("a", "2", 0, 8) + "," + Entry("b", "2", 0, 8) + "}", 8), "overlaps");
  ExpectDataLoss(ReadHeader("{" + Entry("a", "4", 0, 16) + "," + Entry("b", "1", 4, 8) + "}", 16),
                 "overlaps");
  ExpectDataLoss(ReadHeader("{" + Entry("b", "1", 8, 12) + "," + Entry("a", "1", 0, 4) + "}", 12),
                 "tensor \"b\": leaves a hole before it");
  ExpectDataLoss(ReadHeader("{" + Entry("a", "1", 4, 8) + "}", 8), "hole");
}

TEST(SafetensorsTest, RefusesDuplicates) {
  ExpectDataLoss(ReadHeader("{" + Entry("a", "1", 0, 4) + "," + Entry("a", "1", 4, 8) + "}", 8),
                 "tensor \"a\" is listed twice");
  ExpectDataLoss(ReadHeader("{" + Entry("a", "1", 0, 4) + "," + Entry(R"(\u0061)", "1", 4, 8) + "}", 8),
                 "tensor \"a\" is listed twice");
  ExpectDataLoss(ReadHeader(R"({"a":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4),
                 "\"dtype\" is given twice");
  ExpectDataLoss(ReadHeader(R"({"__metadata__":{"k":"v","k":"w"}})", 0), "twice");
  TensorMap tensors;
  const std::string file = SerializeSafetensors({{"a", {{1}, {1}}}});
  ASSERT_EQ(Read(file, tensors), absl::OkStatus());
  ExpectError(Read(file, tensors), absl::StatusCode::kInvalidArgument,
              "tensor \"a\": is in another safetensors file");
}

TEST(SafetensorsTest, RefusesOtherTypesByName) {
  ExpectError(ReadHeader(R"({"a":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]}})", 4),
              absl::StatusCode::kInvalidArgument,
              "tensor \"a\": expected dtype F32, F16 or I8, got \"BF16\"");
}

TEST(SafetensorsTest, ReadsHalvesAndBytes) {
  TensorMap tensors;
  const std::string header = R"({"h":{"dtype":"F16","shape":[1,3],"data_offsets":[0,6]},)"
                             R"("b":{"dtype":"I8","shape":[5],"data_offsets":[6,11]}})";
  const std::string data("\x01\x00\x00\x3C\xFF\xFB\x80\xFF\x00\x01\x7F", 11);
  ASSERT_EQ(Read(SafetensorsFile(header, data), tensors), absl::OkStatus());
  const Tensor& halves = tensors.at("h");
  EXPECT_EQ(halves.dtype, DType::kF16);
  EXPECT_EQ(halves.data, nullptr);
  EXPECT_EQ(halves.shape, (std::vector<int64_t>{1, 3}));
  EXPECT_THAT(std::vector<uint16_t>(halves.f16.get(), halves.f16.get() + 3),
              ElementsAre(0x0001, 0x3C00, 0xFBFF));
  const Tensor& bytes = tensors.at("b");
  EXPECT_EQ(bytes.dtype, DType::kI8);
  EXPECT_THAT(std::vector<int8_t>(bytes.i8.get(), bytes.i8.get() + 5), ElementsAre(-128, -1, 0, 1, 127));
  for (int i = 0; i < 64; ++i) EXPECT_EQ(bytes.i8[5 + i], 0);
  ExpectDataLoss(ReadHeader(R"({"a":{"dtype":"F16","shape":[3],"data_offsets":[0,12]}})", 12),
                 "tensor \"a\": expected 6 bytes for F16 of shape [3], got 12");
}

TEST(SafetensorsTest, RefusesHalvesThatAreNotFinite) {
  const std::string header = R"({"a":{"dtype":"F16","shape":[2],"data_offsets":[0,4]}})";
  for (const auto& [high, text] : {std::pair("\x7C", "inf"), {"\xFC", "-inf"}, {"\x7E", "nan"}}) {
    TensorMap tensors;
    ExpectError(Read(SafetensorsFile(header, std::string("\0\0\0", 3) + high), tensors),
                absl::StatusCode::kInvalidArgument,
                absl::StrCat("tensor \"a\": expected finite values, got ", text, " at element 1"));
  }
}

TEST(SafetensorsTest, RefusesValuesThatAreNotFinite) {
  for (float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                    -std::numeric_limits<float>::infinity()}) {
    TensorMap tensors;
    ExpectError(Read(SerializeSafetensors({{"a", {{3}, {1, 2, bad}}}}), tensors),
                absl::StatusCode::kInvalidArgument, "tensor \"a\": expected finite values");
  }
}

TEST(SafetensorsTest, RefusesHeadersOfAnotherForm) {
  const char* const headers[] = {
      "",
      "null",
      "[]",
      "{",
      "{\"a\"",
      "{\"a\":",
      "{\"a\":1}",
      "{\"a\":{}}",
      "{}x",
      "{,}",
      R"({"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},})",
      R"({"a":{"dtype":"F32","shape":[],"data_offsets":[0]}})",
      R"({"a":{"dtype":"F32","shape":[],"data_offsets":[0,4,8]}})",
      R"({"a":{"dtype":"F32","shape":[],"data_offsets":[0,4.0]}})",
      R"({"a":{"dtype":"F32","shape":[],"data_offsets":[0,4e0]}})",
      R"({"a":{"dtype":"F32","shape":[],"data_offsets":[-0,4]}})",
      R"({"a":{"dtype":"F32","shape":[],"data_offsets":[0,04]}})",
      R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})",
      R"({"a":{"dtype":"F32","shape":["1"],"data_offsets":[0,4]}})",
      R"({"a":{"dtype":"F32","shape":[1,],"data_offsets":[0,4]}})",
      R"({"a":{"dtype":"F32","shape":1,"data_offsets":[0,4]}})",
      R"({"a":{"dtype":1,"shape":[],"data_offsets":[0,4]}})",
      R"({"a":{"dtype":"F32","shape":[]}})",
      R"({"a":{"shape":[],"data_offsets":[0,4]}})",
      R"({"a":{"dtype":"F32","data_offsets":[0,4]}})",
      R"({"a":{"dtype":"F32","shape":[],"data_offsets":[0,4],"more":1}})",
      R"({"__metadata__":{"k":1}})",
      R"({"__metadata__":1})",
      R"({"\x":{}})",
      R"({"\u12":{}})",
      R"({"\ud800":{}})",
      R"({"\ud800\u0041":{}})",
      R"({"\udc00":{}})",
      "{\"a\nb\":{}}",
      "{\"a\\",
  };
  for (const char* header : headers) {
    SCOPED_TRACE(header);
    EXPECT_EQ(ParseSafetensorsHeader(header).status().code(), absl::StatusCode::kDataLoss);
    ExpectDataLoss(ReadHeader(header, 4), "");
  }
}

TEST(SafetensorsTest, SurvivesRandomMutations) {
  const std::string original = SerializeSafetensors(
      {{"a", {{2, 3}, {1, 2, 3, 4, 5, 6}}}, {"b", {{2}, {7, 8}}}, {"c.weight", {{1, 1, 4}, {1, 2, 3, 4}}}});
  const std::string alphabet = "{}[]\":,\\u0123456789FaB \x01\xFF";
  std::mt19937 random(20240501);
  int accepted = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string file = original;
    const int edits = 1 + static_cast<int>(random() % 4);
    for (int edit = 0; edit < edits && !file.empty(); ++edit) {
      // Mostly in the length and the header.
      const size_t at = random() % (random() % 8 == 0 ? file.size() : std::min<size_t>(file.size(), 200));
      const char c = alphabet[random() % alphabet.size()];
      switch (random() % 4) {
        case 0:
          file[at] = c;
          break;
        case 1:
          file.insert(at, 1, c);
          break;
        case 2:
          file.erase(at, 1 + random() % 8);
          break;
        default:
          file[at] = static_cast<char>(random());
      }
    }
    // Keep the header's length right half of the time, so that its text is what is wrong.
    if (random() % 2 == 0 && file.size() > 60) {
      const uint64_t header_bytes = file.size() - 8 - 48;
      std::memcpy(file.data(), &header_bytes, 8);
    }
    TensorMap tensors;
    if (!Read(file, tensors).ok()) continue;
    ++accepted;
    for (const auto& [name, tensor] : tensors) {
      int64_t size = 1;
      for (int64_t dim : tensor.shape) size *= dim;
      ASSERT_EQ(size, tensor.size);
    }
  }
  EXPECT_GT(accepted, 0);       // some edits are harmless
  EXPECT_LT(accepted, 10'000);  // most are not
}

}  // namespace
}  // namespace dinghy
