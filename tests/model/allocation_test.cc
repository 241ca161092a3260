// Scoring does not allocate once scratch and outputs have grown to the requests at hand.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/model/layers/attention_cases.h"
#include "tests/testing/allocation_counter.h"
#include "tests/testing/reference/compare.h"
#include "tests/testing/reference/model_variants.h"

namespace dinghy::reference {
namespace {

// Scores two requests in turn, and counts from the third round on.
void ExpectNoAllocations(const RandomModel& random_model, const std::vector<std::string>& debug_names) {
  const std::unique_ptr<Model> model = CreateModel(random_model);
  ASSERT_NE(model, nullptr);
  const FeatureBatch large = RandomBatch(random_model, {.candidates = 100, .lengths = {66, 66}}, 1);
  const FeatureBatch small = RandomBatch(random_model, {.candidates = 33, .lengths = {17, 0}}, 2);
  ops::Scratch scratch;
  ModelOutputs outputs;
  ModelScoreOptions options;
  options.attention = true;
  options.debug_names = debug_names;
  for (int round = 0; round < 2; ++round) {
    model->Score(large, options, scratch, outputs);
    model->Score(small, options, scratch, outputs);
  }
  const AllocationScope scope;
  for (int round = 0; round < 3; ++round) {
    model->Score(small, options, scratch, outputs);
    model->Score(large, options, scratch, outputs);
  }
  EXPECT_EQ(scope.count(), 0);
}

TEST(AllocationTest, SteadyStateScoringAllocatesNothing) {
  for (const Variant variant : AllVariants()) {
    SCOPED_TRACE(VariantName(variant));
    ExpectNoAllocations(MakeVariant(variant, {}, 1), {"tower", "item"});
  }
}

TEST(AllocationTest, NorDoesSelfAttentionOverPads) {
  using Attention = v1::SelfAttention;
  for (const RandomModel::SelfAttentionOptions& options :
       {RandomModel::SelfAttentionOptions{.width = 12, .heads = 2, .blocks = 2, .pads = Attention::ATTENDED},
        RandomModel::SelfAttentionOptions{
            .width = 12, .wiring = Attention::BARE, .pads = Attention::ZEROED, .latent = 5},
        RandomModel::SelfAttentionOptions{.width = 12, .pads = Attention::MASKED, .linear = true}}) {
    RandomModel model(1);
    model.AddSequence("clicks", 70, v1::Sequence::LEFT);
    model.AddTable("item", 30, 12);
    model.AddId("clicks.item", v1::SEQUENCE, "item")->mutable_id()->set_pad_row(2);
    *model.AddLayer("history", {"clicks.item"})->mutable_self_attention() =
        model.MakeSelfAttention("history", options);
    v1::Pooling& last = *model.AddLayer("last", {"history"})->mutable_pooling();
    last.set_method(v1::Pooling::LAST);
    last.set_empty(v1::ZEROS);
    *model.AddLayer("out", {"last"})->mutable_dense() = model.MakeDense("out", 12, 1, v1::LINEAR);
    model.AddOutput("out", "out", v1::Output::RAW);
    ExpectNoAllocations(model, {"history"});
  }
}

TEST(AllocationTest, NorDoesAnyTargetAttention) {
  for (const AttentionCase& attention_case : AttentionCases()) {
    SCOPED_TRACE(attention_case.name);
    ExpectNoAllocations(MakeAttentionModel(attention_case), {"interest"});
  }
}

// Ranges of a user state that was kept, as where a cache has it.
TEST(AllocationTest, NorDoRanges) {
  const RandomModel random_model = MakeVariant(Variant::kDinSasrec, {}, 1);
  const std::unique_ptr<Model> model = CreateModel(random_model);
  ASSERT_NE(model, nullptr);
  const FeatureBatch batch = RandomBatch(random_model, {.candidates = 100, .lengths = {66, 66}}, 1);
  ops::Scratch scratch;
  const UserState kept = [&] {
    ops::Scratch::Scope scope(scratch);
    return model->Keep(model->ScoreUser(batch, {}, scratch));
  }();
  ModelOutputs outputs;
  const auto score = [&] {
    model->StartOutputs(batch, kept, {}, outputs);
    model->ScoreRange(batch, kept, 0, 40, {}, scratch, outputs);
    model->ScoreRange(batch, kept, 40, 100, {}, scratch, outputs);
  };
  score();
  const AllocationScope scope;
  for (int round = 0; round < 3; ++round) score();
  EXPECT_EQ(scope.count(), 0);
}

TEST(AllocationTest, TheCounterCounts) {
  ASSERT_TRUE(kAllocationsCount);
  const AllocationScope scope;
  const std::vector<float> some(100);
  EXPECT_EQ(some.size(), 100u);
  EXPECT_GE(scope.count(), 1);
  const int64_t before = scope.count();
  ops::Scratch scratch;
  scratch.Floats(1);  // its first block, and the list of blocks
  EXPECT_EQ(scope.count(), before + 2);
}

TEST(AllocationTest, TheCounterLeavesOtherThreadsOut) {
  const AllocationScope scope;
  int64_t other = 0;
  std::thread thread([&other] {
    const AllocationScope inner;
    const std::vector<float> some(100);
    other = inner.count() + static_cast<int64_t>(some[0]);
  });
  const int64_t of_the_thread = scope.count();  // what std::thread itself needs
  thread.join();
  EXPECT_EQ(scope.count(), of_the_thread);
  EXPECT_GE(other, 1);
}

}  // namespace
}  // namespace dinghy::reference
