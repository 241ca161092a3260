#include "features/catalog.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/features/shop_manifest.h"

namespace dinghy {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class CatalogTest : public ::testing::Test {
 protected:
  CatalogTest() {
    for (size_t i = 0; i < fields_.size(); ++i) {
      const v1::Feature& feature = shop_.feature(fields_[i]);
      encoders_.push_back(*ColumnEncoder::Create(feature, shop_.files, 100));
      reads_.push_back(
          {.feature = 2 * static_cast<int>(i), .field = &fields_[i], .encoder = encoders_[i].get()});
    }
  }
  absl::StatusOr<std::unique_ptr<Catalog>> Create(const std::string& text) {
    return Catalog::Create(Parse<v1::Catalog>(text), shop_.feature("item"), reads_);
  }

  ShopManifest shop_;
  const std::vector<std::string> fields_ = {"category", "price", "tags", "picture"};
  std::vector<std::unique_ptr<ColumnEncoder>> encoders_;
  std::vector<CatalogRead> reads_;
};

constexpr char kCatalog[] = R"pb(
  columns {
    feature: "category"
    ints { values: [ 3, 40 ] }
    lengths: [ 1, 0, 1 ]
  }
  columns {
    feature: "item"
    ints { values: [ 7, -2, 1099511627776 ] }
  }
  columns {
    feature: "title"
    strings { values: [ "x", "y", "z" ] }
  }
  columns {
    feature: "price"
    floats { values: [ 10, 14, 18 ] }
  }
  columns {
    feature: "tags"
    strings { values: [ "red", "gold", "gold" ] }
    lengths: [ 1, 0, 2 ]
  }
  columns {
    feature: "picture"
    floats { values: [ 1, 2, 3, 4, 5, 6 ] }
  }
)pb";

TEST_F(CatalogTest, FindsItemsAndCopiesTheirFeatures) {
  const auto catalog = Create(kCatalog);
  ASSERT_TRUE(catalog.ok()) << catalog.status();
  EXPECT_EQ((*catalog)->items(), 3);
  EXPECT_EQ((*catalog)->Find(int64_t{7}), 0);
  EXPECT_EQ((*catalog)->Find(int64_t{-2}), 1);
  EXPECT_EQ((*catalog)->Find(int64_t{1} << 40), 2);
  EXPECT_EQ((*catalog)->Find(int64_t{0}), -1);

  FeatureBatch batch;
  batch.columns.resize(4);
  std::vector<uint32_t> flags(3);
  std::vector<int64_t> totals;
  for (int i = 0; i < 4; ++i) {
    encoders_[i]->Clear(batch.columns[i]);
    OovCounter oov{.flags = flags.data()};
    for (const int row : {2, 0, 1}) (*catalog)->Append(2 * i, row, (row + 1) % 3, batch.columns[i], oov);
    totals.push_back(oov.total);
  }
  EXPECT_THAT(batch.columns[0].rows, ElementsAre(1, 3, 1));  // 40 is unknown, the last one missing
  EXPECT_THAT(batch.columns[1].values, ElementsAre(2, 0, 1));
  EXPECT_THAT(batch.columns[2].rows, ElementsAre(1, 1, 2));
  EXPECT_THAT(batch.columns[2].offsets, ElementsAre(0, 2, 3, 3));
  EXPECT_THAT(batch.columns[3].values, ElementsAre(5, 6, 1, 2, 3, 4));
  EXPECT_THAT(totals, ElementsAre(1, 0, 2, 0));
  EXPECT_THAT(flags, ElementsAre(v1::OUT_OF_VOCABULARY, 0, 0));
}

TEST_F(CatalogTest, FaultsAreNamed) {
  const std::string item = "columns { feature: 'item' ints { values: [ 7, 8 ] } } ";
  const std::string category = "columns { feature: 'category' ints { values: [ 3, 4 ] } } ";
  const std::pair<std::string, std::string> faults[] = {
      {category, "catalog column \"item\": expected the item ids, got no column"},
      {item, "catalog column \"category\": expected the values of feature \"category\", got no column"},
      {item + item, "catalog column \"item\": expected once, got it again"},
      {"columns { feature: 'item' ints { values: [ 7, 8, 7 ] } }",
       "catalog column \"item\": expected each item once, got 7 again"},
      {"columns { feature: 'item' strings { values: 'a' } }",
       "catalog column \"item\": expected ints, got strings"},
      {"columns { feature: 'item' ints { values: [ 1, 2 ] } lengths: [ 2 ] }",
       "catalog column \"item\": expected one id a row, got other lengths"},
      {item + "columns { feature: 'category' ints { values: [ 3, 4, 5 ] } }",
       "catalog column \"category\": expected 2 rows, got 3"},
      {item + "columns { feature: 'category' floats { values: [ 3, 4 ] } }",
       "catalog column \"category\": expected ints, got floats"},
      {item + "columns { feature: 'category' ints { values: [ 3, -4 ] } }",
       "catalog column \"category\": row 1: expected an id of the vocabulary, got -4"},
      {item + category + "columns { feature: 'price' floats { values: [ nan, 4 ] } }",
       "catalog column \"price\": row 0: expected a finite number, got nan"},
  };
  for (const auto& [text, message] : faults) {
    EXPECT_EQ(Create(text).status(), absl::InvalidArgumentError(message)) << text;
  }
}

TEST_F(CatalogTest, FaultsOfTheFileNameIt) {
  const auto read = [this](const std::string& json) {
    return Catalog::Read(json, shop_.feature("item"), reads_).status();
  };
  EXPECT_EQ(read("{\"columns\": [").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(read("{\"columns\": [").message()),
              HasSubstr("catalog.json: expected protobuf JSON of Catalog, got "));
  EXPECT_THAT(std::string(read("{\"rows\": []}").message()), HasSubstr("rows"));
  EXPECT_EQ(read("{}"), absl::InvalidArgumentError(
                            "catalog.json: catalog column \"item\": expected the item ids, got no column"));
}

TEST_F(CatalogTest, TextItems) {
  shop_.feature("item").mutable_id()->set_type(v1::IdFeature::STRING);
  reads_.clear();
  const auto catalog = Create("columns { feature: 'item' strings { values: [ 'a', '' ] } }");
  ASSERT_TRUE(catalog.ok()) << catalog.status();
  EXPECT_EQ((*catalog)->Find("a"), 0);
  EXPECT_EQ((*catalog)->Find(""), 1);
  EXPECT_EQ((*catalog)->Find("A"), -1);
}

}  // namespace
}  // namespace dinghy
