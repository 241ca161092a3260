// Every kind of target attention against the reference, and the bits of its scores.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "tests/model/layers/attention_cases.h"
#include "tests/testing/reference/compare.h"

namespace dinghy::reference {
namespace {

class AttentionScoresTest : public ::testing::TestWithParam<AttentionCase> {
 protected:
  static void Compare(const RandomModel& random_model, const std::vector<int>& candidates,
                      const std::vector<int>& lengths, double tolerance = 1e-5) {
    const std::unique_ptr<Model> model = CreateModel(random_model);
    ASSERT_NE(model, nullptr);
    for (const int count : candidates) {
      for (const int length : lengths) {
        SCOPED_TRACE(::testing::Message() << count << " candidates, length " << length);
        CompareWithReference(random_model, *model,
                             RandomBatch(random_model, {.candidates = count, .lengths = {3, length}}, 17),
                             tolerance);
      }
    }
  }
};

TEST_P(AttentionScoresTest, AllLengths) {
  Compare(MakeAttentionModel(GetParam()), {3}, {0, 1, 2, 7, 16, 17, 63, 64, 65, kAttentionMaxLength});
}

TEST_P(AttentionScoresTest, AllCandidateCounts) {
  Compare(MakeAttentionModel(GetParam()), {0, 1, 2, 7, 17, 63, 64, 65}, {0, 5, 33});
}

TEST_P(AttentionScoresTest, QueryOfTheUser) {
  Compare(MakeAttentionModel(GetParam(), /*user_query=*/true), {0, 1, 5}, {0, 1, 19});
}

// Scores up to some thousands, and features of linear attention that underflow alone. An error of 1e-7 in
// such a score is one of 1e-4 in a softmax weight.
TEST_P(AttentionScoresTest, LogitsOfThousands) {
  RandomModel random_model = MakeAttentionModel(GetParam());
  for (const char* name : {"query.weight", "keys.weight"}) {
    Tensor& weight = random_model.tensors.find(name)->second;
    for (int64_t i = 0; i < weight.size; ++i) weight.data[i] *= 30;
  }
  Interest(random_model).set_scale(2);
  Compare(random_model, {4}, {1, 3, 40}, 2e-3);
}

TEST_P(AttentionScoresTest, BitsOfAnySubsetInAnyOrder) {
  using Bits = std::vector<uint32_t>;
  constexpr int kCandidates = 70;
  const RandomModel random_model = MakeAttentionModel(GetParam());
  const std::unique_ptr<Model> model = CreateModel(random_model);
  ASSERT_NE(model, nullptr);
  ops::Scratch scratch;
  const auto score = [&](const FeatureBatch& batch) {
    ModelOutputs outputs;
    model->Score(batch, {}, scratch, outputs);
    Bits bits;
    for (const float value : outputs.scores[0]) bits.push_back(std::bit_cast<uint32_t>(value));
    return bits;
  };
  std::mt19937 random(7);
  for (const int length : {1, 16, 37}) {
    const FeatureBatch batch =
        RandomBatch(random_model, {.candidates = kCandidates, .lengths = {2, length}}, 3);
    const Bits all = score(batch);
    std::vector<int> order(kCandidates);
    std::iota(order.begin(), order.end(), 0);
    for (const int count : {1, 2, 3, 15, 16, 17, 64, 65, kCandidates}) {
      std::shuffle(order.begin(), order.end(), random);
      const std::vector<int> some(order.begin(), order.begin() + count);
      ops::Scratch::Scope scope(scratch);
      scratch.Floats(random() % 1000);  // what lies in memory from before must not matter either
      const Bits bits = score(PickCandidates(random_model.manifest, batch, some));
      for (int i = 0; i < count; ++i) {
        ASSERT_EQ(bits[i], all[some[i]])
            << "length " << length << ", candidate " << some[i] << " at place " << i << " of " << count;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, AttentionScoresTest, ::testing::ValuesIn(AttentionCases()),
                         [](const auto& info) { return info.param.name; });

const AttentionCase& Case(const std::string& name) {
  return *std::find_if(AttentionCases().begin(), AttentionCases().end(),
                       [&](const AttentionCase& c) { return c.name == name; });
}

// What was left out of a history to save time does not change the score that is used for it.
TEST(AutoScoreTest, ChoosesByTheFullLength) {
  const RandomModel random_model = MakeAttentionModel(Case("Auto"));
  const std::unique_ptr<Model> model = CreateModel(random_model);
  ASSERT_NE(model, nullptr);
  std::vector<std::vector<float>> scores;
  for (const int full : {9, 16, 17, 70}) {
    FeatureBatch batch = RandomBatch(random_model, {.candidates = 4, .lengths = {3, 9}}, 5);
    batch.full_lengths[1] = full;
    CompareWithReference(random_model, *model, batch);
    ops::Scratch scratch;
    ModelOutputs outputs;
    model->Score(batch, {}, scratch, outputs);
    scores.push_back(outputs.scores[0]);
  }
  EXPECT_EQ(scores[0], scores[1]);
  EXPECT_EQ(scores[2], scores[3]);
  EXPECT_NE(scores[1], scores[2]);
}

// A far mask is as good as none.
TEST(AttentionMaskTest, FarMaskChangesNothing) {
  RandomModel random_model = MakeAttentionModel(Case("MaskFar"));
  const std::unique_ptr<Model> masked = CreateModel(random_model);
  const FeatureBatch batch = RandomBatch(random_model, {.candidates = 4, .lengths = {3, 13}}, 5);
  RandomModel without = MakeAttentionModel(Case("MaskFar"));
  Interest(without).clear_mask();
  const std::unique_ptr<Model> unmasked = CreateModel(without);
  ASSERT_TRUE(masked && unmasked);
  ops::Scratch scratch;
  ModelOutputs a, b;
  masked->Score(batch, {}, scratch, a);
  unmasked->Score(batch, {}, scratch, b);
  for (size_t c = 0; c < 4; ++c) EXPECT_NEAR(a.scores[0][c], b.scores[0][c], 1e-6);
}

TEST(TwoAttentionsTest, SeveralSequences) {
  RandomModel random_model = MakeAttentionModel(Case("MultiHeadDot"));
  random_model.AddId("purchases.item", v1::SEQUENCE, "item");
  v1::TargetAttention& attention = *random_model.AddLayer("bought", {})->mutable_target_attention();
  attention.add_query("item");
  attention.add_keys("purchases.item");
  attention.add_values("purchases.item");
  attention.mutable_dot();
  attention.set_heads(3);
  attention.set_normalization(v1::TargetAttention::SILU_MEAN);
  attention.set_empty(v1::ZEROS);
  attention.set_scale(1);
  *random_model.AddLayer("both", {"bought", "interest"})->mutable_dense() =
      random_model.MakeDense("both", 6 + 42, 1, v1::LINEAR);
  random_model.AddOutput("both", "both", v1::Output::SIGMOID);
  const std::unique_ptr<Model> model = CreateModel(random_model);
  ASSERT_NE(model, nullptr);
  for (const auto& [purchases, clicks] : {std::pair{0, 9}, {7, 0}, {20, 70}, {1, 1}, {0, 0}}) {
    CompareWithReference(random_model, *model,
                         RandomBatch(random_model, {.candidates = 5, .lengths = {purchases, clicks}}, 23));
  }
}

}  // namespace
}  // namespace dinghy::reference
