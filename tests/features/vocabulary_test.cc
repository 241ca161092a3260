#include "features/vocabulary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <utility>

#include "tests/features/shop_manifest.h"

namespace dinghy {
namespace {

using ::testing::HasSubstr;

class VocabularyTest : public ::testing::Test {
 protected:
  VocabularyTest() {
    folder_ = ::testing::TempDir() + "vocabulary." +
              ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }

  absl::StatusOr<std::unique_ptr<Vocabulary>> Create(const std::string& text) const {
    return Vocabulary::Create(Parse<v1::IdFeature>(text), folder_);
  }
  std::string CreateError(const std::string& text) const {
    const auto vocabulary = Create(text);
    EXPECT_FALSE(vocabulary.ok());
    if (vocabulary.ok()) return "";
    EXPECT_EQ(vocabulary.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(vocabulary.status().message());
  }
  void Write(const std::string& name, const std::string& content) const {
    std::ofstream(folder_ + "/" + name, std::ios::binary) << content;
  }

  std::string folder_;
};

// Row and whether the id is known.
template <typename Id>
std::pair<int, bool> Find(const Vocabulary& vocabulary, Id id) {
  const Vocabulary::Found found = vocabulary.Find(id);
  return {found.row, found.known};
}
using Row = std::pair<int, bool>;

TEST(MurmurHash3Test, GivesPublishedValues) {
  EXPECT_EQ(MurmurHash3("", 0), 0u);
  EXPECT_EQ(MurmurHash3("", 1), 0x514e28b7u);
  EXPECT_EQ(MurmurHash3("", 0xffffffff), 0x81f16f39u);
  EXPECT_EQ(MurmurHash3("\xff\xff\xff\xff", 0), 0x76293b50u);
  EXPECT_EQ(MurmurHash3("\x21\x43\x65\x87", 0), 0xf55b516bu);
  EXPECT_EQ(MurmurHash3("\x21\x43\x65\x87", 0x5082edee), 0x2362f9deu);
  EXPECT_EQ(MurmurHash3("\x21\x43\x65", 0), 0x7e4a8634u);
  EXPECT_EQ(MurmurHash3("\x21\x43", 0), 0xa0f7b07au);
  EXPECT_EQ(MurmurHash3("\x21", 0), 0x72661cf4u);
  EXPECT_EQ(MurmurHash3(std::string_view("\0\0\0\0", 4), 0), 0x2362f9deu);
  EXPECT_EQ(MurmurHash3("Hello, world!", 0x9747b28c), 0x24884cbau);
  EXPECT_EQ(MurmurHash3("The quick brown fox jumps over the lazy dog", 0x9747b28c), 0x2fa826cdu);
}

TEST_F(VocabularyTest, IdentityMapsIdToRowOfItsNumber) {
  const auto vocabulary = Create(R"pb(
    type: INT64
    identity { rows: 5 }
    pad_row: 0
    oov_row: 6
    unknown: OOV_ROW
    negative: PAD_ROW)pb");
  ASSERT_TRUE(vocabulary.ok()) << vocabulary.status();
  EXPECT_EQ(Find(**vocabulary, int64_t{0}), Row(0, true));
  EXPECT_EQ(Find(**vocabulary, int64_t{4}), Row(4, true));
  EXPECT_EQ(Find(**vocabulary, int64_t{5}), Row(6, false));
  EXPECT_EQ(Find(**vocabulary, int64_t{1} << 40), Row(6, false));
  EXPECT_EQ(Find(**vocabulary, int64_t{-1}), Row(0, false));
  EXPECT_EQ(Find(**vocabulary, INT64_MIN), Row(0, false));
  EXPECT_EQ((*vocabulary)->max_row(), 6);
}

TEST_F(VocabularyTest, RefusedIdsHaveNoRow) {
  const auto vocabulary = Create("type: INT64 identity { rows: 5 } unknown: REFUSE negative: REFUSE");
  ASSERT_TRUE(vocabulary.ok()) << vocabulary.status();
  EXPECT_EQ(Find(**vocabulary, int64_t{5}), Row(-1, false));
  EXPECT_EQ(Find(**vocabulary, int64_t{-5}), Row(-1, false));
}

// The fingerprints are the examples of BigQuery's FARM_FINGERPRINT, which is Fingerprint64 taken as signed.
TEST_F(VocabularyTest, FarmHashGivesPublishedFingerprints) {
  const std::pair<std::string, int64_t> examples[] = {{"1footrue", -1541654101129638711},
                                                      {"2applefalse", 2794438866806483259},
                                                      {"3true", -4880158226897771312}};
  for (const auto& [text, fingerprint] : examples) {
    const int row = 3 + static_cast<int>(static_cast<uint64_t>(fingerprint) % 1000003);
    const auto vocabulary = Create(
        "type: STRING unknown: REFUSE farm_hash { buckets: 1000003 first_row: 3 input: TEXT examples { text: "
        "\"" +
        text + "\" row: " + std::to_string(row) + " } }");
    ASSERT_TRUE(vocabulary.ok()) << vocabulary.status();
    EXPECT_EQ(Find(**vocabulary, std::string_view(text)), Row(row, true));
    EXPECT_EQ((*vocabulary)->max_row(), 1000005);
  }
}

TEST_F(VocabularyTest, HashesIntegersAsDigitsOrBytes) {
  const auto row = [](std::string_view bytes) { return static_cast<int>(2 + MurmurHash3(bytes, 7) % 97); };
  const std::string common = "type: INT64 oov_row: 1 unknown: OOV_ROW negative: OOV_ROW ";
  const auto digits =
      Create(common + "murmur3 { seed: 7 buckets: 97 first_row: 2 input: TEXT examples { integer: 258 row: " +
             std::to_string(row("258")) + " } }");
  ASSERT_TRUE(digits.ok()) << digits.status();
  EXPECT_EQ(Find(**digits, int64_t{1234567890123456789}), Row(row("1234567890123456789"), true));
  EXPECT_EQ(Find(**digits, int64_t{-1}), Row(1, false));

  const std::string_view bytes("\x02\x01\0\0\0\0\0\0", 8);  // 258
  const auto binary = Create(
      common + "murmur3 { seed: 7 buckets: 97 first_row: 2 input: INT64_LE examples { integer: 258 row: " +
      std::to_string(row(bytes)) + " } }");
  ASSERT_TRUE(binary.ok()) << binary.status();
  EXPECT_EQ(Find(**binary, int64_t{258}), Row(row(bytes), true));
}

TEST_F(VocabularyTest, FileGivesLinesRowsInOrder) {
  Write("words.txt", "red\n\nzwölf");
  const auto words =
      Create("type: STRING file { path: 'words.txt' first_row: 2 } oov_row: 1 unknown: OOV_ROW");
  ASSERT_TRUE(words.ok()) << words.status();
  EXPECT_EQ(Find(**words, std::string_view("red")), Row(2, true));
  EXPECT_EQ(Find(**words, std::string_view("")), Row(3, true));
  EXPECT_EQ(Find(**words, std::string_view("zwölf")), Row(4, true));
  EXPECT_EQ(Find(**words, std::string_view("Red")), Row(1, false));
  EXPECT_EQ((*words)->max_row(), 4);

  Write("ids.txt", "700\n0\n9223372036854775807\n");
  const auto ids = Create(R"pb(
    type: INT64
    file { path: "ids.txt" first_row: 10 }
    pad_row: 0
    unknown: PAD_ROW
    negative: REFUSE)pb");
  ASSERT_TRUE(ids.ok()) << ids.status();
  EXPECT_EQ(Find(**ids, int64_t{700}), Row(10, true));
  EXPECT_EQ(Find(**ids, int64_t{0}), Row(11, true));
  EXPECT_EQ(Find(**ids, INT64_MAX), Row(12, true));
  EXPECT_EQ(Find(**ids, int64_t{1}), Row(0, false));
  EXPECT_EQ(Find(**ids, int64_t{-1}), Row(-1, false));
}

TEST_F(VocabularyTest, RefusesBadFiles) {
  const std::string words = "type: STRING file { path: 'f' first_row: 0 } unknown: REFUSE";
  const std::string ids = "type: INT64 file { path: 'f' first_row: 0 } unknown: REFUSE negative: REFUSE";
  const auto missing = Create(words);
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr("/f\" cannot be read"));

