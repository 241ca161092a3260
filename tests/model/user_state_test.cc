// Scoring in steps: the user's part once, candidates range by range, on one thread or several, with the bits
// of the whole.
#include "model/user_state.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "model/ops/cpu.h"
#include "tests/model/layers/attention_cases.h"
#include "tests/testing/reference/compare.h"
#include "tests/testing/reference/model_variants.h"

namespace dinghy::reference {
namespace {

constexpr int kCandidates = 83;

using Range = std::pair<int, int>;

const std::vector<std::vector<Range>>& Splits() {
  static const auto* const splits =
      new std::vector<std::vector<Range>>{{{0, 83}},
                                          {{0, 1}, {1, 83}},
                                          {{48, 83}, {0, 16}, {16, 48}},
                                          {{0, 7}, {7, 7}, {7, 40}, {40, 82}, {82, 83}}};
  return *splits;
}

void ExpectSameBits(const std::vector<float>& expected, const std::vector<float>& got,
                    const std::string& what) {
  ASSERT_EQ(got.size(), expected.size()) << what;
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(got[i]), std::bit_cast<uint32_t>(expected[i]))
        << what << "[" << i << "]";
  }
}

void ExpectSame(const ModelOutputs& expected, const ModelOutputs& got) {
  ASSERT_EQ(got.scores.size(), expected.scores.size());
  for (size_t o = 0; o < got.scores.size(); ++o) ExpectSameBits(expected.scores[o], got.scores[o], "scores");
  ASSERT_EQ(got.attention.size(), expected.attention.size());
  for (size_t a = 0; a < got.attention.size(); ++a) {
    EXPECT_EQ(got.attention[a].layer, expected.attention[a].layer);
    EXPECT_EQ(got.attention[a].sequence, expected.attention[a].sequence);
    ExpectSameBits(expected.attention[a].weights, got.attention[a].weights, "attention");
  }
  ASSERT_EQ(got.debug.size(), expected.debug.size());
  for (size_t d = 0; d < got.debug.size(); ++d) {
    EXPECT_EQ(got.debug[d].name, expected.debug[d].name);
    EXPECT_EQ(got.debug[d].rows, expected.debug[d].rows);
    ExpectSameBits(expected.debug[d].values, got.debug[d].values, got.debug[d].name);
  }
}

// The batch without its user and its histories: a kept state must need neither.
FeatureBatch CandidatesAlone(const v1::BundleManifest& manifest, FeatureBatch batch) {
  for (int f = 0; f < manifest.features_size(); ++f) {
    if (manifest.features(f).level() != v1::CANDIDATE) batch.columns[f] = FeatureColumn();
  }
  return batch;
}

// `debug_names` are of user or candidate level.
void ExpectRangesAreTheWhole(const RandomModel& random_model, const std::vector<std::string>& debug_names,
                             int other_length, bool fused = true) {
  const auto created = Model::Create(random_model.manifest, random_model.tensors,
                                     {.fused_kernels = fused, .allow_emulation = true});
  ASSERT_TRUE(created.ok()) << created.status();
  const std::unique_ptr<Model>& model = *created;
  ModelScoreOptions options;
  options.attention = true;
  options.debug_names = debug_names;
  for (const int length : {0, 1, 17, 64}) {
    SCOPED_TRACE(::testing::Message() << "length " << length);
    const FeatureBatch batch =
        RandomBatch(random_model, {.candidates = kCandidates, .lengths = {other_length, length}}, 3);
    ops::Scratch scratch;
    ModelOutputs whole;
    model->Score(batch, options, scratch, whole);
    UserState kept;
    {
      ops::Scratch::Scope scope(scratch);
      kept = model->Keep(model->ScoreUser(batch, options, scratch));
    }
    EXPECT_GT(kept.bytes(), 0u);
    // What the state was computed in is used for something else.
    model->Score(RandomBatch(random_model, {.candidates = 5, .lengths = {length, 3}}, 4), {}, scratch,
                 *std::make_unique<ModelOutputs>());
    const FeatureBatch candidates = CandidatesAlone(random_model.manifest, batch);
    ModelOutputs outputs;
    for (const std::vector<Range>& split : Splits()) {
      for (std::vector<float>& scores : outputs.scores) std::fill(scores.begin(), scores.end(), -1.0f);
      model->StartOutputs(candidates, kept, options, outputs);
      for (const auto& [begin, end] : split) {
        model->ScoreRange(candidates, kept, begin, end, options, scratch, outputs);
      }
      ExpectSame(whole, outputs);
    }
  }
}

class UserStateVariantTest : public ::testing::TestWithParam<Variant> {};

TEST_P(UserStateVariantTest, RangesAreTheWhole) {
  ExpectRangesAreTheWhole(MakeVariant(GetParam(), {}, 1), {"tower", "item", "click"}, 9);
}

