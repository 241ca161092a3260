// Behaviors that take the pad row of Sequence.skip_pad_of.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "features/encoder.h"
#include "tests/features/encoder_fixture.h"

namespace dinghy {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

using EncoderPadsTest = EncoderTest;

TEST_F(EncoderPadsTest, BehaviorsThatTakeThePadRowAreLeftOutOfAllColumns) {
  shop_.manifest.mutable_sequences(0)->set_skip_pad_of("clicks.item");
  shop_.manifest.mutable_sequences(0)->set_max_length(5);
  v1::Feature& bag = *shop_.manifest.add_features();
  bag = shop_.feature("tags");
  bag.set_name("clicks.tags");
  bag.set_level(v1::SEQUENCE);
  bag.set_sequence("clicks");
  v1::Feature& vector = *shop_.manifest.add_features();
  vector = shop_.feature("picture");
  vector.set_name("clicks.picture");
  vector.set_level(v1::SEQUENCE);
  vector.set_sequence("clicks");
  // The oldest one is cut; 0 is the pad row, -7 takes it by its policy, 5000 the OOV row.
  *request_.mutable_sequences(0) = Parse<v1::SequenceData>(R"pb(
    sequence: "clicks"
    event_time_ms: [ 400, 500, 1000, 1900, 1995, 1999 ]
    columns {
      feature: "item"
      ints { values: [ 12, 0, 11, -7, 5000, 0 ] }
    }
    columns {
      feature: "rating"
      floats { values: [ 1, 2, 3, 4, 5, 6 ] }
    }
    columns {
      feature: "tags"
      strings { values: [ 'red', 'red', 'blue', 'green', 'red', 'blue', 'red' ] }
      lengths: [ 1, 2, 1, 0, 2, 1 ]
    }
    columns {
      feature: "picture"
      floats { values: [ 0, 1, 10, 11, 20, 21, 30, 31, 40, 41, 50, 51 ] }
      lengths: [ 2, 2, 2, 2, 2, 2 ]
    })pb");
  Encode(request_);
  EXPECT_THAT(batch_.sequence_lengths, ElementsAre(2, 1));
  EXPECT_THAT(notes_.used_behaviors, ElementsAre(ElementsAre(2, 4), ElementsAre(0)));
  EXPECT_THAT(column("clicks.item").rows, ElementsAre(11, 1));
  EXPECT_THAT(column("clicks.category").rows, ElementsAre(5, 1));
  EXPECT_THAT(column("clicks.rating").values, ElementsAre(1, 2));
  EXPECT_THAT(column("clicks.age").rows, ElementsAre(5, 2));
  EXPECT_THAT(column("clicks.tags").rows, ElementsAre(3, 2, 4));
  EXPECT_THAT(column("clicks.tags").offsets, ElementsAre(0, 1, 3));
  EXPECT_THAT(column("clicks.picture").values, ElementsAre(20, 21, 40, 41));
  EXPECT_THAT(column("buys.item").rows, ElementsAre(12));
  EXPECT_EQ(oov("clicks.item"), 2);

  // What is left encodes to the same.
  v1::SequenceData used;
  CopyBehaviors(request_.sequences(0), notes_.used_behaviors[0], used);
  *request_.mutable_sequences(0) = used;
  const FeatureBatch before = batch_;
  Encode(request_);
  EXPECT_THAT(batch_.sequence_lengths, ElementsAre(2, 1));
  EXPECT_THAT(notes_.used_behaviors[0], ElementsAre(0, 1));
  for (size_t f = 0; f < batch_.columns.size(); ++f) {
    EXPECT_EQ(batch_.columns[f].rows, before.columns[f].rows);
    EXPECT_EQ(batch_.columns[f].offsets, before.columns[f].offsets);
    EXPECT_EQ(batch_.columns[f].values, before.columns[f].values);
  }
}

TEST_F(EncoderPadsTest, PadRowsStayWhereNothingIsLeftOut) {
  click("item").mutable_ints()->set_values(2, 0);
  Encode(request_);
  EXPECT_THAT(batch_.sequence_lengths, ElementsAre(3, 1));
  EXPECT_THAT(column("clicks.item").rows, ElementsAre(11, 0, 13));
  EXPECT_THAT(notes_.used_behaviors, ElementsAre(ElementsAre(1, 2, 3), ElementsAre(0)));
}

TEST_F(EncoderPadsTest, AHistoryOfPadsIsEmpty) {
  shop_.manifest.mutable_sequences(0)->set_skip_pad_of("clicks.item");
  for (int i = 0; i < 4; ++i) click("item").mutable_ints()->set_values(i, 0);
  Encode(request_);
  EXPECT_THAT(batch_.sequence_lengths, ElementsAre(0, 1));
  EXPECT_THAT(notes_.used_behaviors, ElementsAre(IsEmpty(), ElementsAre(0)));
  for (const char* name : {"clicks.item", "clicks.category", "clicks.age"}) {
    EXPECT_THAT(column(name).rows, IsEmpty()) << name;
  }
  EXPECT_THAT(column("clicks.rating").values, IsEmpty());
}

// The pad row may come from the catalog, and from the oldest behaviors.
TEST_F(EncoderPadsTest, TheFeatureOfThePadRowMayBeASideFeature) {
  v1::Sequence& sequence = *shop_.manifest.mutable_sequences(0);
  sequence.set_skip_pad_of("clicks.category");
  sequence.set_keep(v1::Sequence::OLDEST);
  shop_.feature("clicks.category").mutable_id()->set_pad_row(5);  // the category of item 11
  Encode(request_);
  EXPECT_THAT(notes_.used_behaviors[0], ElementsAre(0, 2));
  EXPECT_THAT(column("clicks.item").rows, ElementsAre(21, 12));
  EXPECT_THAT(column("clicks.rating").values, ElementsAre(0, 1));
}

}  // namespace
}  // namespace dinghy
