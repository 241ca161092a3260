// Behaviors that take the pad row (Sequence.skip_pad_of), on the path of a request: what is scored, reported,
// explained and logged is the history without them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "features/behavior/memory_store.h"
#include "server/scorer.h"
#include "tests/testing/test_bundle.h"

namespace dinghy {
namespace {

using ::testing::ElementsAreArray;
using ::testing::Ge;
using ::testing::SizeIs;

constexpr int kBehaviors = 6;

class LeftOutBehaviorsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto folder = WriteTestBundle(::testing::TempDir() + "left_out_models",
                                        {.self_attention = true, .skip_pads = true});
    ASSERT_TRUE(folder.ok()) << folder.status();
    auto loaded = LoadModel(*folder, {.max_candidates = 100});
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    loaded_ = *std::move(loaded);

    const std::vector<int> pads_before = {1, 0, 2, 0, 0, 1};
    const v1::SequenceData& clicks = plain_.sequences(0);
    v1::SequenceData& padded = *padded_.mutable_sequences(0);
    padded.clear_event_time_ms();
    padded.mutable_columns(0)->mutable_ints()->clear_values();
    for (int i = 0; i < kBehaviors; ++i) {
      for (int pad = 0; pad < pads_before[i]; ++pad) Add(clicks.event_time_ms(i), 0, padded);
      Add(clicks.event_time_ms(i), clicks.columns(0).ints().values(i), padded);
    }
  }

  static void Add(int64_t time, int64_t item, v1::SequenceData& data) {
    data.add_event_time_ms(time);
    data.mutable_columns(0)->mutable_ints()->add_values(item);
  }

  v1::ScoreResponse Score(const v1::ScoreRequest& request, v1::ScoreLog* log = nullptr,
                          const BehaviorReader* store = nullptr) {
    const auto response = Scorer(store, {}).Score(*loaded_, request, state_, log);
    EXPECT_TRUE(response.ok()) << response.status();
    return response.ok() ? *response : v1::ScoreResponse();
  }

  std::unique_ptr<LoadedModel> loaded_;
  v1::ScoreRequest plain_ = MakeTestRequest({.candidates = 5, .behaviors = kBehaviors});
  v1::ScoreRequest padded_ = plain_;  // the same with clicks on the pad row between
  WorkerState state_;
};

void ExpectSameScores(const v1::ScoreResponse& got, const v1::ScoreResponse& expected) {
  ASSERT_EQ(got.outputs_size(), expected.outputs_size());
  for (int o = 0; o < got.outputs_size(); ++o) {
    EXPECT_THAT(got.outputs(o).scores(), ElementsAreArray(expected.outputs(o).scores()));
  }
}

TEST_F(LeftOutBehaviorsTest, ScoresAreThoseOfTheHistoryWithoutThem) {
  const v1::ScoreResponse response = Score(padded_);
  ExpectSameScores(response, Score(plain_));
  EXPECT_EQ(response.history(0).length(), static_cast<uint32_t>(kBehaviors));
}

TEST_F(LeftOutBehaviorsTest, TheLogHoldsWhatWasUsedAndScoresToTheSameBits) {
  v1::ScoreLog log;
  const v1::ScoreResponse response = Score(padded_, &log);
  const v1::SequenceData& used = log.request().sequences(0);
  EXPECT_THAT(used.event_time_ms(), ElementsAreArray(plain_.sequences(0).event_time_ms()));
  EXPECT_THAT(used.columns(0).ints().values(),
              ElementsAreArray(plain_.sequences(0).columns(0).ints().values()));
  v1::ScoreLog again;
  const v1::ScoreResponse replayed = Score(log.request(), &again);
  ExpectSameScores(replayed, response);
  EXPECT_EQ(replayed.history(0).length(), response.history(0).length());
  EXPECT_EQ(again.request().SerializeAsString(), log.request().SerializeAsString());
}

