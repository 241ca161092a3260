// Histories made from events, and cut.
#include <gmock/gmock.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include "features/encoder.h"
#include "proto/behavior.pb.h"
#include "tests/features/shop_manifest.h"

namespace dinghy {
namespace {

using ::testing::ElementsAre;

void ExpectSame(const v1::SequenceData& data, const std::string& expected) {
  const v1::SequenceData parsed = Parse<v1::SequenceData>(expected);
  EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(data, parsed))
      << data.DebugString() << "\nexpected\n"
      << parsed.DebugString();
}

class FromEventsTest : public ::testing::Test {
 protected:
  FromEventsTest() {
    AddFeature("clicks.action", R"pb(
      table: "segment"
      id {
        type: STRING
        bag: SINGLE
        file { path: "actions.txt" first_row: 1 }
        oov_row: 0
        unknown: OOV_ROW
      })pb");
    shop_.files["actions.txt"] = "click\nlike\n";
    AddFeature("clicks.shop", R"pb(
      table: "item"
      missing_id: PAD_ROW
      id {
        type: INT64
        bag: SINGLE
        identity { rows: 50 }
        pad_row: 60
        oov_row: 61
        unknown: OOV_ROW
        negative: OOV_ROW
      })pb");
    AddFeature("clicks.tags", R"pb(
      table: "tag"
      missing_id: PAD_ROW
      id {
        type: STRING
        bag: BAG_SUM
        file { path: "tags.txt" first_row: 2 }
        oov_row: 1
        unknown: OOV_ROW
      })pb");
    AddFeature("clicks.place", "missing: 0.25 vector { dim: 2 }");
    const v1::Event events[] = {
        Parse<v1::Event>(R"pb(
          user_id: "u"
          event_time_ms: 1000
          item_id: 11
          action: "click"
          values { name: "rating" number: 2.5 }
          values { name: "shop" integer: 7 }
          values { name: "tags" text: "red" }
          values { name: "other" text: "x" }
          values { name: "tags" text: "blue" }
          values { name: "place" number: 1 }
          values { name: "place" number: 2 })pb"),
        Parse<v1::Event>(R"pb(user_id: "u" event_time_ms: 1500 item_id: 12 action: "like")pb"),
        Parse<v1::Event>(R"pb(
          user_id: "u"
          event_time_ms: 1500
          item_id: 300
          action: "share"
          values { name: "rating" integer: 4 }
          values { name: "shop" integer: 70 })pb"),
    };
    events_.Add(std::begin(events), std::end(events));
  }

  void AddFeature(const std::string& name, const std::string& text) {
    *shop_.manifest.add_features() =
        Parse<v1::Feature>("name: '" + name + "' level: SEQUENCE sequence: 'clicks' from: EVENT " + text);
  }
  std::unique_ptr<RequestEncoder> CreateEncoder() {
    auto encoder = shop_.CreateEncoder();
    EXPECT_TRUE(encoder.ok()) << encoder.status();
    return *std::move(encoder);
  }
  FeatureBatch Encode(const RequestEncoder& encoder, const v1::SequenceData& clicks) {
    v1::ScoreRequest request = MakeShopRequest();
    *request.mutable_sequences(0) = clicks;
    FeatureBatch batch;
    EncodeNotes notes;
    const absl::Status status = encoder.Encode(request, batch, notes);
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_THAT(notes.unknown_columns, ElementsAre());
    return batch;
  }
  const FeatureColumn& column(const FeatureBatch& batch, const std::string& name) {
    return batch.columns[shop_.feature_index(name)];
  }
  // Into data that held something else.
  v1::SequenceData FromEvents(const RequestEncoder& encoder, int sequence) {
    v1::SequenceData data = Parse<v1::SequenceData>("event_time_ms: 7 columns { feature: 'other' }");
    const absl::Status status = encoder.FromEvents(sequence, events_, data);
    EXPECT_TRUE(status.ok()) << status;
    return data;
  }
  std::string FromEventsError() {
    v1::SequenceData data;
    const absl::Status status = CreateEncoder()->FromEvents(0, events_, data);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  }

