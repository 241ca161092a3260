// Requests that are refused, and what the refusal says.
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "features/encoder.h"
#include "tests/features/shop_manifest.h"

namespace dinghy {
namespace {

using Columns = google::protobuf::RepeatedPtrField<v1::Column>;

void Add(Columns* columns, const std::string& text) { *columns->Add() = Parse<v1::Column>(text); }
void Replace(Columns* columns, const std::string& text) {
  const v1::Column column = Parse<v1::Column>(text);
  FindColumn(*columns, column.feature()) = column;
}

struct Fault {
  std::string name;
  std::function<void(v1::ScoreRequest&)> make;
  std::string message;
};

std::vector<Fault> CandidateFaults() {
  const auto add = [](const std::string& text) {
    return [text](v1::ScoreRequest& r) { Add(r.mutable_candidates(), text); };
  };
  const auto replace = [](const std::string& text) {
    return [text](v1::ScoreRequest& r) { Replace(r.mutable_candidates(), text); };
  };
  const auto remove = [](const std::string& name) {
    return [name](v1::ScoreRequest& r) { RemoveColumn(*r.mutable_candidates(), name); };
  };
  return {
      {"UnequalRows", add("feature: 'category' ints { values: [ 1, 2 ] }"),
       "candidates column \"category\": expected 3 rows, got 2"},
      {"UnequalRowsByLengths", replace("feature: 'tags' strings { values: [ 'a' ] } lengths: [ 1, 0, 0, 0 ]"),
       "candidates column \"tags\": expected 3 rows, got 4"},
      {"UnequalUnknownColumn", add("feature: 'new' ints { values: [ 1, 2 ] }"),
       "candidates column \"new\": expected 3 rows, got 2"},
      {"EmptyUnknownColumn", add("feature: 'new' ints {}"),
       "candidates column \"new\": expected 3 rows, got 0"},
      {"LengthsBeyondValues", replace("feature: 'tags' strings { values: [ 'a' ] } lengths: [ 1, 1, 0 ]"),
       "candidates column \"tags\": expected 2 values, the sum of its lengths, got 1"},
      {"LengthsOverflow",
       replace("feature: 'tags' strings { values: [ 'a' ] } lengths: [ 4294967295, 1, 1 ]"),
       "candidates column \"tags\": expected 4294967297 values, the sum of its lengths, got 1"},
      {"LengthsOfUnknownColumn", add("feature: 'new' ints { values: [ 1, 2, 3 ] } lengths: [ 1, 1, 0 ]"),
       "candidates column \"new\": expected 2 values, the sum of its lengths, got 3"},
      {"StringsForInts", replace("feature: 'item' strings { values: [ 'a', 'b', 'c' ] }"),
       "candidates column \"item\": expected ints, got strings"},
      {"IntsForStrings", replace("feature: 'tags' ints { values: [ 1, 2, 3 ] }"),
       "candidates column \"tags\": expected strings, got ints"},
      {"StringsForNumbers", add("feature: 'price' strings { values: [ 'a', 'b', 'c' ] }"),
       "candidates column \"price\": expected floats, got strings"},
      {"IntsForVectors", replace("feature: 'picture' ints { values: [ 1, 2, 3, 4, 5, 6 ] }"),
       "candidates column \"picture\": expected floats, got ints"},
      {"NoValues", add("feature: 'price'"), "candidates column \"price\": expected floats, got no values"},
      {"Twice", add("feature: 'item' ints { values: [ 1, 2, 3 ] }"),
       "candidates column \"item\": expected once, got it again"},
      {"UnknownTwice",
       [](v1::ScoreRequest& r) {
         for (int i = 0; i < 2; ++i)
           Add(r.mutable_candidates(), "feature: 'new' ints { values: [ 1, 2, 3 ] }");
       },
       "candidates column \"new\": expected once, got it again"},
      {"TwoIdsInOneRow", replace("feature: 'item' ints { values: [ 11, 12, 13 ] } lengths: [ 2, 1, 0 ]"),
       "candidates column \"item\": row 0: expected 1 values, got 2"},
      {"NoIdInARow", replace("feature: 'item' ints { values: [ 11, 12 ] } lengths: [ 1, 0, 1 ]"),
       "candidates column \"item\": row 1: expected 1 values, got 0, and the feature has no missing value"},
      {"VectorOfAnotherWidth",
       replace("feature: 'picture' floats { values: [ 1, 2, 3, 4, 5, 6 ] } lengths: [ 2, 1, 3 ]"),
       "candidates column \"picture\": row 1: expected 2 values, got 1"},
      {"BareVectorsWithARest", replace("feature: 'picture' floats { values: [ 1, 2, 3, 4, 5 ] }"),
       "candidates column \"picture\": expected a multiple of 2 values, got 5"},
      {"BareVectorsTooFew", replace("feature: 'picture' floats { values: [ 1, 2, 3, 4 ] }"),
       "candidates column \"picture\": expected 3 rows, got 2"},
      {"NanInNumeric", add("feature: 'price' floats { values: [ 1, nan, 3 ] }"),
       "candidates column \"price\": row 1: expected a finite number, got nan"},
      {"InfinityInNumeric", add("feature: 'price' floats { values: [ 1, 2, -inf ] }"),
       "candidates column \"price\": row 2: expected a finite number, got -inf"},
      {"NanInVector",
       replace("feature: 'picture' floats { values: [ 1, 2, 3, nan, 5, 6 ] } lengths: [ 2, 2, 2 ]"),
       "candidates column \"picture\": row 1: expected finite numbers, got nan"},
      {"InfinityInVector",
       replace("feature: 'picture' floats { values: [ inf, 2, 3, 4, 5, 6 ] } lengths: [ 2, 2, 2 ]"),
       "candidates column \"picture\": row 0: expected finite numbers, got inf"},
      {"RefusedNegativeId", add("feature: 'category' ints { values: [ 1, -2, 3 ] }"),
       "candidates column \"category\": row 1: expected an id of the vocabulary, got -2"},
      {"MissingItem", remove("item"),
       "feature \"item\": expected candidates column \"item\", got none, and the feature has no missing "
       "value"},
      {"UnknownItemWithoutMissingValue",
       [](v1::ScoreRequest& r) {
         FindColumn(*r.mutable_candidates(), "item").mutable_ints()->set_values(2, 40);
       },
       "feature \"price\": row 2: expected an item of the catalog, got 40, and the feature has no missing "
       "value"},
      {"MoreItemsThanTheRest", replace("feature: 'item' ints { values: [ 1, 2, 3, 4, 5 ] }"),
       "candidates column \"tags\": expected 5 rows, got 3"},
  };
}

std::vector<Fault> UserFaults() {
  return {
      {"MissingUserFeature", [](v1::ScoreRequest& r) { r.clear_user(); },
       "feature \"age\": expected user or context column \"age\", got none, and the feature has no missing "
       "value"},
      {"MissingContextFeature", [](v1::ScoreRequest& r) { r.clear_context(); },
       "feature \"segment\": expected user or context column \"segment\", got none, and the feature has no "
       "missing "
       "value"},
      {"TwoRows", [](v1::ScoreRequest& r) { r.mutable_user(0)->mutable_floats()->add_values(1); },
       "user or context column \"age\": expected 1 rows, got 2"},
      {"NoRows", [](v1::ScoreRequest& r) { r.mutable_user(0)->mutable_floats()->clear_values(); },
       "user or context column \"age\": expected 1 rows, got 0"},
      {"InUserAndContext", [](v1::ScoreRequest& r) { *r.add_context() = r.user(0); },
       "user or context column \"age\": expected once, got it again"},
      {"UnknownInUserAndContext",
       [](v1::ScoreRequest& r) {
         Add(r.mutable_user(), "feature: 'new' ints { values: 1 }");
         Add(r.mutable_context(), "feature: 'new' ints { values: 1 }");
       },
       "user or context column \"new\": expected once, got it again"},
      {"UnknownWithTwoRows",
       [](v1::ScoreRequest& r) {
         Add(r.mutable_user(), "feature: 'new' ints { values: [ 1, 2 ] } lengths: [ 1, 1 ]");
       },
       "user or context column \"new\": expected 1 rows, got 2"},
      {"RefusedUnknownId",
       [](v1::ScoreRequest& r) { r.mutable_context(0)->mutable_strings()->set_values(0, "strange"); },
       "user or context column \"segment\": row 0: expected an id of the vocabulary, got strange"},
      {"Nan",
       [](v1::ScoreRequest& r) {
         r.mutable_user(0)->mutable_floats()->set_values(0, std::numeric_limits<float>::quiet_NaN());
       },
       "user or context column \"age\": row 0: expected a finite number, got nan"},
  };
}

std::vector<Fault> SequenceFaults() {
  const auto columns = [](v1::ScoreRequest& r) { return r.mutable_sequences(0)->mutable_columns(); };
  return {
      {"UnknownSequence", [](v1::ScoreRequest& r) { r.add_sequences()->set_sequence("views"); },
       "sequences: expected one of [\"clicks\", \"buys\"], got \"views\""},
      {"SequenceTwice", [](v1::ScoreRequest& r) { r.add_sequences()->set_sequence("clicks"); },
       "sequence \"clicks\": expected once, got it again"},
      {"UnequalRows",
       [=](v1::ScoreRequest& r) { FindColumn(*columns(r), "rating").mutable_floats()->add_values(1); },
       "sequence \"clicks\" column \"rating\": expected 4 rows, got 5"},
      {"UnequalUnknownColumn",
       [=](v1::ScoreRequest& r) {
         Add(columns(r), "feature: 'new' ints { values: [ 1, 2, 3, 4, 5, 6, 7, 8 ] }");
       },
       "sequence \"clicks\" column \"new\": expected 4 rows, got 8"},
      {"ColumnTwice", [=](v1::ScoreRequest& r) { *columns(r)->Add() = r.sequences(0).columns(0); },
       "sequence \"clicks\" column \"item\": expected once, got it again"},
      {"WrongType",
       [=](v1::ScoreRequest& r) { FindColumn(*columns(r), "item").mutable_strings()->add_values("a"); },
       "sequence \"clicks\" column \"item\": expected ints, got strings"},
      {"FewerTimes",
       [](v1::ScoreRequest& r) { r.mutable_sequences(0)->mutable_event_time_ms()->RemoveLast(); },
       "sequence \"clicks\" event_time_ms: expected 4 values, got 3"},
      {"MoreTimes", [](v1::ScoreRequest& r) { r.mutable_sequences(0)->add_event_time_ms(1999); },
       "sequence \"clicks\" event_time_ms: expected 4 values, got 5"},
      {"NoTimes", [](v1::ScoreRequest& r) { r.mutable_sequences(0)->clear_event_time_ms(); },
       "sequence \"clicks\" event_time_ms: expected 4 values, as feature \"clicks.age\" reads the time, got "
       "none"},
      {"FallingTimes", [](v1::ScoreRequest& r) { r.mutable_sequences(0)->set_event_time_ms(1, 499); },
       "sequence \"clicks\" event_time_ms: behavior 1: expected at least 500, the one before, got 499"},
      {"NegativeTime", [](v1::ScoreRequest& r) { r.mutable_sequences(0)->set_event_time_ms(0, INT64_MIN); },
       "sequence \"clicks\" event_time_ms: behavior 0: expected at least 0, got -9223372036854775808"},
      {"TimeOfTheRequest", [](v1::ScoreRequest& r) { r.mutable_sequences(0)->set_event_time_ms(3, 2000); },
       "sequence \"clicks\" event_time_ms: behavior 3: expected a time before request_time_ms 2000, got "
       "2000"},
      {"NoRequestTime", [](v1::ScoreRequest& r) { r.clear_request_time_ms(); },
       "request_time_ms: expected a value, got none"},
      {"NanInAKeptRow",
       [=](v1::ScoreRequest& r) {
         FindColumn(*columns(r), "rating")
             .mutable_floats()
             ->set_values(2, std::numeric_limits<float>::infinity());
       },
       "sequence \"clicks\" column \"rating\": row 2: expected a finite number, got inf"},
      {"MissingEventFeature",
       [](v1::ScoreRequest& r) {
         RemoveColumn(*r.mutable_sequences(1)->mutable_columns(), "item");
         r.mutable_sequences(1)->add_event_time_ms(5);
       },
       "feature \"buys.item\": expected sequence \"buys\" column \"item\", got none, and the feature has no "
       "missing "
       "value"},
  };
}

class EncoderFaultsTest : public ::testing::TestWithParam<Fault> {};

TEST_P(EncoderFaultsTest, IsRefusedByName) {
  ShopManifest shop;
  const auto encoder = shop.CreateEncoder();
  ASSERT_TRUE(encoder.ok()) << encoder.status();
  v1::ScoreRequest request = MakeShopRequest();
  FeatureBatch batch;
  EncodeNotes notes;
  ASSERT_TRUE((*encoder)->Encode(request, batch, notes).ok());
  GetParam().make(request);
  EXPECT_EQ((*encoder)->Encode(request, batch, notes), absl::InvalidArgumentError(GetParam().message));
  // The batch is fit for the next request.
  EXPECT_TRUE((*encoder)->Encode(MakeShopRequest(), batch, notes).ok());
}

std::string Name(const ::testing::TestParamInfo<Fault>& info) { return info.param.name; }
INSTANTIATE_TEST_SUITE_P(Candidates, EncoderFaultsTest, ::testing::ValuesIn(CandidateFaults()), Name);
INSTANTIATE_TEST_SUITE_P(User, EncoderFaultsTest, ::testing::ValuesIn(UserFaults()), Name);
INSTANTIATE_TEST_SUITE_P(Sequences, EncoderFaultsTest, ::testing::ValuesIn(SequenceFaults()), Name);

class CatalogLookUpFaultsTest : public ::testing::Test {
 protected:
  absl::Status Encode() {
    const auto encoder = shop_.CreateEncoder();
    if (!encoder.ok()) return encoder.status();
    FeatureBatch batch;
    EncodeNotes notes;
    return (*encoder)->Encode(request_, batch, notes);
  }
  ShopManifest shop_;
  v1::ScoreRequest request_ = MakeShopRequest();
};

TEST_F(CatalogLookUpFaultsTest, CandidatesNeedTheItemOrTheFeature) {
  shop_.feature("item").set_missing_id(v1::OOV_ROW);
  RemoveColumn(*request_.mutable_candidates(), "item");
  EXPECT_EQ(Encode(),
            absl::InvalidArgumentError(
                "feature \"category\": expected candidates column \"category\", or \"item\" to look it up "
                "in the catalog, got neither"));
}

TEST_F(CatalogLookUpFaultsTest, BehaviorsNeedTheItemOrTheFeature) {
  shop_.feature("clicks.item").set_missing_id(v1::OOV_ROW);
  RemoveColumn(*request_.mutable_sequences(0)->mutable_columns(), "item");
  EXPECT_EQ(Encode(),
            absl::InvalidArgumentError(
                "feature \"clicks.category\": expected sequence \"clicks\" column \"category\", or \"item\" "
                "to look it up in the catalog, got neither"));
}

// No feature reads clicks.item here; it is a key only.
TEST_F(CatalogLookUpFaultsTest, KeysHaveTheItemsType) {
  shop_.manifest.mutable_features()->DeleteSubrange(shop_.feature_index("clicks.item"), 1);
  EXPECT_TRUE(Encode().ok());
  *request_.mutable_sequences(0)->mutable_columns(0) =
      Parse<v1::Column>("feature: 'item' ints { values: [ 1, 2, 11, 12 ] } lengths: [ 0, 2, 1, 1 ]");
  EXPECT_EQ(Encode(), absl::InvalidArgumentError(
                          "sequence \"clicks\" column \"item\": row 1: expected 1 value, got 2"));
  *request_.mutable_sequences(0)->mutable_columns(0) =
      Parse<v1::Column>("feature: 'item' floats { values: [ 1, 2, 11, 12 ] }");
  EXPECT_EQ(Encode(),
            absl::InvalidArgumentError("sequence \"clicks\" column \"item\": expected ints, got floats"));
}

TEST_F(CatalogLookUpFaultsTest, UnknownItemOfABehaviorIsNamed) {
  shop_.feature("clicks.category").clear_if_missing();
  FindColumn(*request_.mutable_sequences(0)->mutable_columns(), "item").mutable_ints()->set_values(2, 99);
  EXPECT_EQ(Encode(),
            absl::InvalidArgumentError(
                "feature \"clicks.category\": row 2: expected an item of the catalog, got 99, and the "
                "feature has no missing value"));
}

TEST_F(CatalogLookUpFaultsTest, NumbersThatLeaveTheRangeOfFloatsAreRefused) {
  shop_.feature("age").mutable_numeric()->set_stddev(1e-10);
  request_.mutable_user(0)->mutable_floats()->set_values(0, 3e38f);
  EXPECT_EQ(Encode(),
            absl::InvalidArgumentError(
                "user or context column \"age\": row 0: expected a finite number that normalises to a "
                "finite float, got 3e+38"));
}

}  // namespace
}  // namespace dinghy