  Write("f", "a\nb\na\n");
  EXPECT_THAT(CreateError(words), HasSubstr("/f\" line 3: expected each token once, got \"a\" again"));
  Write("f", "a\r\n");
  EXPECT_THAT(CreateError(words), HasSubstr("line 1: expected lines that end in \"\\n\", got \"\\r\\n\""));
  for (const char* bad : {"x", "-1", "007", "1 ", "", "9223372036854775808"}) {
    Write("f", std::string("5\n") + bad + "\n");
    EXPECT_THAT(CreateError(ids),
                HasSubstr(std::string("line 2: expected the decimal digits of an id, got \"") + bad + "\""));
  }
  for (const char* path : {"../f", "a/f", "..", "/etc/passwd"}) {
    EXPECT_THAT(
        CreateError(std::string("type: STRING file { path: '") + path + "' first_row: 0 } unknown: REFUSE"),
        HasSubstr("id.file.path: expected a file in the bundle folder"));
  }
}

TEST_F(VocabularyTest, EveryFieldIsExplicit) {
  const std::pair<const char*, const char*> faults[] = {
      {"identity { rows: 5 } unknown: REFUSE negative: REFUSE",
       "id.type: expected INT64 or STRING, got TYPE_UNSPECIFIED"},
      {"type: INT64 unknown: REFUSE negative: REFUSE",
       "id: expected identity, farm_hash, murmur3 or file, got none"},
      {"type: INT64 identity { rows: 5 } negative: REFUSE",
       "id.unknown: expected OOV_ROW, PAD_ROW or REFUSE, got ID_POLICY_UNSPECIFIED"},
      {"type: INT64 identity { rows: 5 } unknown: REFUSE",
       "id.negative: expected OOV_ROW, PAD_ROW or REFUSE, got ID_POLICY_UNSPECIFIED"},
      {"type: INT64 identity { rows: 5 } unknown: OOV_ROW negative: REFUSE",
       "id.oov_row (id.unknown is OOV_ROW): expected a value, got none"},
      {"type: INT64 identity { rows: 5 } unknown: REFUSE negative: PAD_ROW",
       "id.pad_row (id.negative is PAD_ROW): expected a value, got none"},
      {"type: INT64 identity {} unknown: REFUSE negative: REFUSE",
       "id.identity.rows: expected a value, got none"},
      {"type: INT64 identity { rows: 0 } unknown: REFUSE negative: REFUSE",
       "id.identity.rows: expected at least 1, got 0"},
      {"type: STRING identity { rows: 5 } unknown: REFUSE",
       "id.identity: expected id.type INT64, got STRING"},
      {"type: STRING file { path: 'f' first_row: 0 } unknown: REFUSE negative: REFUSE",
       "id.negative: expected none as id.type is STRING, got REFUSE"},
      {"type: STRING file { path: 'f' } unknown: REFUSE", "id.file.first_row: expected a value, got none"},
      {"type: STRING file { first_row: 0 } unknown: REFUSE", "id.file.path: expected a value, got none"},
      {"type: STRING murmur3 { buckets: 5 first_row: 0 input: TEXT } unknown: REFUSE",
       "id.murmur3.seed: expected a value, got none"},
      {"type: STRING murmur3 { seed: 1 first_row: 0 input: TEXT } unknown: REFUSE",
       "id.murmur3.buckets: expected a value, got none"},
      {"type: STRING farm_hash { buckets: 5 input: TEXT } unknown: REFUSE",
       "id.farm_hash.first_row: expected a value, got none"},
      {"type: STRING farm_hash { buckets: 0 first_row: 0 input: TEXT } unknown: REFUSE",
       "id.farm_hash.buckets: expected at least 1, got 0"},
      {"type: STRING farm_hash { buckets: 5 first_row: 0 } unknown: REFUSE",
       "id.farm_hash.input: expected TEXT as id.type is STRING, got HASH_INPUT_UNSPECIFIED"},
      {"type: STRING farm_hash { buckets: 5 first_row: 0 input: INT64_LE } unknown: REFUSE",
       "id.farm_hash.input: expected TEXT as id.type is STRING, got INT64_LE"},
      {"type: STRING farm_hash { buckets: 5 first_row: 0 input: TEXT } unknown: REFUSE",
       "id.farm_hash.examples: expected at least one, got none"},
      {"type: STRING farm_hash { buckets: 5 first_row: 0 input: TEXT examples { text: 'a' } } unknown: "
       "REFUSE",
       "id.farm_hash.examples: expected a text and its row, got {text: \"a\"}"},
      {"type: STRING farm_hash { buckets: 5 first_row: 0 input: TEXT examples { integer: 1 row: 1 } } "
       "unknown: REFUSE",
       "id.farm_hash.examples: expected a text and its row, got {integer: 1 row: 1}"},
      {"type: STRING farm_hash { buckets: 4294967295 first_row: 0 input: TEXT } unknown: REFUSE",
       "id: expected rows of at most 2147483647, got 4294967294"},
  };
  for (const auto& [text, message] : faults) EXPECT_EQ(CreateError(text), message) << text;
}

TEST_F(VocabularyTest, ExamplesMustHold) {
  const std::string text =
      "type: STRING unknown: REFUSE murmur3 { seed: 2538058380 buckets: 1000 first_row: 0 input: TEXT "
      "examples { text: 'Hello, world!' row: ";
  EXPECT_TRUE(Create(text + std::to_string(0x24884cbau % 1000) + " } }").ok());
  EXPECT_EQ(CreateError(text + "5 } }"),
            "id.murmur3.examples: expected {text: \"Hello, world!\" row: 5}, got row " +
                std::to_string(0x24884cbau % 1000));
}

}  // namespace
}  // namespace dinghy
