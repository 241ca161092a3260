#include "features/encoder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "tests/features/encoder_fixture.h"

namespace dinghy {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(EncoderTest, EncodesEveryKindOfFeature) {
  Encode(request_);
  EXPECT_EQ(batch_.candidates, 3);
  EXPECT_THAT(batch_.sequence_lengths, ElementsAre(3, 1));
  EXPECT_THAT(batch_.full_lengths, ElementsAre(3, 1));
  EXPECT_THAT(column("item").rows, ElementsAre(11, 12, 13));
  EXPECT_THAT(column("category").rows, ElementsAre(5, 1, 6));
  EXPECT_THAT(column("price").values, ElementsAre(0, 1, -0.5f));
  EXPECT_THAT(column("tags").rows, ElementsAre(2, 4, 2));
  EXPECT_THAT(column("tags").offsets, ElementsAre(0, 2, 2, 3));
  EXPECT_THAT(column("picture").values, ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_THAT(column("age").values, ElementsAre(1));
  EXPECT_THAT(column("segment").rows, ElementsAre(1));
  EXPECT_THAT(column("clicks.item").rows, ElementsAre(11, 12, 13));
  EXPECT_THAT(column("clicks.category").rows, ElementsAre(5, 1, 6));
  EXPECT_THAT(column("clicks.rating").values, ElementsAre(0.5f, 1, 1.5f));
  EXPECT_THAT(column("clicks.age").rows, ElementsAre(5, 4, 2));
  EXPECT_THAT(column("buys.item").rows, ElementsAre(12));
  EXPECT_THAT(notes_.unknown_columns, IsEmpty());
}

TEST_F(EncoderTest, NumericIsComputedInDouble) {
  shop_.feature("age").mutable_numeric()->set_mean(0.1);
  shop_.feature("age").mutable_numeric()->set_stddev(0.3);
  FindColumn(*request_.mutable_user(), "age").mutable_floats()->set_values(0, 0.7f);
  Encode(request_);
  EXPECT_THAT(column("age").values, ElementsAre(static_cast<float>((double{0.7f} - 0.1) / 0.3)));
}

TEST_F(EncoderTest, NumericTakesInts) {
  v1::Column& age = FindColumn(*request_.mutable_user(), "age");
  age.mutable_ints()->add_values(24);
  Encode(request_);
  EXPECT_THAT(column("age").values, ElementsAre(-2));
}

TEST_F(EncoderTest, ReusedBatchHoldsOnlyTheLastRequest) {
  const auto encoder = shop_.CreateEncoder();
  ASSERT_TRUE(encoder.ok()) << encoder.status();
  v1::ScoreRequest other = request_;
  other.clear_sequences();
  other.clear_candidates();
  other.add_user()->set_feature("unknown");
  other.mutable_user(1)->mutable_ints()->add_values(1);
  FeatureBatch fresh;
  EncodeNotes fresh_notes;
  ASSERT_TRUE((*encoder)->Encode(request_, fresh, fresh_notes).ok());

  ASSERT_TRUE((*encoder)->Encode(request_, batch_, notes_).ok());
  ASSERT_TRUE((*encoder)->Encode(other, batch_, notes_).ok());
  ASSERT_TRUE((*encoder)->Encode(request_, batch_, notes_).ok());
  EXPECT_EQ(batch_.candidates, fresh.candidates);
  EXPECT_EQ(batch_.sequence_lengths, fresh.sequence_lengths);
  for (size_t i = 0; i < fresh.columns.size(); ++i) {
    EXPECT_EQ(batch_.columns[i].rows, fresh.columns[i].rows) << i;
    EXPECT_EQ(batch_.columns[i].offsets, fresh.columns[i].offsets) << i;
    EXPECT_EQ(batch_.columns[i].values, fresh.columns[i].values) << i;
  }
  EXPECT_EQ(notes_.candidate_flags, fresh_notes.candidate_flags);
  EXPECT_EQ(notes_.oov_ids, fresh_notes.oov_ids);
  EXPECT_EQ(notes_.unknown_columns, fresh_notes.unknown_columns);
}

// --- Policies
// -------------------------------------------------------------------------------------------------

TEST_F(EncoderTest, UnknownAndNegativeIdsTakeTheirPolicyRows) {
  candidate("item").mutable_ints()->set_values(1, 100);
  candidate("item").mutable_ints()->set_values(2, -7);
  v1::Column& price = *request_.add_candidates();
  price.set_feature("price");
  for (const float value : {1.0f, 2.0f, 3.0f}) price.mutable_floats()->add_values(value);
  v1::Column& category = *request_.add_candidates();
  category.set_feature("category");
  for (const int64_t value : {2, 3, 4}) category.mutable_ints()->add_values(value);
  Encode(request_);
  EXPECT_THAT(column("item").rows, ElementsAre(11, 1, 0));
  EXPECT_EQ(oov("item"), 2);
  EXPECT_THAT(notes_.candidate_flags, ElementsAre(0, v1::OUT_OF_VOCABULARY, v1::OUT_OF_VOCABULARY));
}

TEST_F(EncoderTest, OutOfVocabularyIdsAreCountedWhereverTheyCome) {
  candidate("tags").mutable_strings()->set_values(0, "pink");
  candidate("tags").mutable_strings()->set_values(1, "mauve");
  click("item").mutable_ints()->set_values(3, 5000);
  shop_.feature("segment").mutable_id()->set_unknown(v1::PAD_ROW);
  shop_.feature("segment").mutable_id()->set_pad_row(4);
  FindColumn(*request_.mutable_context(), "segment").mutable_strings()->set_values(0, "strange");
  Encode(request_);
  EXPECT_THAT(column("tags").rows, ElementsAre(1, 1, 2));
  EXPECT_THAT(column("segment").rows, ElementsAre(4));
  EXPECT_EQ(oov("tags"), 2);
  EXPECT_EQ(oov("clicks.item"), 1);
  EXPECT_EQ(oov("segment"), 1);
  EXPECT_EQ(oov("category"), 1);  // item 12 of the catalog has category 77
  EXPECT_EQ(oov("item"), 0);
  // Users' and behaviors' ids flag no candidate.
  EXPECT_THAT(notes_.candidate_flags, ElementsAre(v1::OUT_OF_VOCABULARY, v1::OUT_OF_VOCABULARY, 0));
}

TEST_F(EncoderTest, MissingColumnsTakeTheMissingValue) {
  RemoveColumn(*request_.mutable_candidates(), "tags");
  RemoveColumn(*request_.mutable_candidates(), "picture");
  RemoveColumn(*request_.mutable_sequences(0)->mutable_columns(), "rating");
  Encode(request_);
  EXPECT_THAT(column("tags").rows, IsEmpty());
  EXPECT_THAT(column("tags").offsets, ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(column("picture").values, ElementsAre(0.5f, 0.5f, 0.5f, 0.5f, 0.5f, 0.5f));
  EXPECT_THAT(column("clicks.rating").values, ElementsAre(1, 1, 1));

  shop_.feature("tags").set_missing_id(v1::OOV_ROW);
  Encode(request_);
  EXPECT_THAT(column("tags").rows, ElementsAre(1, 1, 1));
  EXPECT_THAT(column("tags").offsets, ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(oov("tags"), 0);
}

TEST_F(EncoderTest, RowsOfLengthZeroAreMissing) {
  *FindColumn(*request_.mutable_sequences(0)->mutable_columns(), "rating").mutable_lengths() =
      Parse<v1::Column>("lengths: [ 1, 0, 1, 0 ]").lengths();
  click("rating").mutable_floats()->mutable_values()->Truncate(2);
  *request_.add_candidates() =
      Parse<v1::Column>("feature: 'category' ints { values: [ 3, 4 ] } lengths: [ 1, 0, 1 ]");
  candidate("picture") =
      Parse<v1::Column>("feature: 'picture' floats { values: [ 1, 2, 3, 4 ] } lengths: [ 2, 0, 2 ]");
  Encode(request_);
  EXPECT_THAT(column("clicks.rating").values, ElementsAre(1, 0.5f, 1));
  EXPECT_THAT(column("category").rows, ElementsAre(3, 1, 4));
  EXPECT_THAT(column("picture").values, ElementsAre(1, 2, 0.5f, 0.5f, 3, 4));
  EXPECT_EQ(oov("category"), 0);
  EXPECT_THAT(notes_.candidate_flags, ElementsAre(0, 0, 0));
}

TEST_F(EncoderTest, VectorsOfCandidatesNeedNoLengths) {
  candidate("picture").clear_lengths();
  Encode(request_);
  EXPECT_THAT(column("picture").values, ElementsAre(1, 2, 3, 4, 5, 6));
}

TEST_F(EncoderTest, UnknownColumnsAreNamedOnce) {
  for (auto* columns : {request_.mutable_user(), request_.mutable_context(), request_.mutable_candidates()}) {
    columns->Add()->CopyFrom(Parse<v1::Column>("feature: 'weather' ints { values: [ 1, 2, 3 ] }"));
  }
  // User and context columns are one place; three values there are a vector.
  RemoveColumn(*request_.mutable_context(), "weather");
  request_.add_candidates()->CopyFrom(Parse<v1::Column>("feature: 'age' floats { values: [ 1, 2, 3 ] }"));
  request_.mutable_sequences(0)->add_columns()->CopyFrom(
      Parse<v1::Column>("feature: 'dwell' floats { values: [ 1, 2, 3, 4 ] }"));
  request_.mutable_sequences(1)->add_columns()->CopyFrom(
      Parse<v1::Column>("feature: 'dwell' floats { values: 1 }"));
  Encode(request_);
  EXPECT_THAT(notes_.unknown_columns, ElementsAre("age", "buys.dwell", "clicks.dwell", "weather"));
}

// --- Catalog
// --------------------------------------------------------------------------------------------------

TEST_F(EncoderTest, InlineColumnsWinOverTheCatalog) {
  request_.add_candidates()->CopyFrom(Parse<v1::Column>("feature: 'category' ints { values: [ 2, 3, 4 ] }"));
  request_.mutable_sequences(0)->add_columns()->CopyFrom(
      Parse<v1::Column>("feature: 'category' ints { values: [ 7, 8, 9, 2 ] }"));
  Encode(request_);
  EXPECT_THAT(column("category").rows, ElementsAre(2, 3, 4));
  EXPECT_THAT(column("price").values, ElementsAre(0, 1, -0.5f));
  EXPECT_THAT(column("clicks.category").rows, ElementsAre(8, 9, 2));
  EXPECT_THAT(notes_.candidate_flags, ElementsAre(0, 0, 0));
}

TEST_F(EncoderTest, NewItemWithInlineSideFeaturesIsNotUnknown) {
  candidate("item").mutable_ints()->set_values(1, 50);  // in the vocabulary, in no catalog
  request_.add_candidates()->CopyFrom(Parse<v1::Column>("feature: 'category' ints { values: [ 2, 3, 4 ] }"));
  request_.add_candidates()->CopyFrom(Parse<v1::Column>("feature: 'price' floats { values: [ 6, 2, 18 ] }"));
  Encode(request_);
  EXPECT_THAT(column("item").rows, ElementsAre(11, 50, 13));
  EXPECT_THAT(column("category").rows, ElementsAre(2, 3, 4));
  EXPECT_THAT(column("price").values, ElementsAre(-1, -2, 2));
  EXPECT_THAT(notes_.candidate_flags, ElementsAre(0, 0, 0));
}

TEST_F(EncoderTest, UnknownItemTakesTheMissingValueAndIsFlagged) {
  candidate("item").mutable_ints()->set_values(1, 50);
  request_.add_candidates()->CopyFrom(Parse<v1::Column>("feature: 'price' floats { values: [ 6, 2, 18 ] }"));
  Encode(request_);
  EXPECT_THAT(column("category").rows, ElementsAre(5, 1, 6));
  EXPECT_THAT(notes_.candidate_flags, ElementsAre(0, v1::UNKNOWN_ITEM, 0));
  EXPECT_EQ(oov("category"), 0);
}

TEST_F(EncoderTest, CatalogOfTextItems) {
  for (const char* name : {"item", "clicks.item", "buys.item"}) {
    *shop_.feature(name).mutable_id() = Parse<v1::IdFeature>(
        "type: STRING bag: SINGLE file { path: 'items.txt' first_row: 2 } oov_row: 1 unknown: OOV_ROW");
  }
  shop_.files["items.txt"] = "a\nb\n";
  shop_.files["catalog.json"] = R"({"columns": [
      {"feature": "category", "ints": {"values": ["4", "5"]}}, {"feature": "item", "strings": {"values": ["b", "c"]}},
      {"feature": "price", "floats": {"values": [2, 6]}}]})";
  candidate("item") = Parse<v1::Column>("feature: 'item' strings { values: [ 'c', 'b', 'c' ] }");
  request_.clear_sequences();
  request_.add_sequences()->CopyFrom(Parse<v1::SequenceData>(R"pb(
    sequence: "clicks"
    event_time_ms: 1
    columns {
      feature: "item"
      strings { values: "b" }
    })pb"));
  Encode(request_);
  EXPECT_THAT(column("item").rows, ElementsAre(1, 3, 1));
  EXPECT_THAT(column("category").rows, ElementsAre(5, 4, 5));
  EXPECT_THAT(column("clicks.category").rows, ElementsAre(4));
  EXPECT_THAT(notes_.candidate_flags, ElementsAre(v1::OUT_OF_VOCABULARY, 0, v1::OUT_OF_VOCABULARY));
}

// --- Sizes
// ----------------------------------------------------------------------------------------------------

TEST_F(EncoderTest, NoCandidatesIsFine) {
  request_.clear_candidates();
  Encode(request_);
  EXPECT_EQ(batch_.candidates, 0);
  EXPECT_THAT(column("item").rows, IsEmpty());
  EXPECT_THAT(column("tags").offsets, ElementsAre(0));
  EXPECT_THAT(notes_.candidate_flags, IsEmpty());
  EXPECT_THAT(column("clicks.item").rows, ElementsAre(11, 12, 13));

  request_.add_candidates()->CopyFrom(Parse<v1::Column>("feature: 'item' ints {}"));
  request_.add_candidates()->CopyFrom(Parse<v1::Column>("feature: 'tags' strings {}"));
  Encode(request_);
  EXPECT_EQ(batch_.candidates, 0);
}

TEST_F(EncoderTest, CountsCandidatesUpToTheMaximum) {
  shop_.options.max_candidates = 3;
  const auto encoder = shop_.CreateEncoder();
  ASSERT_TRUE(encoder.ok()) << encoder.status();
  EXPECT_EQ(*(*encoder)->CountCandidates(request_), 3);
  EXPECT_EQ(*(*encoder)->CountCandidates(v1::ScoreRequest()), 0);
  EXPECT_TRUE((*encoder)->Encode(request_, batch_, notes_).ok());
  request_.clear_candidates();
  request_.add_candidates()->CopyFrom(Parse<v1::Column>("feature: 'item' ints { values: [ 1, 2, 3, 4 ] }"));
  const auto count = (*encoder)->CountCandidates(request_);
  EXPECT_EQ(count.status(), absl::InvalidArgumentError("candidates: expected at most 3, got 4"));
  EXPECT_EQ((*encoder)->Encode(request_, batch_, notes_), count.status());
}

TEST_F(EncoderTest, HistoriesOfAllLengthsAreCutAsTheManifestSays) {
  for (const bool newest : {true, false}) {
    shop_.manifest.mutable_sequences(0)->set_keep(newest ? v1::Sequence::NEWEST : v1::Sequence::OLDEST);
    for (const int behaviors : {0, 1, 2, 3, 4, 50}) {
      request_.clear_sequences();
      v1::SequenceData& clicks = *request_.add_sequences();
      clicks.set_sequence("clicks");
      v1::Column& items = *clicks.add_columns();
      items.set_feature("item");
      items.mutable_ints();
      for (int i = 0; i < behaviors; ++i) {
        clicks.add_event_time_ms(1900);
        items.mutable_ints()->add_values(20 + i);
      }
      Encode(request_);
      const int kept = std::min(behaviors, 3);
      const int first = newest ? behaviors - kept : 0;
      std::vector<int32_t> expected;
      for (int i = 0; i < kept; ++i) expected.push_back(20 + first + i);
      EXPECT_THAT(batch_.sequence_lengths, ElementsAre(kept, 0)) << behaviors;
      EXPECT_THAT(batch_.full_lengths, ElementsAre(kept, 0)) << behaviors;
      EXPECT_EQ(column("clicks.item").rows, expected);
      EXPECT_EQ(column("clicks.age").rows, std::vector<int32_t>(kept, 4));
      EXPECT_THAT(column("buys.item").rows, IsEmpty());
    }
  }
}

TEST_F(EncoderTest, WhatIsCutIsNotRead) {
  click("item").mutable_ints()->set_values(0, -1);
  click("rating").mutable_floats()->set_values(0, std::numeric_limits<float>::quiet_NaN());
  Encode(request_);
  EXPECT_EQ(oov("clicks.item"), 0);
  EXPECT_THAT(column("clicks.rating").values, ElementsAre(0.5f, 1, 1.5f));
}

TEST_F(EncoderTest, BagsOfSequencesAreCutByRow) {
  v1::Feature& feature = *shop_.manifest.add_features();
  feature = shop_.feature("tags");
  feature.set_name("clicks.tags");
  feature.set_level(v1::SEQUENCE);
  feature.set_sequence("clicks");
  request_.mutable_sequences(0)->add_columns()->CopyFrom(Parse<v1::Column>(
      "feature: 'tags' strings { values: [ 'red', 'blue', 'green', 'blue' ] } lengths: [ 1, 2, 0, 1 ]"));
  Encode(request_);
  EXPECT_THAT(column("clicks.tags").rows, ElementsAre(4, 3, 4));
  EXPECT_THAT(column("clicks.tags").offsets, ElementsAre(0, 2, 2, 3));
}

TEST_F(EncoderTest, TimeBucketsBeginAtTheirBoundary) {
  request_.clear_sequences();
  request_.add_sequences()->CopyFrom(Parse<v1::SequenceData>(R"pb(
    sequence: "clicks"
    event_time_ms: [ 999, 1000, 1001 ]
    columns {
      feature: "item"
      ints { values: [ 11, 11, 11 ] }
    })pb"));
  Encode(request_);
  EXPECT_THAT(column("clicks.age").rows, ElementsAre(5, 5, 4));
  request_.set_request_time_ms(1011);
  Encode(request_);
  EXPECT_THAT(column("clicks.age").rows, ElementsAre(3, 3, 3));
  request_.set_request_time_ms(1010);
  Encode(request_);
  EXPECT_THAT(column("clicks.age").rows, ElementsAre(3, 3, 2));
}

TEST_F(EncoderTest, TimesMayBeLeftOutWhereNothingReadsThem) {
  request_.mutable_sequences(1)->clear_event_time_ms();
  Encode(request_);
  EXPECT_THAT(column("buys.item").rows, ElementsAre(12));
}

// A column of times alone is a history too.
TEST_F(EncoderTest, TimesAloneGiveTheLength) {
  request_.mutable_sequences(0)->clear_columns();
  const int last = shop_.manifest.features_size();
  for (int i = last - 1; i >= 0; --i) {
    const v1::Feature& feature = shop_.manifest.features(i);
    if (feature.sequence() == "clicks" && !feature.has_time_since()) {
      shop_.manifest.mutable_features()->DeleteSubrange(i, 1);
    }
  }
  Encode(request_);
  EXPECT_THAT(batch_.sequence_lengths, ElementsAre(3, 1));
  EXPECT_THAT(column("clicks.age").rows, ElementsAre(5, 4, 2));
}

}  // namespace
}  // namespace dinghy
