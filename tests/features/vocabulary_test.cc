#include "features/vocabulary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <type_traits>
#include <utility>

#include "tests/features/shop_manifest.h"

namespace dinghy {
namespace {

using ::testing::HasSubstr;

class VocabularyTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<Vocabulary>> Create(const std::string& text) const {
    return Vocabulary::Create(Parse<v1::IdFeature>(text), files_);
  }
  std::string CreateError(const std::string& text) const {
    const auto vocabulary = Create(text);
    EXPECT_FALSE(vocabulary.ok());
    if (vocabulary.ok()) return "";
    EXPECT_EQ(vocabulary.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(vocabulary.status().message());
  }
  void Write(const std::string& name, const std::string& content) { files_[name] = content; }

  FileContents files_;
};

// Row and whether the id is known.
template <typename Id>
std::pair<int, bool> Find(const Vocabulary& vocabulary, Id id) {
  Vocabulary::Found found;
  if constexpr (std::is_convertible_v<Id, std::string_view>) {
    const std::string text(id);
    const std::string* const pointer = &text;
    vocabulary.Find(absl::MakeConstSpan(&pointer, 1), &found);
  } else {
    const int64_t integer = id;
    vocabulary.Find(absl::MakeConstSpan(&integer, 1), &found);
  }
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
  EXPECT_EQ(MurmurHash3("ππππππππ", 0x9747b28c), 0xd58063c1u);
  EXPECT_EQ(MurmurHash3(std::string(256, 'a'), 0x9747b28c), 0x37405bdcu);
  // scikit-learn's own tests of murmurhash3_32.
  EXPECT_EQ(static_cast<int32_t>(MurmurHash3("foo", 0)), -156908512);
  EXPECT_EQ(static_cast<int32_t>(MurmurHash3("foo", 42)), -1322301282);
}

// An id, as text or integer, and its row.
template <typename Id>
std::string Example(const Id& id, int row) {
  std::string text = "examples { row: " + std::to_string(row);
  if constexpr (std::is_integral_v<Id>) {
    return text + " integer: " + std::to_string(id) + " } ";
  } else {
    return text + " text: '" + std::string(id) + "' } ";
  }
}

// "foo" has the signed hash h = -156908512, 2^32 + h unsigned, by published vectors; 'akqlrggi' the most
// negative one.
TEST_F(VocabularyTest, MurmurRemaindersOfNegativeHashes) {
  const struct {
    const char* remainder;
    int buckets;
    int64_t foo;
    int64_t lowest;
  } cases[] = {
      {"UNSIGNED", 1000, 4138058784 % 1000, 2147483648 % 1000},
      {"FLOOR", 1000, 1000 - 156908512 % 1000, 1000 - 2147483648 % 1000},
      {"ABSOLUTE", 1000, 156908512 % 1000, 2147483648 % 1000},
      {"UNSIGNED", 1 << 20, 4138058784 % (1 << 20), 0},
      {"FLOOR", 1 << 20, 4138058784 % (1 << 20), 0},
      {"ABSOLUTE", 1 << 20, 156908512 % (1 << 20), 0},
      {"UNSIGNED", 2147483647, 4138058784 % 2147483647, 1},
      {"FLOOR", 2147483647, 2147483647 - 156908512, 2147483646},
      {"ABSOLUTE", 2147483647, 156908512, 1},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(std::string(c.remainder) + " of " + std::to_string(c.buckets));
    const auto vocabulary = Create(
        std::string("type: STRING unknown: REFUSE murmur3 { seed: 0 first_row: 0 input: TEXT buckets: ") +
        std::to_string(c.buckets) + " remainder: " + c.remainder + " " +
        Example("foo", static_cast<int>(c.foo)) + Example("akqlrggi", static_cast<int>(c.lowest)) +
        Example("", 0) + "}");
    ASSERT_TRUE(vocabulary.ok()) << vocabulary.status();
    EXPECT_EQ(Find(**vocabulary, std::string_view("foo")), Row(static_cast<int>(c.foo), true));
    EXPECT_EQ(Find(**vocabulary, std::string_view("akqlrggi")), Row(static_cast<int>(c.lowest), true));
    EXPECT_EQ(Find(**vocabulary, std::string_view("")), Row(0, true));
  }
  EXPECT_EQ(MurmurHash3("akqlrggi", 0), 0x80000000u);
}

// Bytes that are not ASCII count as they are, whatever the sign of a char.
TEST_F(VocabularyTest, MurmurOfUtf8AndOfIntegersBytes) {
  const auto text = Create(
      "type: STRING unknown: REFUSE murmur3 { seed: 2538058380 first_row: 5 buckets: 999983 input: TEXT "
      "remainder: FLOOR " +
      Example("ππππππππ", 5 + 999983 - 713006143 % 999983) + "}");
  ASSERT_TRUE(text.ok()) << text.status();
  // 'foo\0' padded to 8 bytes is no published vector; the integer below is made to have the hash -2^31.
  const auto bytes = Create(
      "type: INT64 unknown: REFUSE negative: REFUSE murmur3 { seed: 0 first_row: 5 buckets: 1000 input: "
      "INT64_LE remainder: ABSOLUTE " +
      Example(int64_t{6018035362574630912}, 5 + 2147483648 % 1000) + Example(3, 5 + 13) + "}");
  EXPECT_TRUE(bytes.ok()) << bytes.status();
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

// TensorFlow's own tests and page of to_hash_bucket_fast.
TEST_F(VocabularyTest, FarmHashIsTensorFlowsToHashBucketFast) {
  const std::string common = "type: STRING unknown: REFUSE farm_hash { first_row: 0 input: TEXT buckets: ";
  const auto ten =
      Create(common + "10 " + Example("a", 9) + Example("b", 2) + Example("c", 2) + Example("d", 5) + "}");
  EXPECT_TRUE(ten.ok()) << ten.status();
  const auto three =
      Create(common + "3 " + Example("Hello", 0) + Example("TensorFlow", 2) + Example("2.x", 2) + "}");
  EXPECT_TRUE(three.ok()) << three.status();
}

TEST_F(VocabularyTest, HashesIntegersAsDigitsOrBytes) {
  const auto row = [](std::string_view bytes) { return static_cast<int>(2 + MurmurHash3(bytes, 7) % 97); };
  const std::string common = "type: INT64 oov_row: 1 unknown: OOV_ROW negative: OOV_ROW ";
  const std::string murmur3 = "murmur3 { seed: 7 buckets: 97 first_row: 2 remainder: UNSIGNED input: ";
  const auto digits =
      Create(common + murmur3 + "TEXT " + Example(258, row("258")) + Example(1, row("1")) + "}");
  ASSERT_TRUE(digits.ok()) << digits.status();
  EXPECT_EQ(Find(**digits, int64_t{1234567890123456789}), Row(row("1234567890123456789"), true));
  EXPECT_EQ(Find(**digits, int64_t{-1}), Row(1, false));

  const std::string_view bytes("\x02\x01\0\0\0\0\0\0", 8);  // 258
  const std::string_view one("\x01\0\0\0\0\0\0\0", 8);
  const auto binary =
      Create(common + murmur3 + "INT64_LE " + Example(258, row(bytes)) + Example(1, row(one)) + "}");
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

// Trainers number tokens from 1 in the order of their list, 0 being the padding, and put unknown ones last.
TEST_F(VocabularyTest, FileOfATrainerWithPadFirstAndOovLast) {
  Write("items.txt", "i7\ni9\ni8\n");
  const auto items =
      Create("type: STRING file { path: 'items.txt' first_row: 1 } pad_row: 0 oov_row: 4 unknown: OOV_ROW");
  ASSERT_TRUE(items.ok()) << items.status();
  EXPECT_EQ(Find(**items, std::string_view("i7")), Row(1, true));
  EXPECT_EQ(Find(**items, std::string_view("i9")), Row(2, true));
  EXPECT_EQ(Find(**items, std::string_view("i8")), Row(3, true));
  EXPECT_EQ(Find(**items, std::string_view("i6")), Row(4, false));
  EXPECT_EQ((*items)->max_row(), 4);

  Write("ids.txt", "70\n50\n60\n");
  const auto ids = Create(
      "type: INT64 file { path: 'ids.txt' first_row: 1 } pad_row: 0 oov_row: 4 unknown: OOV_ROW negative: "
      "OOV_ROW");
  ASSERT_TRUE(ids.ok()) << ids.status();
  EXPECT_EQ(Find(**ids, int64_t{50}), Row(2, true));
  EXPECT_EQ(Find(**ids, int64_t{0}),
            Row(4, false));  // not a token: padding has to come as no behavior at all
  EXPECT_EQ(Find(**ids, int64_t{-1}), Row(4, false));

  // An empty vocabulary still has its two rows.
  Write("none.txt", "");
  const auto none =
      Create("type: STRING file { path: 'none.txt' first_row: 1 } pad_row: 0 oov_row: 1 unknown: OOV_ROW");
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_EQ(Find(**none, std::string_view("")), Row(1, false));
  EXPECT_EQ((*none)->max_row(), 1);
}

TEST_F(VocabularyTest, RefusesBadFiles) {
  const std::string words = "type: STRING file { path: 'f' first_row: 0 } unknown: REFUSE";
  const std::string ids = "type: INT64 file { path: 'f' first_row: 0 } unknown: REFUSE negative: REFUSE";
  const auto missing = Create(words);
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(std::string(missing.status().message()),
            "id.file.path: expected a file of the bundle, got \"f\", which it has not");

  Write("f", "a\nb\na\n");
  EXPECT_THAT(CreateError(words),
              HasSubstr("vocabulary file \"f\" line 3: expected each token once, got \"a\" again"));
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
      {"type: STRING murmur3 { seed: 1 buckets: 5 first_row: 0 input: TEXT } unknown: REFUSE",
       "id.murmur3.remainder: expected UNSIGNED, FLOOR or ABSOLUTE, got REMAINDER_UNSPECIFIED"},
      {"type: STRING murmur3 { seed: 1 first_row: 0 input: TEXT remainder: FLOOR } unknown: REFUSE",
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
      "remainder: UNSIGNED " +
      Example("ππππππππ", 0xd58063c1u % 1000);
  EXPECT_TRUE(Create(text + Example("Hello, world!", 0x24884cbau % 1000) + "}").ok());
  EXPECT_EQ(CreateError(text + Example("Hello, world!", 5) + "}"),
            "id.murmur3.examples: expected {text: \"Hello, world!\" row: 5}, got row " +
                std::to_string(0x24884cbau % 1000));
}

TEST_F(VocabularyTest, ExamplesMustTellRemaindersApart) {
  const auto text = [](const std::string& remainder, uint64_t buckets, const std::string& examples) {
    return "type: STRING unknown: REFUSE murmur3 { seed: 0 first_row: 0 input: TEXT remainder: " + remainder +
           " buckets: " + std::to_string(buckets) + " " + examples + "}";
  };
  const auto error = [](const std::string& is, const std::string& other) {
    return "id.murmur3.examples: expected one that takes another row by remainder " + is + " than by " +
           other + ", got none";
  };
  // The empty text has hash 0, which shows nothing.
  EXPECT_EQ(CreateError(text("UNSIGNED", 1000, Example("", 0))), error("UNSIGNED", "FLOOR"));
  EXPECT_EQ(CreateError(text("FLOOR", 1000, Example("", 0))), error("FLOOR", "UNSIGNED"));
  EXPECT_EQ(CreateError(text("ABSOLUTE", 1000, Example("", 0))), error("ABSOLUTE", "UNSIGNED"));
  // UNSIGNED and FLOOR are one for a power of two, and all three for 1 and 2 buckets.
  EXPECT_EQ(CreateError(text("UNSIGNED", 4, Example("", 0))), error("UNSIGNED", "ABSOLUTE"));
  EXPECT_EQ(CreateError(text("FLOOR", 4, Example("", 0))), error("FLOOR", "ABSOLUTE"));
  EXPECT_TRUE(Create(text("FLOOR", 1, Example("", 0))).ok());
  EXPECT_TRUE(Create(text("ABSOLUTE", 2, Example("", 0))).ok());
  // One that shows the one but not the other: with 3 buckets 4138058784 is 0, -156908512 is 2, 156908512
  // is 1.
  EXPECT_TRUE(Create(text("UNSIGNED", 3, Example("foo", 0))).ok());
  // With 5 buckets: 4, 3 and 2; the most negative hash is 3, 2 and 3.
  EXPECT_EQ(CreateError(text("UNSIGNED", 5, Example("akqlrggi", 3))), error("UNSIGNED", "ABSOLUTE"));
  EXPECT_TRUE(Create(text("UNSIGNED", 5, Example("akqlrggi", 3) + Example("foo", 4))).ok());
}

TEST_F(VocabularyTest, ExamplesMustTellInputsApart) {
  const std::string ids = "type: INT64 unknown: REFUSE negative: REFUSE ";
  const auto bucket = [](std::string_view bytes) { return static_cast<int>(MurmurHash3(bytes, 0) % 2); };
  std::string same, other;
  for (int id = 0; id < 100; ++id) {
    const char bytes[8] = {static_cast<char>(id)};
    const std::string digits = std::to_string(id);
    const int row = bucket(digits);
    (row == bucket({bytes, 8}) ? same : other) = Example(id, row);
  }
  ASSERT_FALSE(same.empty());
  ASSERT_FALSE(other.empty());
  const std::string text = ids + "murmur3 { seed: 0 first_row: 0 buckets: 2 remainder: FLOOR input: TEXT ";
  EXPECT_EQ(
      CreateError(text + same + "}"),
      "id.murmur3.examples: expected one that takes another row by input TEXT than by INT64_LE, got none");
  EXPECT_TRUE(Create(text + same + other + "}").ok());
  // FarmHash has the same inputs.
  EXPECT_TRUE(
      Create(ids + "farm_hash { first_row: 0 buckets: 1 input: INT64_LE " + Example(7, 0) + "}").ok());
}

}  // namespace
}  // namespace dinghy