TEST_F(LeftOutBehaviorsTest, EventsOfTheStoreAreLeftOutToo) {
  const auto store = NewMemoryStore();
  const v1::SequenceData& clicks = padded_.sequences(0);
  for (int i = 0; i < clicks.event_time_ms_size(); ++i) {
    v1::Event event;
    event.set_user_id(padded_.user_id());
    event.set_event_time_ms(clicks.event_time_ms(i));
    event.set_event_id(static_cast<uint64_t>(i));
    event.set_item_id(clicks.columns(0).ints().values(i));
    event.set_action("click");
    ASSERT_TRUE(store->Append({&event, 1}).ok());
  }
  v1::ScoreRequest request = padded_;
  request.clear_sequences();
  const v1::ScoreResponse response = Score(request, nullptr, store.get());
  ExpectSameScores(response, Score(plain_));
  EXPECT_EQ(response.history(0).length(), static_cast<uint32_t>(kBehaviors));
}

// Numbers of behaviors count those that are used, and removal removes the one that is named.
TEST_F(LeftOutBehaviorsTest, ExplanationsNumberThoseThatAreUsed) {
  for (v1::ScoreRequest* request : {&plain_, &padded_}) {
    request->mutable_explain()->set_top_k(kBehaviors);
    request->mutable_explain()->set_removal(true);
  }
  const v1::ScoreResponse response = Score(padded_);
  const v1::ScoreResponse expected = Score(plain_);
  ASSERT_THAT(response.explanations(), SizeIs(5));
  ASSERT_THAT(expected.explanations(), SizeIs(5));
  for (int e = 0; e < 5; ++e) {
    EXPECT_EQ(response.explanations(e).DebugString(), expected.explanations(e).DebugString());
    ASSERT_THAT(response.explanations(e).behaviors(), SizeIs(kBehaviors));
    for (const v1::BehaviorAttention& behavior : response.explanations(e).behaviors()) {
      const v1::SequenceData& used = plain_.sequences(0);
      const int index = static_cast<int>(behavior.behavior());
      EXPECT_EQ(behavior.item(), absl::StrCat(used.columns(0).ints().values(index)));
      EXPECT_EQ(behavior.event_time_ms(), used.event_time_ms(index));
    }
  }
}

TEST_F(LeftOutBehaviorsTest, TruncationComesFirst) {
  v1::SequenceData& clicks = *padded_.mutable_sequences(0);
  const int64_t last = clicks.event_time_ms(clicks.event_time_ms_size() - 1);
  ASSERT_THAT(clicks.event_time_ms_size(), Ge(kTestMaxLength));
  for (int i = 0; i < kTestMaxLength - 1; ++i) Add(last, 0, clicks);
  const v1::ScoreResponse response = Score(padded_);
  EXPECT_EQ(response.history(0).length(), 1u);
  v1::SequenceData& only = *plain_.mutable_sequences(0);
  only.mutable_event_time_ms()->erase(only.event_time_ms().begin(), only.event_time_ms().end() - 1);
  auto& items = *only.mutable_columns(0)->mutable_ints()->mutable_values();
  items.erase(items.begin(), items.end() - 1);
  ExpectSameScores(response, Score(plain_));
}

TEST_F(LeftOutBehaviorsTest, NothingButPadsIsAnEmptyHistory) {
  v1::SequenceData& clicks = *padded_.mutable_sequences(0);
  for (int64_t& item : *clicks.mutable_columns(0)->mutable_ints()->mutable_values()) item = 0;
  padded_.mutable_explain()->set_top_k(3);
  v1::ScoreLog log;
  const v1::ScoreResponse response = Score(padded_, &log);
  EXPECT_EQ(response.history(0).length(), 0u);
  v1::SequenceData& empty = *plain_.mutable_sequences(0);
  empty.clear_event_time_ms();
  empty.mutable_columns(0)->mutable_ints()->clear_values();
  ExpectSameScores(response, Score(plain_));
  EXPECT_THAT(log.request().sequences(0).event_time_ms(), SizeIs(0));
  ExpectSameScores(Score(log.request()), response);
}

}  // namespace
}  // namespace dinghy
