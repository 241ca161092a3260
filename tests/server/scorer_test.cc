// The path of a request: histories, degradation, faults, the log record.
#include "server/scorer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <memory>
#include <vector>

#include "features/behavior/memory_store.h"
#include "tests/server/scorer_fixture.h"
#include "tests/testing/test_bundle.h"

namespace dinghy {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

using ScorerTest = ScorerFixture;

// A store that always fails.
class FailingStore : public BehaviorReader {
 public:
  absl::Status Fetch(std::string_view, const v1::HistoryQuery&, EventList&) const override {
    return absl::UnavailableError("disk on fire");
  }
};

// The store's form of the inline history of `request`.
std::unique_ptr<BehaviorStore> StoreWith(const v1::ScoreRequest& request) {
  auto store = NewMemoryStore();
  const v1::SequenceData& clicks = request.sequences(0);
  for (int i = 0; i < clicks.event_time_ms_size(); ++i) {
    v1::Event event;
    event.set_user_id(request.user_id());
    event.set_event_time_ms(clicks.event_time_ms(i));
    event.set_event_id(i);
    event.set_item_id(clicks.columns(0).ints().values(i));
    event.set_action("click");
    EXPECT_TRUE(store->Append({&event, 1}).ok());
  }
  return store;
}

v1::Event Click(const v1::ScoreRequest& request, int64_t time, int64_t item) {
  v1::Event event;
  event.set_user_id(request.user_id());
  event.set_event_time_ms(time);
  event.set_event_id(1000 + item);
  event.set_item_id(item);
  event.set_action("click");
  return event;
}

TEST_F(ScorerTest, HistoryFromTheStoreScoresLikeTheSameHistoryInline) {
  const v1::ScoreRequest inline_request = MakeTestRequest({.candidates = 5, .behaviors = 7});
  const auto store = StoreWith(inline_request);
  v1::ScoreRequest request = inline_request;
  request.clear_sequences();
  const v1::ScoreResponse fetched = MustScore(request, store.get());
  const v1::ScoreResponse sent = MustScore(inline_request);
  EXPECT_EQ(Scores(fetched), Scores(sent));
  EXPECT_EQ(Scores(fetched, 1), Scores(sent, 1));
  ASSERT_THAT(fetched.history(), SizeIs(1));
  EXPECT_EQ(fetched.history(0).length(), 7);
  EXPECT_EQ(fetched.history(0).source(), v1::STORE);
  EXPECT_EQ(sent.history(0).source(), v1::INLINE);
  EXPECT_THAT(fetched.degradations(), IsEmpty());
  EXPECT_EQ(fetched.model(), "shop");
  EXPECT_EQ(fetched.version(), 2);
  EXPECT_EQ(fetched.bundle_digest(), sasrec_->bundle->digest);
  EXPECT_EQ(fetched.numerics_id(), sasrec_->model->numerics_id());
  EXPECT_EQ(fetched.request_id(), request.request_id());
}

TEST_F(ScorerTest, InlineHistoryReplacesTheStore) {
  const v1::ScoreRequest request = MakeTestRequest({.behaviors = 4});
  const auto store = StoreWith(MakeTestRequest({.behaviors = 9}));
  EXPECT_EQ(Scores(MustScore(request, store.get())), Scores(MustScore(request)));
}

TEST_F(ScorerTest, EventsAtTheRequestTimeAreNotHistory) {
  v1::ScoreRequest request = MakeTestRequest({.behaviors = 3});
  const auto store = StoreWith(request);
  request.clear_sequences();
  const std::vector<float> before = Scores(MustScore(request, store.get()));
  const v1::Event at = Click(request, kScorerNow, 7);
  ASSERT_TRUE(store->Append({&at, 1}).ok());
  EXPECT_EQ(Scores(MustScore(request, store.get())), before);
  const v1::Event just_before = Click(request, kScorerNow - 1, 8);
  ASSERT_TRUE(store->Append({&just_before, 1}).ok());
  EXPECT_NE(Scores(MustScore(request, store.get())), before);
}

TEST_F(ScorerTest, TheClockFillsTheRequestTime) {
  v1::ScoreRequest request = MakeTestRequest({});
  const std::vector<float> expected = Scores(MustScore(request));
  request.clear_request_time_ms();
  v1::ScoreLog log;
  EXPECT_EQ(Scores(MustScore(request, nullptr, &log)), expected);
  EXPECT_EQ(log.request().request_time_ms(), kScorerNow);
  EXPECT_EQ(log.received_time_ms(), kScorerNow);
}

TEST_F(ScorerTest, WithoutStoreOrWithAFailingOneTheHistoryIsEmptyAndFlagged) {
  v1::ScoreRequest request = MakeTestRequest({});
  v1::ScoreRequest empty = request;
  empty.mutable_sequences(0)->clear_event_time_ms();
  empty.mutable_sequences(0)->clear_columns();
  const std::vector<float> expected = Scores(MustScore(empty));
  EXPECT_NE(expected, Scores(MustScore(request)));
  request.clear_sequences();
  const FailingStore failing;
  for (const BehaviorReader* store :
       {static_cast<const BehaviorReader*>(nullptr), static_cast<const BehaviorReader*>(&failing)}) {
    v1::ScoreLog log;
    const v1::ScoreResponse response = MustScore(request, store, &log);
    EXPECT_EQ(Scores(response), expected);
    EXPECT_THAT(response.degradations(), ElementsAre(v1::HISTORY_UNAVAILABLE));
    EXPECT_THAT(log.degradations(), ElementsAre(v1::HISTORY_UNAVAILABLE));
    ASSERT_THAT(response.warnings(), SizeIs(1));
    EXPECT_THAT(response.warnings(0), HasSubstr("sequence \"clicks\""));
    EXPECT_THAT(response.warnings(0), HasSubstr(store == nullptr ? "no behavior store" : "disk on fire"));
    EXPECT_EQ(response.history(0).length(), 0);
    EXPECT_EQ(Scores(MustScore(log.request())), expected);  // a degraded request replays, too
  }
}

TEST_F(ScorerTest, AnEventThatDoesNotFitTheModelDegrades) {
  v1::ScoreRequest request = MakeTestRequest({});
  const auto store = NewMemoryStore();
  v1::Event event = Click(request, kScorerNow - 5, 3);
  event.set_item_key("a text");
  ASSERT_TRUE(store->Append({&event, 1}).ok());
  request.clear_sequences();
  const v1::ScoreResponse response = MustScore(request, store.get());
  EXPECT_THAT(response.degradations(), ElementsAre(v1::HISTORY_UNAVAILABLE));
}

TEST_F(ScorerTest, AnUnknownUserHasAnEmptyHistoryWithoutDegradation) {
  v1::ScoreRequest request = MakeTestRequest({});
  request.clear_sequences();
  const auto store = NewMemoryStore();
  const v1::ScoreResponse response = MustScore(request, store.get());
  EXPECT_THAT(response.degradations(), IsEmpty());
  EXPECT_EQ(response.history(0).length(), 0);
}

TEST_F(ScorerTest, TruncatesToTheNewestAndLogsWhatWasUsed) {
  const v1::ScoreRequest request = MakeTestRequest({.behaviors = kTestMaxLength + 5});
  v1::ScoreLog log;
  const v1::ScoreResponse response = MustScore(request, nullptr, &log);
  EXPECT_EQ(response.history(0).length(), kTestMaxLength);
  const v1::SequenceData& used = log.request().sequences(0);
  ASSERT_THAT(used.event_time_ms(), SizeIs(kTestMaxLength));
  EXPECT_EQ(used.event_time_ms(0), request.sequences(0).event_time_ms(5));
  EXPECT_THAT(used.columns(0).ints().values(), SizeIs(kTestMaxLength));
  EXPECT_EQ(Scores(MustScore(log.request())), Scores(response));
}

TEST_F(ScorerTest, ALogScoresToTheSameBits) {
  v1::ScoreRequest request = MakeTestRequest({.candidates = 17, .behaviors = 9});
  const auto store = StoreWith(request);
  request.clear_sequences();
  request.mutable_explain()->set_top_k(2);
  (*request.mutable_tags())["page"] = "home";
  v1::ScoreLog log;
  const v1::ScoreResponse response = MustScore(request, store.get(), &log);
  v1::ScoreLog read;
  ASSERT_TRUE(read.ParseFromString(log.SerializeAsString()));
  EXPECT_EQ(read.request().version(), 2);
  EXPECT_EQ(read.request().tags().at("page"), "home");
  EXPECT_FALSE(read.request().has_explain());
  EXPECT_EQ(read.request().sequences(0).source(), v1::STORE);
  EXPECT_EQ(read.bundle_digest(), response.bundle_digest());
  EXPECT_EQ(read.numerics_id(), response.numerics_id());
  EXPECT_THAT(read.timings(), SizeIs(4));
  const v1::ScoreResponse again = MustScore(read.request());
  for (int o = 0; o < 2; ++o) {
    const std::vector<float> logged(read.outputs(o).scores().begin(), read.outputs(o).scores().end());
    EXPECT_EQ(logged, Scores(response, o));
    EXPECT_EQ(Scores(again, o), Scores(response, o));
  }
}

TEST_F(ScorerTest, AScoreDoesNotDependOnTheOtherCandidates) {
  const v1::ScoreRequest request = MakeTestRequest({.candidates = 23, .behaviors = 6});
  const std::vector<float> all = Scores(MustScore(request));
  for (size_t c = 0; c < all.size(); c += 5) {
    v1::ScoreRequest one = request;
    one.mutable_candidates(0)->mutable_ints()->clear_values();
    one.mutable_candidates(0)->mutable_ints()->add_values(
        request.candidates(0).ints().values(static_cast<int>(c)));
    EXPECT_EQ(Scores(MustScore(one)), std::vector<float>{all[c]});
  }
  v1::ScoreRequest reversed = request;
  auto& values = *reversed.mutable_candidates(0)->mutable_ints()->mutable_values();
  std::reverse(values.begin(), values.end());
  std::vector<float> backwards = Scores(MustScore(reversed));
  std::reverse(backwards.begin(), backwards.end());
  EXPECT_EQ(backwards, all);
}

TEST_F(ScorerTest, DebugShowsWhatWasEncodedAndTheLayersValues) {
  v1::ScoreRequest request = MakeTestRequest({.candidates = 3, .behaviors = 2});
  request.mutable_debug()->set_encoded(true);
  request.mutable_debug()->set_timings(true);
  request.mutable_debug()->add_layers("interest");
  const v1::ScoreResponse response = MustScore(request);
  EXPECT_THAT(response.timings(), SizeIs(4));
  ASSERT_THAT(response.debug(), SizeIs(sasrec_->bundle->manifest.features_size() + 1));
  for (const v1::DebugValues& debug : response.debug()) {
    if (debug.name() != "item") continue;
    EXPECT_EQ(debug.rows(), 3);
    EXPECT_EQ(debug.width(), 1);
    EXPECT_THAT(debug.ids(),
                ElementsAre(request.candidates(0).ints().values(0), request.candidates(0).ints().values(1),
                            request.candidates(0).ints().values(2)));
  }
  const v1::DebugValues& layer = response.debug(response.debug_size() - 1);
  EXPECT_EQ(layer.name(), "interest");
  EXPECT_EQ(layer.rows(), 3);
  EXPECT_THAT(layer.values(), SizeIs(3 * layer.width()));
  EXPECT_GT(layer.width(), 0);
}

TEST_F(ScorerTest, OnlyTheOutputsAskedForInTheirOrder) {
  v1::ScoreRequest request = MakeTestRequest({});
  const v1::ScoreResponse both = MustScore(request);
  request.add_outputs("purchase");
  const v1::ScoreResponse one = MustScore(request);
  ASSERT_THAT(one.outputs(), SizeIs(1));
  EXPECT_EQ(one.outputs(0).output(), "purchase");
  EXPECT_EQ(Scores(one), Scores(both, 1));
}

TEST_F(ScorerTest, UnknownItemsAreFlaggedAndKnownOnesAreNot) {
  v1::ScoreRequest request = MakeTestRequest({.candidates = 2});
  EXPECT_THAT(MustScore(request).candidate_flags(), IsEmpty());
  request.mutable_candidates(0)->mutable_ints()->set_values(1, kTestItems + 100);
  const v1::ScoreResponse response = MustScore(request);
  ASSERT_THAT(response.candidate_flags(), SizeIs(2));
  EXPECT_EQ(response.candidate_flags(0), v1::CANDIDATE_FLAG_NONE);
  EXPECT_EQ(response.candidate_flags(1), v1::UNKNOWN_ITEM | v1::OUT_OF_VOCABULARY);
}

TEST_F(ScorerTest, NoCandidatesIsNoError) {
  v1::ScoreRequest request = MakeTestRequest({.candidates = 0});
  request.mutable_explain()->set_top_k(3);
  const v1::ScoreResponse response = MustScore(request);
  ASSERT_THAT(response.outputs(), SizeIs(2));
  EXPECT_THAT(response.outputs(0).scores(), IsEmpty());
}

TEST_F(ScorerTest, UnknownColumnsWarnOrAreRefused) {
  v1::ScoreRequest request = MakeTestRequest({});
  const std::vector<float> expected = Scores(MustScore(request));
  v1::Column& column = *request.add_context();
  column.set_feature("weather");
  column.mutable_strings()->add_values("rain");
  const v1::ScoreResponse response = MustScore(request);
  EXPECT_EQ(Scores(response), expected);
  ASSERT_THAT(response.warnings(), SizeIs(1));
  EXPECT_THAT(response.warnings(0), HasSubstr("weather"));
  const auto strict =
      Scorer(nullptr, {.reject_unknown_features = true}).Score(*sasrec_, request, state_, nullptr);
  EXPECT_EQ(strict.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(strict.status().message(), HasSubstr("\"weather\""));
}

TEST_F(ScorerTest, FaultsNameWhatWasExpectedAndWhatCame) {
  const auto expect = [this](const std::function<void(v1::ScoreRequest&)>& spoil, absl::StatusCode code,
                             const std::vector<std::string>& texts) {
    v1::ScoreRequest request = MakeTestRequest({});
    spoil(request);
    const auto response = Score(request);
    EXPECT_EQ(response.status().code(), code) << response.status();
    for (const std::string& text : texts) EXPECT_THAT(response.status().message(), HasSubstr(text));
  };
  using Request = v1::ScoreRequest;
  const auto invalid = absl::StatusCode::kInvalidArgument;
  expect([](Request& r) { r.set_model("store"); }, absl::StatusCode::kNotFound, {"\"shop\"", "\"store\""});
  expect([](Request& r) { r.add_outputs("tap"); }, invalid, {"outputs", "click, purchase", "\"tap\""});
  expect(
      [](Request& r) {
        r.add_outputs("click");
        r.add_outputs("click");
      },
      invalid, {"outputs", "\"click\"", "twice"});
  expect([](Request& r) { r.mutable_debug()->add_layers("towre"); }, invalid, {"debug.layers", "\"towre\""});
  expect([](Request& r) { r.mutable_explain()->add_candidates(5); }, invalid,
         {"explain.candidates[0]", "below 5", "got 5"});
  expect([](Request& r) { r.set_request_time_ms(-1); }, invalid, {"request_time_ms", "-1"});
  expect(
      [](Request& r) {
        r.clear_sequences();
        r.clear_user_id();
      },
      invalid, {"user_id is empty and sequence \"clicks\" is not inline"});
  expect([](Request& r) { *r.add_sequences() = r.sequences(0); }, invalid, {"clicks"});
  expect([](Request& r) { r.mutable_sequences(0)->set_event_time_ms(2, kScorerNow); }, invalid, {"clicks"});
  expect([](Request& r) { r.mutable_sequences(0)->mutable_columns(0)->mutable_ints()->add_values(1); },
         invalid, {"clicks", "3", "4"});
  expect(
      [](Request& r) {
        v1::Column& category = *r.add_candidates();
        category.set_feature("category");
        category.mutable_ints()->add_values(1);
      },
      invalid, {"category", "5", "1"});
  expect(
      [](Request& r) {
        r.mutable_user(0)->mutable_floats()->set_values(0, std::numeric_limits<float>::quiet_NaN());
      },
      invalid, {"age"});
  expect([](Request& r) { r.mutable_candidates(0)->mutable_strings()->add_values("7"); }, invalid, {"item"});
  expect([](Request& r) { r.mutable_user()->DeleteSubrange(1, 1); }, absl::StatusCode::kOk, {});
  expect(
      [](Request& r) {
        for (int i = 0; i < 100; ++i) r.mutable_candidates(0)->mutable_ints()->add_values(3);
      },
      invalid, {"100", "105"});
}

TEST_F(ScorerTest, AScoreThatIsNotFiniteIsNeverReturned) {
  const std::unique_ptr<LoadedModel> broken = LoadChanged(*din_, [](Bundle& bundle) {
    bundle.tensors.at("tower.1.bias").data[0] = std::numeric_limits<float>::quiet_NaN();
  });
  ASSERT_NE(broken, nullptr);
  v1::ScoreRequest request = MakeTestRequest({});
  const Scorer scorer(nullptr, {});
  const auto response = scorer.Score(*broken, request, state_, nullptr);
  EXPECT_EQ(response.status().code(), absl::StatusCode::kInternal);
  EXPECT_THAT(response.status().message(), HasSubstr("candidate 0"));
  EXPECT_THAT(response.status().message(), HasSubstr("output \""));
}

}  // namespace
}  // namespace dinghy
