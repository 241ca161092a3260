// Scoring does not allocate once scratch and outputs have grown to the requests at hand. In an executable of
// its own, since it counts what passes through operator new. oneDNN builds a small map of arguments at every
// execution, which no interface of it avoids: what it allocates itself is not counted.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "tests/model/layers/attention_cases.h"
#include "tests/testing/reference/compare.h"
#include "tests/testing/reference/model_variants.h"

namespace {

std::atomic<bool> counting{false};
std::atomic<int64_t> allocations{0};

bool IsOneDnn(const void* code) {
  Dl_info info;
  return dladdr(code, &info) != 0 && std::strstr(info.dli_fname, "libdnnl") != nullptr;
}

void* Allocate(std::size_t size, std::size_t alignment, const void* caller) {
  if (counting && !IsOneDnn(caller)) ++allocations;
  const std::size_t rounded = (size + alignment - 1) / alignment * alignment;
  void* memory = std::aligned_alloc(alignment, rounded > 0 ? rounded : alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(std::size_t size) {
  return Allocate(size, alignof(std::max_align_t), __builtin_return_address(0));
}
void* operator new(std::size_t size, std::align_val_t alignment) {
  return Allocate(size, static_cast<std::size_t>(alignment), __builtin_return_address(0));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

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
  allocations = 0;
  counting = true;
  for (int round = 0; round < 3; ++round) {
    model->Score(small, options, scratch, outputs);
    model->Score(large, options, scratch, outputs);
  }
  counting = false;
  EXPECT_EQ(allocations, 0);
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

TEST(AllocationTest, TheCounterCounts) {
  allocations = 0;
  counting = true;
  const std::vector<float> some(100);
  counting = false;
  EXPECT_EQ(some.size(), 100u);
  EXPECT_GE(allocations, 1);
}

}  // namespace
}  // namespace dinghy::reference
