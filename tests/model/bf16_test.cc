// Models in bf16: near the reference, on each path, and refused where the CPU has none.
#include "model/ops/bf16.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "tests/testing/reference/compare.h"
#include "tests/testing/reference/model_variants.h"

namespace dinghy::reference {
namespace {

using ::testing::HasSubstr;

RandomModel Bf16Model(const VariantOptions& options, uint32_t seed) {
  RandomModel model = MakeVariant(Variant::kDin, options, seed);
  model.manifest.set_precision(v1::BF16);
  return model;
}

std::unique_ptr<Model> Create(const RandomModel& random_model, bool fused) {
  auto model = Model::Create(random_model.manifest, random_model.tensors,
                             {.fused_kernels = fused, .allow_emulation = true});
  EXPECT_TRUE(model.ok()) << model.status();
  return model.ok() ? *std::move(model) : nullptr;
}

std::vector<float> Scores(const Model& model, const FeatureBatch& batch) {
  ops::Scratch scratch;
  ModelOutputs outputs;
  model.Score(batch, {}, scratch, outputs);
  return outputs.scores[0];
}

const VariantOptions kSizes[] = {
    {.width = 64, .attention = {80, 40}, .tower = {200, 80}},
    {.width = 34, .attention = {41, 17}, .tower = {40, 33}, .softmax = true},
    {.width = 12, .attention = {9}, .tower = {33, 10}},
};

TEST(Bf16Test, NearTheReferenceOnEachPath) {
  for (const VariantOptions& options : kSizes) {
    const RandomModel random_model = Bf16Model(options, 1);
    for (const bool fused : {true, false}) {
      const std::unique_ptr<Model> model = Create(random_model, fused);
      ASSERT_NE(model, nullptr);
      for (const int length : {0, 1, 2, 7, 17, 50, 63, 64, 65, kVariantMaxLength}) {
        SCOPED_TRACE(::testing::Message() << "width " << options.width << ", length " << length);
        CompareWithReference(random_model, *model,
                             RandomBatch(random_model, {.candidates = 5, .lengths = {length, 3}}, 3), 0.03);
      }
    }
  }
}

// The two round the same factors: what is left is the order of sums, the activation's error, and factors at a
// tie. Rounding itself shows.
TEST(Bf16Test, TheKernelAndRoundedFactorsAgree) {
  for (const VariantOptions& options : kSizes) {
    const RandomModel random_model = Bf16Model(options, 2);
    const std::unique_ptr<Model> one = Create(random_model, true);
    const std::unique_ptr<Model> two = Create(random_model, false);
    const RandomModel f32_model = MakeVariant(Variant::kDin, options, 2);
    const std::unique_ptr<Model> f32 = CreateModel(f32_model);
    ASSERT_TRUE(one && two && f32);
    const FeatureBatch batch = RandomBatch(random_model, {.candidates = 40, .lengths = {50, 9}}, 3);
    const std::vector<float> a = Scores(*one, batch), b = Scores(*two, batch), c = Scores(*f32, batch);
    double paths = 0, rounding = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      paths += std::abs(a[i] - b[i]);
      rounding += std::abs(b[i] - c[i]);
    }
    EXPECT_GT(rounding, 0) << options.width;
    EXPECT_LT(paths, rounding / 2) << options.width;
  }
}

TEST(Bf16Test, EachPathHasANumericsIdOfItsOwn) {
  const RandomModel random_model = Bf16Model(kSizes[0], 1);
  const RandomModel f32 = MakeVariant(Variant::kDin, kSizes[0], 1);
  std::set<std::string> ids;
  for (const bool fused : {true, false}) {
    ids.insert(Create(random_model, fused)->numerics_id());
    ids.insert(Create(f32, fused)->numerics_id());
  }
  EXPECT_EQ(ids.size(), 4);
}

TEST(Bf16Test, BitsDoNotDependOnTheOtherCandidates) {
  for (const VariantOptions& options : kSizes) {
    const RandomModel random_model = Bf16Model(options, 1);
    const std::unique_ptr<Model> model = Create(random_model, true);
    ASSERT_NE(model, nullptr);
    const FeatureBatch batch = RandomBatch(random_model, {.candidates = 33, .lengths = {45, 3}}, 3);
    const std::vector<float> all = Scores(*model, batch);
    for (const int count : {1, 2, 7, 32}) {
      std::vector<int> order(count);
      std::iota(order.rbegin(), order.rend(), 33 - count);
      const std::vector<float> some = Scores(*model, PickCandidates(random_model.manifest, batch, order));
      for (int i = 0; i < count; ++i) {
        ASSERT_EQ(std::bit_cast<uint32_t>(some[i]), std::bit_cast<uint32_t>(all[order[i]])) << count;
      }
    }
  }
}

// Without a cap this shows it where the CPU has none; with one (AVX2), everywhere.
TEST(Bf16Test, IsRefusedWhereTheCpuHasNone) {
  const RandomModel random_model = Bf16Model(kSizes[2], 1);
  const absl::Status status = Model::Create(random_model.manifest, random_model.tensors).status();
  if (ops::HasBf16()) {
    EXPECT_TRUE(status.ok()) << status;
    return;
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  for (const char* part :
       {"precision BF16: expected a CPU with AVX512_BF16, got ", "isa ", "--allow_emulation"})
    EXPECT_THAT(std::string(status.message()), HasSubstr(part));
}

}  // namespace
}  // namespace dinghy::reference
