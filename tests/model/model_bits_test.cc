// A score depends on nothing but its own inputs, to the bit: not on the other candidates, their order or
// number, nor on the thread. Runs under the machine's own instruction set and capped at AVX2.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "model/ops/cpu.h"
#include "tests/testing/reference/compare.h"
#include "tests/testing/reference/model_variants.h"

namespace dinghy::reference {
namespace {

using Bits = std::vector<std::vector<uint32_t>>;

Bits ScoreBits(const Model& model, const FeatureBatch& batch, ops::Scratch& scratch) {
  ModelOutputs outputs;
  model.Score(batch, {}, scratch, outputs);
  Bits out;
  for (const std::vector<float>& scores : outputs.scores) {
    std::vector<uint32_t>& bits = out.emplace_back();
    for (const float score : scores) bits.push_back(std::bit_cast<uint32_t>(score));
  }
  return out;
}

// The widths of ../shared/bench's DIN, and odd ones at which AVX2 kernels treat positions unlike.
const VariantOptions kSizes[] = {
    {.width = 64, .attention = {80, 40}, .tower = {200, 80}},
    {.width = 80, .attention = {40, 17}, .tower = {40, 33}, .softmax = true},
    {.width = 12, .attention = {16, 9}, .tower = {33, 10}},
};

class ModelBitsTest : public ::testing::TestWithParam<Variant> {};

TEST_P(ModelBitsTest, AnySubsetInAnyOrder) {
  constexpr int kCandidates = 150;
  for (const VariantOptions& options : kSizes) {
    const RandomModel random_model = MakeVariant(GetParam(), options, 1);
    const std::unique_ptr<Model> model = CreateModel(random_model);
    ASSERT_NE(model, nullptr);
    const FeatureBatch batch = RandomBatch(random_model, {.candidates = kCandidates, .lengths = {21, 34}}, 3);
    ops::Scratch scratch;
    const Bits all = ScoreBits(*model, batch, scratch);
    std::mt19937 random(7);
    const auto expect_same = [&](const std::vector<int>& order) {
      // What lies in memory from before must not matter either.
      ops::Scratch::Scope scope(scratch);
      scratch.Floats(random() % 1000);
      const Bits some = ScoreBits(*model, PickCandidates(random_model.manifest, batch, order), scratch);
      for (size_t o = 0; o < all.size(); ++o) {
        for (size_t i = 0; i < order.size(); ++i) {
          ASSERT_EQ(some[o][i], all[o][order[i]])
              << "width " << options.width << ", output " << o << ", candidate " << order[i] << " at place "
              << i << " of " << order.size();
        }
      }
    };
    for (int c = 0; c < kCandidates; c += 7) expect_same({c});
    std::vector<int> order(kCandidates);
    std::iota(order.begin(), order.end(), 0);
    std::reverse(order.begin(), order.end());
    expect_same(order);
    for (const int count : {2, 15, 16, 17, 47, 63, 64, 65, 128, 129, kCandidates}) {
      std::shuffle(order.begin(), order.end(), random);
      expect_same(std::vector<int>(order.begin(), order.begin() + count));
    }
    expect_same(std::vector<int>(70, 5));  // the same item in every place
  }
}

TEST_P(ModelBitsTest, AnyThread) {
  const RandomModel random_model = MakeVariant(GetParam(), kSizes[0], 1);
  const std::unique_ptr<Model> model = CreateModel(random_model);
  ASSERT_NE(model, nullptr);
  const FeatureBatch batch = RandomBatch(random_model, {.candidates = 40, .lengths = {50, 9}}, 3);
  ops::Scratch scratch;
  const Bits expected = ScoreBits(*model, batch, scratch);
  constexpr int kThreads = 4;
  std::vector<Bits> got(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      ops::PrepareThread();
      ops::Scratch own;
      for (int round = 0; round < 3; ++round) got[t] = ScoreBits(*model, batch, own);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Bits& bits : got) EXPECT_EQ(bits, expected);
}

// Two models of the same bundle, as after a restart.
TEST_P(ModelBitsTest, AnyInstance) {
  const RandomModel random_model = MakeVariant(GetParam(), kSizes[1], 1);
  const std::unique_ptr<Model> one = CreateModel(random_model);
  const std::unique_ptr<Model> two = CreateModel(random_model);
  ASSERT_TRUE(one && two);
  ops::Scratch scratch;
  for (const int length : {1, 16, 17, 66}) {
    const FeatureBatch batch = RandomBatch(random_model, {.candidates = 5, .lengths = {length, 2}}, 3);
    EXPECT_EQ(ScoreBits(*one, batch, scratch), ScoreBits(*two, batch, scratch));
  }
}

INSTANTIATE_TEST_SUITE_P(All, ModelBitsTest, ::testing::ValuesIn(AllVariants()),
                         [](const auto& info) { return VariantName(info.param); });

}  // namespace
}  // namespace dinghy::reference
