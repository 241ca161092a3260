// Explanations: the behaviors that drew attention, and what the score is without them.
#include "server/explain.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/server/scorer_fixture.h"
#include "tests/testing/test_bundle.h"

namespace dinghy {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

using ExplainTest = ScorerFixture;

TEST_F(ExplainTest, RemovalIsTheChangeThatARequestWithoutTheBehaviorShows) {
  v1::ScoreRequest request = MakeTestRequest({.candidates = 4, .behaviors = kTestMaxLength + 3});
  request.mutable_explain()->set_top_k(3);
  request.mutable_explain()->set_removal(true);
  request.mutable_explain()->add_candidates(1);
  request.mutable_explain()->add_candidates(3);
  v1::ScoreLog log;
  const v1::ScoreResponse response = MustScore(request, nullptr, &log);
  ASSERT_THAT(response.explanations(), SizeIs(2));
  EXPECT_EQ(response.explanations(0).candidate(), 1);
  EXPECT_EQ(response.explanations(1).candidate(), 3);
  for (const v1::Explanation& explanation : response.explanations()) {
    EXPECT_EQ(explanation.layer(), "interest");
    EXPECT_EQ(explanation.sequence(), "clicks");
    ASSERT_THAT(explanation.behaviors(), SizeIs(3));
    float last = std::numeric_limits<float>::infinity();
    for (const v1::BehaviorAttention& behavior : explanation.behaviors()) {
      EXPECT_LE(std::abs(behavior.weight()), last);
      last = std::abs(behavior.weight());
      const v1::SequenceData& used = log.request().sequences(0);
      const int index = static_cast<int>(behavior.behavior());
      EXPECT_EQ(behavior.item(), absl::StrCat(used.columns(0).ints().values(index)));
      EXPECT_EQ(behavior.event_time_ms(), used.event_time_ms(index));

      v1::ScoreRequest without = log.request();
      v1::SequenceData& clicks = *without.mutable_sequences(0);
      clicks.mutable_event_time_ms()->erase(clicks.event_time_ms().begin() + index);
      auto& items = *clicks.mutable_columns(0)->mutable_ints()->mutable_values();
      items.erase(items.begin() + index);
      const v1::ScoreResponse changed = MustScore(without);
      const int c = static_cast<int>(explanation.candidate());
      ASSERT_THAT(behavior.score_change(), SizeIs(2));
      for (int o = 0; o < 2; ++o) {
        EXPECT_EQ(behavior.score_change(o), response.outputs(o).scores(c) - changed.outputs(o).scores(c));
      }
      EXPECT_NE(behavior.score_change(0), 0);
    }
  }
}

TEST_F(ExplainTest, EqualWeightsAreExplainedNewerFirst) {
  v1::ScoreRequest request = MakeTestRequest({.candidates = 1, .behaviors = 4});
  v1::SequenceData& clicks = *request.mutable_sequences(0);
  for (int i = 0; i < 4; ++i) {
    clicks.set_event_time_ms(i, kScorerNow - 1000);
    clicks.mutable_columns(0)->mutable_ints()->set_values(i, 9);
  }
  request.mutable_explain()->set_top_k(10);
  const auto response = Scorer(nullptr, {}).Score(*din_, request, state_, nullptr);
  ASSERT_TRUE(response.ok()) << response.status();
  ASSERT_THAT(response->explanations(), SizeIs(1));
  std::vector<uint32_t> order;
  for (const auto& behavior : response->explanations(0).behaviors()) order.push_back(behavior.behavior());
  EXPECT_THAT(order, ElementsAre(3, 2, 1, 0));
}

TEST_F(ExplainTest, TooManyRemovalsAreRefused) {
  v1::ScoreRequest request = MakeTestRequest({.candidates = 2000});
  request.mutable_explain()->set_top_k(6);
  const auto loaded = LoadModel(sasrec_->bundle->directory, {.max_candidates = 5000});
  ASSERT_TRUE(loaded.ok());
  const Scorer scorer(nullptr, {});
  EXPECT_TRUE(scorer.Score(**loaded, request, state_, nullptr).ok());
  request.mutable_explain()->set_removal(true);
  const auto refused = scorer.Score(**loaded, request, state_, nullptr);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.status().message(), HasSubstr("10000"));
}

// A behavior's worth is measured by the score that the whole history takes, not by another one for shorter
// ones.
TEST_F(ExplainTest, RemovalDoesNotChangeWhichScoreAutoTakes) {
  v1::ScoreRequest request = MakeTestRequest({.candidates = 2, .behaviors = 3});
  request.mutable_explain()->set_top_k(3);
  request.mutable_explain()->set_removal(true);
  v1::ScoreRequest shorter = MakeTestRequest({.candidates = 2, .behaviors = 2});
  const Scorer scorer(nullptr, {.now = [] { return absl::FromUnixMillis(kScorerNow); }});
  std::vector<float> changes[2], short_scores[2];
  for (const int max_short : {0, 2}) {
    const std::unique_ptr<LoadedModel> model = LoadChanged(*din_, [&](Bundle& bundle) {
      for (v1::Layer& layer : *bundle.manifest.mutable_layers()) {
        if (!layer.has_target_attention()) continue;
        v1::TargetAttention& attention = *layer.mutable_target_attention();
        v1::AutoScore score;
        score.set_max_short(max_short);
        score.mutable_short_history()->mutable_dot();
        score.mutable_short_history()->set_scale(1);
        *score.mutable_long_history()->mutable_din() = attention.din();
        score.mutable_long_history()->set_scale(1);
        *attention.mutable_auto_() = score;
      }
    });
    ASSERT_NE(model, nullptr);
    const auto response = scorer.Score(*model, request, state_, nullptr);
    ASSERT_TRUE(response.ok()) << response.status();
    for (const v1::Explanation& explanation : response->explanations()) {
      for (const v1::BehaviorAttention& behavior : explanation.behaviors()) {
        changes[max_short / 2].push_back(behavior.score_change(0));
      }
    }
    const auto short_response = scorer.Score(*model, shorter, state_, nullptr);
    ASSERT_TRUE(short_response.ok()) << short_response.status();
    short_scores[max_short / 2] = Scores(*short_response);
  }
  EXPECT_THAT(changes[0], SizeIs(6));
  EXPECT_EQ(changes[0], changes[1]);
  EXPECT_NE(short_scores[0], short_scores[1]);
}

}  // namespace
}  // namespace dinghy
