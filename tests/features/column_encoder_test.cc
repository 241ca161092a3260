#include "features/column_encoder.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "tests/features/shop_manifest.h"

namespace dinghy {
namespace {

constexpr int kTokens = 300;
constexpr int kMostRows = 200;  // several batches of ids

// Ids as the feature's type has them; one in five is not in the vocabulary file of "0", "3", "6", and so on.
v1::Column RandomIds(v1::IdFeature::Type type, bool lengths, int most_a_row, std::mt19937& random) {
  v1::Column column;
  for (int row = 0; row < kMostRows; ++row) {
    int length = 1;
    if (lengths) column.add_lengths(length = static_cast<int>(random() % (most_a_row + 1)));
    for (int i = 0; i < length; ++i) {
      const int id = static_cast<int>(random() % kTokens) * 3 + (random() % 5 == 0);
      if (type == v1::IdFeature::INT64) {
        column.mutable_ints()->add_values(id);
      } else {
        column.mutable_strings()->add_values(std::to_string(id));
      }
    }
  }
  return column;
}

// Ids are looked up in batches; what a row gets must not depend on the rows around it.
TEST(ColumnEncoderTest, ManyRowsAreThoseOfEachRowAlone) {
  FileContents files;
  for (int i = 0; i < kTokens; ++i) files["tokens"] += std::to_string(3 * i) + "\n";
  std::mt19937 random(1);
  for (const std::string type : {"INT64 negative: REFUSE", "STRING"}) {
    for (const std::string bag : {"SINGLE", "BAG_SUM"}) {
      for (const bool lengths : {false, true}) {
        SCOPED_TRACE(type + " " + bag + (lengths ? " with lengths" : ""));
        const auto feature = Parse<v1::Feature>(
            "name: 'f' missing_id: PAD_ROW id { type: " + type + " bag: " + bag +
            " unknown: OOV_ROW oov_row: 1 pad_row: 0 file { path: 'tokens' first_row: 2 } }");
        const auto encoder = ColumnEncoder::Create(feature, files, kTokens + 2);
        ASSERT_TRUE(encoder.ok()) << encoder.status();
        const v1::Column column = RandomIds(feature.id().type(), lengths, bag == "SINGLE" ? 1 : 4, random);
        for (const int begin : {0, 3}) {
          for (const int rows : {0, 1, 63, 64, 65, kMostRows - begin}) {
            FeatureColumn together, alone;
            std::vector<uint32_t> flags(kMostRows), alone_flags = flags;
            (*encoder)->Clear(together);
            (*encoder)->Clear(alone);
            OovCounter oov{.flags = flags.data()};
            ASSERT_TRUE((*encoder)->Append(column, begin, rows, together, oov).ok());
            int64_t alone_total = 0;
            for (int row = 0; row < rows; ++row) {
              OovCounter one{.flags = alone_flags.data() + row};
              ASSERT_TRUE((*encoder)->Append(column, begin + row, 1, alone, one).ok());
              alone_total += one.total;
            }
            EXPECT_EQ(together.rows, alone.rows);
            EXPECT_EQ(together.offsets, alone.offsets);
            EXPECT_EQ(flags, alone_flags);
            EXPECT_EQ(oov.total, alone_total);
            if (rows > 64) {
              EXPECT_GT(oov.total, 0);
            }
          }
        }
      }
    }
  }
}

TEST(ColumnEncoderTest, NamesTheRowOfAnIdThatIsRefusedInALaterBatch) {
  const auto feature = Parse<v1::Feature>(
      "name: 'f' id { type: INT64 bag: SINGLE unknown: REFUSE negative: REFUSE identity { rows: 10 } }");
  const auto encoder = ColumnEncoder::Create(feature, {}, 10);
  ASSERT_TRUE(encoder.ok()) << encoder.status();
  v1::Column column;
  for (int row = 0; row < 200; ++row) column.mutable_ints()->add_values(row == 130 ? 10 : row % 10);
  FeatureColumn out;
  (*encoder)->Clear(out);
  OovCounter oov;
  EXPECT_EQ((*encoder)->Append(column, 0, 200, out, oov).message(),
            "row 130: expected an id of the vocabulary, got 10");
}

}  // namespace
}  // namespace dinghy