TEST_P(UserStateVariantTest, RangesOnSeveralThreads) {
  const RandomModel random_model = MakeVariant(GetParam(), {.width = 64, .attention = {80, 40}}, 1);
  const std::unique_ptr<Model> model = CreateModel(random_model);
  ASSERT_NE(model, nullptr);
  const FeatureBatch batch = RandomBatch(random_model, {.candidates = kCandidates, .lengths = {50, 33}}, 3);
  ModelScoreOptions options;
  options.attention = true;
  ops::Scratch scratch;
  ModelOutputs whole, outputs;
  model->Score(batch, options, scratch, whole);
  // Not kept: the others read it in this thread's scratch.
  ops::Scratch::Scope scope(scratch);
  const UserState user = model->ScoreUser(batch, options, scratch);
  model->StartOutputs(batch, user, options, outputs);
  std::vector<std::thread> threads;
  for (const Range& range : Splits()[2]) {
    threads.emplace_back([&, range] {
      ops::PrepareThread();
      ops::Scratch own;
      model->ScoreRange(batch, user, range.first, range.second, options, own, outputs);
    });
  }
  for (std::thread& thread : threads) thread.join();
  ExpectSame(whole, outputs);
}

INSTANTIATE_TEST_SUITE_P(All, UserStateVariantTest, ::testing::ValuesIn(AllVariants()),
                         [](const auto& info) { return VariantName(info.param); });

class UserStateAttentionTest : public ::testing::TestWithParam<AttentionCase> {};

TEST_P(UserStateAttentionTest, RangesAreTheWhole) {
  for (const bool user_query : {false, true}) {
    SCOPED_TRACE(user_query ? "query of the user" : "query of candidates");
    ExpectRangesAreTheWhole(MakeAttentionModel(GetParam(), user_query), {"interest"}, 4);
  }
}

INSTANTIATE_TEST_SUITE_P(All, UserStateAttentionTest, ::testing::ValuesIn(AttentionCases()),
                         [](const auto& info) { return info.param.name; });

TEST(UserStateTest, RangesAreTheWholeOnEveryPathOfDin) {
  for (const v1::Precision precision : {v1::F32, v1::BF16}) {
    for (const bool fused : {true, false}) {
      SCOPED_TRACE(::testing::Message() << "precision " << precision << ", fused " << fused);
      RandomModel random_model = MakeVariant(Variant::kDin, {.width = 34, .attention = {41, 17}}, 1);
      random_model.manifest.set_precision(precision);
      ExpectRangesAreTheWhole(random_model, {"click"}, 9, fused);
    }
  }
}

TEST(UserStateTest, DebugOfHistoriesBeforeItIsKept) {
  const RandomModel random_model = MakeVariant(Variant::kDinSasrec, {}, 1);
  const std::unique_ptr<Model> model = CreateModel(random_model);
  ASSERT_NE(model, nullptr);
  const FeatureBatch batch = RandomBatch(random_model, {.candidates = 5, .lengths = {7, 3}}, 3);
  ModelScoreOptions options;
  options.debug_names = {"clicks.history", "clicks.item"};
  ops::Scratch scratch;
  ModelOutputs whole, outputs;
  model->Score(batch, options, scratch, whole);
  ops::Scratch::Scope scope(scratch);
  const UserState user = model->ScoreUser(batch, options, scratch);
  model->StartOutputs(batch, user, options, outputs);
  for (const Range& range : {Range{0, 2}, Range{2, 5}}) {
    model->ScoreRange(batch, user, range.first, range.second, options, scratch, outputs);
  }
  EXPECT_EQ(outputs.debug[0].rows, 7);
  ExpectSame(whole, outputs);
}

// Beside the sums of what `inspect` shows.
TEST(UserStateTest, FlopsOfEachStep) {
  const RandomModel random_model = MakeVariant(Variant::kDinSasrec, {}, 1);
  const std::unique_ptr<Model> model = CreateModel(random_model);
  ASSERT_NE(model, nullptr);
  const FeatureBatch batch = RandomBatch(random_model, {.candidates = 5, .lengths = {7, 30}}, 3);
  double user = 0, candidate = 0;
  for (const LayerInfo& layer : model->Layers()) {
    user += layer.flops_user + 30 * layer.flops_behavior + 900 * layer.flops_behavior_pair;
    candidate += layer.flops_candidate + 30 * layer.flops_pair;
  }
  EXPECT_DOUBLE_EQ(model->UserFlops(batch), user);
  EXPECT_DOUBLE_EQ(model->CandidateFlops(batch), candidate);
  EXPECT_GT(user, 0);
  EXPECT_GT(candidate, 0);
}

}  // namespace
}  // namespace dinghy::reference
