// Manifests and tables that RequestEncoder::Create refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>

#include "tests/features/shop_manifest.h"

namespace dinghy {
namespace {

using ::testing::HasSubstr;

TEST(SchemaTest, TheShopIsTaken) {
  ShopManifest shop;
  EXPECT_TRUE(shop.CreateEncoder().ok()) << shop.CreateEncoder().status();
}

struct Fault {
  std::string name;
  std::function<void(ShopManifest&)> make;
  std::string message;
};

std::vector<Fault> Faults() {
  const auto sequence = [](auto change) {
    return [change](ShopManifest& shop) { change(*shop.manifest.mutable_sequences(0)); };
  };
  const auto feature = [](const std::string& name, auto change) {
    return [name, change](ShopManifest& shop) { change(shop.feature(name)); };
  };
  return {
      {"SequenceWithoutName", sequence([](v1::Sequence& s) { s.clear_name(); }),
       "sequence \"\": name: expected one without \".\""},
      {"SequenceTwice", sequence([](v1::Sequence& s) { s.set_name("buys"); }),
       "sequence \"buys\": name: expected each once, got it again"},
      {"NoActions", sequence([](v1::Sequence& s) { s.clear_actions(); }),
       "sequence \"clicks\": actions: expected at least one, got none"},
      {"NoMaxLength", sequence([](v1::Sequence& s) { s.clear_max_length(); }),
       "sequence \"clicks\": max_length: expected a value, got none"},
      {"MaxLengthZero", sequence([](v1::Sequence& s) { s.set_max_length(0); }),
       "sequence \"clicks\": max_length: expected 1 to 1048576, got 0"},
      {"NoKeep", sequence([](v1::Sequence& s) { s.clear_keep(); }),
       "sequence \"clicks\": keep: expected NEWEST or OLDEST, got KEEP_UNSPECIFIED"},
      {"NoPad", sequence([](v1::Sequence& s) { s.clear_pad(); }),
       "sequence \"clicks\": pad: expected NONE, LEFT or RIGHT, got nothing"},
      {"SkipOfAnUnknownFeature", sequence([](v1::Sequence& s) { s.set_skip_pad_of("clicks.shop"); }),
       "sequence \"clicks\": skip_pad_of: expected a feature, got \"clicks.shop\""},
      {"SkipOfAnotherSequence", sequence([](v1::Sequence& s) { s.set_skip_pad_of("buys.item"); }),
       "sequence \"clicks\": skip_pad_of: expected a SINGLE id feature of this sequence with a pad_row, got "
       "\"buys.item\", which is not of this sequence"},
      {"SkipOfACandidateFeature", sequence([](v1::Sequence& s) { s.set_skip_pad_of("item"); }),
       "sequence \"clicks\": skip_pad_of: expected a SINGLE id feature of this sequence with a pad_row, got "
       "\"item\", which is not of this sequence"},
      {"SkipOfANumber", sequence([](v1::Sequence& s) { s.set_skip_pad_of("clicks.rating"); }),
       "sequence \"clicks\": skip_pad_of: expected a SINGLE id feature of this sequence with a pad_row, got "
       "\"clicks.rating\", which has no id"},
      {"SkipOfABag",
       [](ShopManifest& shop) {
         shop.manifest.mutable_sequences(0)->set_skip_pad_of("clicks.item");
         shop.feature("clicks.item").mutable_id()->set_bag(v1::IdFeature::BAG_SUM);
         shop.manifest.set_item_feature("");
         for (const char* name : {"category", "price"}) shop.feature(name).set_from(v1::REQUEST);
         shop.feature("clicks.category").set_from(v1::REQUEST);
       },
       "sequence \"clicks\": skip_pad_of: expected a SINGLE id feature of this sequence with a pad_row, got "
       "\"clicks.item\", which is a bag"},
      {"SkipWithoutPadRow", sequence([](v1::Sequence& s) { s.set_skip_pad_of("clicks.category"); }),
       "sequence \"clicks\": skip_pad_of: expected a SINGLE id feature of this sequence with a pad_row, got "
       "\"clicks.category\", which has no pad_row"},

      {"FeatureTwice", feature("price", [](v1::Feature& f) { f.set_name("category"); }),
       "feature \"category\": name: expected each once, got it again"},
      {"NoLevel", feature("price", [](v1::Feature& f) { f.clear_level(); }),
       "feature \"price\": level: expected USER, SEQUENCE or CANDIDATE, got none"},
      {"NoSource", feature("price", [](v1::Feature& f) { f.clear_from(); }),
       "feature \"price\": from: expected REQUEST for USER, REQUEST or CATALOG for CANDIDATE, EVENT at "
       "SEQUENCE "
       "level for time_since features, got FEATURE_SOURCE_UNSPECIFIED at level CANDIDATE"},
      {"UserFromCatalog", feature("age", [](v1::Feature& f) { f.set_from(v1::CATALOG); }),
       "feature \"age\": from: expected REQUEST for USER, REQUEST or CATALOG for CANDIDATE, EVENT at "
       "SEQUENCE "
       "level for time_since features, got CATALOG at level USER"},
      {"NoKind", feature("price", [](v1::Feature& f) { f.clear_kind(); }),
       "feature \"price\": expected id, numeric, vector or time_since, got none"},
      {"UnknownSequence", feature("clicks.item", [](v1::Feature& f) { f.set_sequence("views"); }),
       "feature \"clicks.item\": sequence: expected one of the sequences, got \"views\""},
      {"NameOfAnotherSequence", feature("clicks.item", [](v1::Feature& f) { f.set_sequence("buys"); }),
       "feature \"clicks.item\": name: expected \"buys.<field>\""},
      {"SequenceOfACandidateFeature", feature("price", [](v1::Feature& f) { f.set_sequence("clicks"); }),
       "feature \"price\": sequence: expected none at level CANDIDATE, got \"clicks\""},
      {"UnknownTable", feature("item", [](v1::Feature& f) { f.set_table("things"); }),
       "feature \"item\": table: expected one of the tables, got \"things\""},
      {"TableOfANumber", feature("price", [](v1::Feature& f) { f.set_table("item"); }),
       "feature \"price\": table: expected none, got \"item\""},

      {"NoBag", feature("item", [](v1::Feature& f) { f.mutable_id()->clear_bag(); }),
       "feature \"item\": id.bag: expected SINGLE, BAG_SUM or BAG_MEAN, got BAG_UNSPECIFIED"},
      {"NoUnknown", feature("item", [](v1::Feature& f) { f.mutable_id()->clear_unknown(); }),
       "feature \"item\": id.unknown: expected OOV_ROW, PAD_ROW or REFUSE, got ID_POLICY_UNSPECIFIED"},
      {"MissingIdWithoutRow", feature("category", [](v1::Feature& f) { f.set_missing_id(v1::PAD_ROW); }),
       "feature \"category\": id.pad_row (missing_id is PAD_ROW): expected a value, got none"},
      {"MissingIdRefuse", feature("category", [](v1::Feature& f) { f.set_missing_id(v1::REFUSE); }),
       "feature \"category\": missing_id: expected OOV_ROW or PAD_ROW, got REFUSE"},
      {"MissingNumberOfAnId", feature("category", [](v1::Feature& f) { f.set_missing(1); }),
       "feature \"category\": expected `missing` only for numeric and vector, `missing_id` only for id "
       "features, "
       "got missing"},
      {"MissingIdOfANumber", feature("price", [](v1::Feature& f) { f.set_missing_id(v1::OOV_ROW); }),
       "feature \"price\": expected `missing` only for numeric and vector, `missing_id` only for id "
       "features, got "
       "missing_id"},
      {"RowsBeyondTheTable", [](ShopManifest& shop) { shop.table_rows[0] = 99; },
       "feature \"item\": id: expected a row below 99, the table's rows, got 99"},
      {"PolicyRowBeyondTheTable", feature("item", [](v1::Feature& f) { f.mutable_id()->set_oov_row(100); }),
       "feature \"item\": id: expected a row below 100, the table's rows, got 100"},
      {"FileBeyondTheTable", [](ShopManifest& shop) { shop.table_rows[2] = 4; },
       "feature \"tags\": id: expected a row below 4, the table's rows, got 4"},
      {"BucketsBeyondTheTable", [](ShopManifest& shop) { shop.table_rows[4] = 5; },
       "feature \"clicks.age\": time_since: expected a row below 5, the table's rows, got 5"},
      {"TablesWithoutRows", [](ShopManifest& shop) { shop.table_rows.pop_back(); },
       "tables: expected the rows of 5 tables, got 4"},
      {"TableTwice", [](ShopManifest& shop) { shop.manifest.mutable_tables(1)->set_name("item"); },
       "table \"item\": name: expected a name of its own"},

      {"NoMean", feature("age", [](v1::Feature& f) { f.mutable_numeric()->clear_mean(); }),
       "feature \"age\": numeric.mean: expected a value, got none"},
      {"NoStddev", feature("age", [](v1::Feature& f) { f.mutable_numeric()->clear_stddev(); }),
       "feature \"age\": numeric.stddev: expected a value, got none"},
      {"StddevZero", feature("age", [](v1::Feature& f) { f.mutable_numeric()->set_stddev(0); }),
       "feature \"age\": numeric.stddev: expected a finite number above 0, got 0"},
      {"NanMean", feature("age", [](v1::Feature& f) { f.mutable_numeric()->set_mean(NAN); }),
       "feature \"age\": numeric.mean: expected a finite number, got nan"},
      {"InfiniteMissing", feature("age", [](v1::Feature& f) { f.set_missing(1e300); }),
       "feature \"age\": missing: expected a number that normalises to a finite float, got 1e+300"},
      {"NoDim", feature("picture", [](v1::Feature& f) { f.mutable_vector()->clear_dim(); }),
       "feature \"picture\": vector.dim: expected a value, got none"},
      {"DimZero", feature("picture", [](v1::Feature& f) { f.mutable_vector()->set_dim(0); }),
       "feature \"picture\": vector.dim: expected 1 to 1048576, got 0"},
      {"NanMissing", feature("picture", [](v1::Feature& f) { f.set_missing(NAN); }),
       "feature \"picture\": missing: expected a finite float, got nan"},
      {"NoFirstRow", feature("clicks.age", [](v1::Feature& f) { f.mutable_time_since()->clear_first_row(); }),
       "feature \"clicks.age\": time_since.first_row: expected a value, got none"},
      {"EqualBoundaries",
       feature("clicks.age", [](v1::Feature& f) { f.mutable_time_since()->set_boundaries_ms(1, 10); }),
       "feature \"clicks.age\": time_since.boundaries_ms: expected strictly ascending values, got 10 before "
       "10"},
      {"TimeFromRequest", feature("clicks.age", [](v1::Feature& f) { f.set_from(v1::REQUEST); }),
       "feature \"clicks.age\": from: expected REQUEST for USER, REQUEST or CATALOG for CANDIDATE, EVENT at "
       "SEQUENCE level for time_since features, got REQUEST at level SEQUENCE"},
      {"ActionAsNumber", feature("clicks.rating", [](v1::Feature& f) { f.set_name("clicks.action"); }),
       "feature \"clicks.action\": expected an id feature of type STRING, which an event's action is"},
      {"EventBagMissingAsOov",
       feature("tags",
               [](v1::Feature& f) {
                 f.set_name("clicks.tags");
                 f.set_level(v1::SEQUENCE);
                 f.set_sequence("clicks");
                 f.set_from(v1::EVENT);
                 f.set_missing_id(v1::OOV_ROW);
               }),
       "feature \"clicks.tags\": missing_id: expected PAD_ROW or none for a bag from EVENT, got OOV_ROW"},

      {"NoItemFeature", [](ShopManifest& shop) { shop.manifest.clear_item_feature(); },
       "item_feature: expected the item id's feature, as feature \"category\" reads the catalog, got none"},
      {"ItemFeatureOfTheUser", [](ShopManifest& shop) { shop.manifest.set_item_feature("age"); },
       "item_feature: expected a CANDIDATE id feature, SINGLE and from REQUEST, got \"age\""},
      {"ItemFeatureIsANumber", [](ShopManifest& shop) { shop.manifest.set_item_feature("price"); },
       "item_feature: expected a CANDIDATE id feature, SINGLE and from REQUEST, got \"price\""},
      {"ItemsOfTwoTypes",
       feature("buys.item",
               [](v1::Feature& f) {
                 *f.mutable_id() = Parse<v1::IdFeature>(
                     "type: STRING bag: SINGLE file { path: 'tags.txt' first_row: 2 } unknown: REFUSE");
               }),
       "feature \"buys.item\": id: expected a SINGLE id of type INT64, as \"item\" is"},
      {"NoMaxCandidates", [](ShopManifest& shop) { shop.options.max_candidates = 0; },
       "max_candidates: expected at least 1, got 0"},
  };
}

class SchemaFaultsTest : public ::testing::TestWithParam<Fault> {};

TEST_P(SchemaFaultsTest, IsRefusedByName) {
  ShopManifest shop;
  GetParam().make(shop);
  EXPECT_EQ(shop.CreateEncoder().status(), absl::InvalidArgumentError(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(All, SchemaFaultsTest, ::testing::ValuesIn(Faults()),
                         [](const auto& info) { return info.param.name; });

TEST(SchemaTest, FilesThatAreAbsentAreNamed) {
  for (const char* name : {"tags.txt", "catalog.json"}) {
    ShopManifest shop;
    shop.files.erase(name);
    const absl::Status status = shop.CreateEncoder().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
    EXPECT_THAT(std::string(status.message()), HasSubstr(name));
  }
}

TEST(SchemaTest, AModelWithoutCatalogFeaturesNeedsNoCatalog) {
  ShopManifest shop;
  shop.files.erase("catalog.json");
  for (const char* name : {"category", "price"}) shop.feature(name).set_from(v1::REQUEST);
  shop.feature("clicks.category").set_from(v1::EVENT);
  EXPECT_TRUE(shop.CreateEncoder().ok()) << shop.CreateEncoder().status();
}

}  // namespace
}  // namespace dinghy