  ShopManifest shop_;
  google::protobuf::RepeatedPtrField<v1::Event> events_;
};

TEST_F(FromEventsTest, HoldsWhatTheModelReadsFromEvents) {
  ExpectSame(FromEvents(*CreateEncoder(), 0), R"pb(
    sequence: "clicks"
    event_time_ms: [ 1000, 1500, 1500 ]
    columns {
      feature: "item"
      ints { values: [ 11, 12, 300 ] }
    }
    columns {
      feature: "rating"
      floats { values: [ 2.5, 4 ] }
      lengths: [ 1, 0, 1 ]
    }
    columns {
      feature: "action"
      strings { values: [ "click", "like", "share" ] }
    }
    columns {
      feature: "shop"
      ints { values: [ 7, 70 ] }
      lengths: [ 1, 0, 1 ]
    }
    columns {
      feature: "tags"
      strings { values: [ "red", "blue" ] }
      lengths: [ 2, 0, 0 ]
    }
    columns {
      feature: "place"
      floats { values: [ 1, 2 ] }
      lengths: [ 2, 0, 0 ]
    })pb");
}

TEST_F(FromEventsTest, EncodesToHandComputedRows) {
  const auto encoder = CreateEncoder();
  const FeatureBatch batch = Encode(*encoder, FromEvents(*encoder, 0));
  EXPECT_THAT(batch.sequence_lengths, ElementsAre(3, 1));
  EXPECT_THAT(column(batch, "clicks.item").rows, ElementsAre(11, 12, 1));
  EXPECT_THAT(column(batch, "clicks.category").rows, ElementsAre(5, 1, 1));
  EXPECT_THAT(column(batch, "clicks.rating").values, ElementsAre(0.75f, 1, 1.5f));
  EXPECT_THAT(column(batch, "clicks.age").rows, ElementsAre(5, 4, 4));
  EXPECT_THAT(column(batch, "clicks.action").rows, ElementsAre(1, 2, 0));
  EXPECT_THAT(column(batch, "clicks.shop").rows, ElementsAre(7, 60, 61));
  EXPECT_THAT(column(batch, "clicks.tags").rows, ElementsAre(2, 4));
  EXPECT_THAT(column(batch, "clicks.tags").offsets, ElementsAre(0, 2, 2, 2));
  EXPECT_THAT(column(batch, "clicks.place").values, ElementsAre(1, 2, 0.25f, 0.25f, 0.25f, 0.25f));
}

// Events that lack every optional value encode as a request without these columns, whatever the missing
// value: 0.1 is no float.
TEST_F(FromEventsTest, MissingValuesAreThoseOfMissingColumns) {
  shop_.feature("clicks.rating").set_missing(0.1);
  shop_.feature("clicks.place").set_missing(0.1);
  for (v1::Event& event : events_) event.clear_values();
  const auto encoder = CreateEncoder();
  const FeatureBatch from_events = Encode(*encoder, FromEvents(*encoder, 0));
  const FeatureBatch from_inline = Encode(*encoder, Parse<v1::SequenceData>(R"pb(
    sequence: "clicks"
    event_time_ms: [ 1000, 1500, 1500 ]
    columns {
      feature: "item"
      ints { values: [ 11, 12, 300 ] }
    }
    columns {
      feature: "action"
      strings { values: [ "click", "like", "share" ] }
    })pb"));
  for (int i = 0; i < shop_.manifest.features_size(); ++i) {
    EXPECT_EQ(from_events.columns[i].rows, from_inline.columns[i].rows) << shop_.manifest.features(i).name();
    EXPECT_EQ(from_events.columns[i].offsets, from_inline.columns[i].offsets);
    EXPECT_EQ(from_events.columns[i].values, from_inline.columns[i].values);
  }
  // The value itself, sent inline.
  const FeatureBatch sent = Encode(*encoder, Parse<v1::SequenceData>(R"pb(
    sequence: "clicks"
    event_time_ms: [ 1000 ]
    columns {
      feature: "item"
      ints { values: 11 }
    }
    columns {
      feature: "action"
      strings { values: "click" }
    }
    columns {
      feature: "rating"
      floats { values: 0.1 }
    })pb"));
  EXPECT_EQ(column(sent, "clicks.rating").values[0], column(from_events, "clicks.rating").values[0]);
}

TEST_F(FromEventsTest, NoEventsGiveAnEmptySequence) {
  const auto encoder = CreateEncoder();
  events_.Clear();
  const v1::SequenceData data = FromEvents(*encoder, 0);
  EXPECT_EQ(data.event_time_ms_size(), 0);
  EXPECT_THAT(Encode(*encoder, data).sequence_lengths, ElementsAre(0, 1));
}

TEST_F(FromEventsTest, OtherSequencesHoldTheirOwnColumnsOnly) {
  events_.DeleteSubrange(1, events_.size() - 1);
  ExpectSame(FromEvents(*CreateEncoder(), 1), R"pb(
    sequence: "buys"
    event_time_ms: 1000
    columns {
      feature: "item"
      ints { values: 11 }
    })pb");
}

TEST_F(FromEventsTest, FaultsNameTheEvent) {
  const google::protobuf::RepeatedPtrField<v1::Event> good = events_;
  events_[1].set_item_key("a");
  EXPECT_EQ(FromEventsError(), "sequence \"clicks\": event 1: expected an integer as its item, got a text");
  events_[1].clear_item();
  EXPECT_EQ(FromEventsError(), "sequence \"clicks\": event 1: expected an integer as its item, got none");

  events_ = good;
  events_[0].mutable_values(0)->set_text("good");
  EXPECT_EQ(FromEventsError(),
            "sequence \"clicks\": feature \"clicks.rating\": event 0: value \"rating\": expected a number, "
            "got a text");
  events_ = good;
  events_[2].mutable_values(1)->set_number(1);
  EXPECT_EQ(FromEventsError(),
            "sequence \"clicks\": feature \"clicks.shop\": event 2: value \"shop\": expected an integer, got "
            "a number");
  events_ = good;
  events_[0].mutable_values(2)->set_integer(1);
  EXPECT_EQ(FromEventsError(),
            "sequence \"clicks\": feature \"clicks.tags\": event 0: value \"tags\": expected a text, got an "
            "integer");
  events_ = good;
  *events_[0].add_values() = events_[0].values(1);
  EXPECT_EQ(FromEventsError(),
            "sequence \"clicks\": feature \"clicks.shop\": event 0: value \"shop\": expected 1, got 2");
  events_ = good;
  events_[0].mutable_values()->RemoveLast();
  EXPECT_EQ(FromEventsError(),
            "sequence \"clicks\": feature \"clicks.place\": event 0: value \"place\": expected 2, got 1");
  events_ = good;
  shop_.feature("clicks.rating").clear_if_missing();
  EXPECT_EQ(
      FromEventsError(),
      "sequence \"clicks\": feature \"clicks.rating\": event 1: value \"rating\": expected 1, got 0, and the "
      "feature has no missing value");
}

// --- CopyBehaviors
// --------------------------------------------------------------------------------------------

constexpr char kHistory[] = R"pb(
  sequence: "clicks"
  source: STORE
  event_time_ms: [ 10, 20, 30, 40 ]
  columns {
    feature: "item"
    ints { values: [ 1, 2, 3, 4 ] }
  }
  columns {
    feature: "tags"
    strings { values: [ "a", "b", "c", "d" ] }
    lengths: [ 2, 0, 1, 1 ]
  }
  columns {
    feature: "rating"
    floats { values: [ 1.5, 2.5, 3.5, 4.5 ] }
  }
)pb";

TEST(CopyBehaviorsTest, KeepsTheNewestOrOldest) {
  v1::SequenceData data = Parse<v1::SequenceData>("sequence: 'old' event_time_ms: 5");
  CopyBehaviors(Parse<v1::SequenceData>(kHistory), {2, 3}, data);
  ExpectSame(data, R"pb(
    sequence: "clicks"
    source: STORE
    event_time_ms: [ 30, 40 ]
    columns {
      feature: "item"
      ints { values: [ 3, 4 ] }
    }
    columns {
      feature: "tags"
      strings { values: [ "c", "d" ] }
      lengths: [ 1, 1 ]
    }
    columns {
      feature: "rating"
      floats { values: [ 3.5, 4.5 ] }
    })pb");
  CopyBehaviors(Parse<v1::SequenceData>(kHistory), {0, 1}, data);
  ExpectSame(data, R"pb(
    sequence: "clicks"
    source: STORE
    event_time_ms: [ 10, 20 ]
    columns {
      feature: "item"
      ints { values: [ 1, 2 ] }
    }
    columns {
      feature: "tags"
      strings { values: [ "a", "b" ] }
      lengths: [ 2, 0 ]
    }
    columns {
      feature: "rating"
      floats { values: [ 1.5, 2.5 ] }
    })pb");
  CopyBehaviors(Parse<v1::SequenceData>(kHistory), {0, 1, 2, 3}, data);
  ExpectSame(data, kHistory);
}

TEST(CopyBehaviorsTest, LeavesOneBehaviorOut) {
  const v1::SequenceData history = Parse<v1::SequenceData>(kHistory);
  v1::SequenceData data;
  CopyBehaviors(history, {1, 2, 3}, data);
  ExpectSame(data, R"pb(
    sequence: "clicks"
    source: STORE
    event_time_ms: [ 20, 30, 40 ]
    columns {
      feature: "item"
      ints { values: [ 2, 3, 4 ] }
    }
    columns {
      feature: "tags"
      strings { values: [ "c", "d" ] }
      lengths: [ 0, 1, 1 ]
    }
    columns {
      feature: "rating"
      floats { values: [ 2.5, 3.5, 4.5 ] }
    })pb");
  CopyBehaviors(history, {0, 1, 3}, data);
  ExpectSame(data, R"pb(
    sequence: "clicks"
    source: STORE
    event_time_ms: [ 10, 20, 40 ]
    columns {
      feature: "item"
      ints { values: [ 1, 2, 4 ] }
    }
    columns {
      feature: "tags"
      strings { values: [ "a", "b", "d" ] }
      lengths: [ 2, 0, 1 ]
    }
    columns {
      feature: "rating"
      floats { values: [ 1.5, 2.5, 4.5 ] }
    })pb");
  CopyBehaviors(history, {0, 1, 2}, data);
  EXPECT_THAT(data.event_time_ms(), ElementsAre(10, 20, 30));
  EXPECT_THAT(data.columns(1).lengths(), ElementsAre(2, 0, 1));
}

TEST(CopyBehaviorsTest, TheLastBehaviorLeavesAnEmptyHistoryOfTheSameTypes) {
  v1::SequenceData data;
  CopyBehaviors(Parse<v1::SequenceData>(
                    "sequence: 'clicks' event_time_ms: 1 columns { feature: 'item' ints { values: 1 } }"),
                {}, data);
  ExpectSame(data, "sequence: 'clicks' columns { feature: 'item' ints {} }");
}

}  // namespace
}  // namespace dinghy
