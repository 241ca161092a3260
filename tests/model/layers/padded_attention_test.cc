// Self-attention over padded histories, with every position, head and kernel that it takes, against the
// reference, which computes all max_length rows.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <ostream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/testing/reference/compare.h"
#include "tests/testing/reference/reference_model.h"

namespace dinghy::reference {
namespace {

using Options = RandomModel::SelfAttentionOptions;
using Attention = v1::SelfAttention;

constexpr int kMaxLength = 20;
constexpr int kWidth = 12;
constexpr int kPadRow = 2;
constexpr int kPositions = kMaxLength + 3;

// Self-attention over an id and a number, and its last row as the output; where pad behaviors have a value
// behind it, an empty history has that.
RandomModel AttentionModel(v1::Sequence::Pad pad, const Options& options, int max_length = kMaxLength) {
  RandomModel model(7);
  model.AddSequence("clicks", max_length, pad);
  model.AddTable("item", 30, kWidth - 1);
  model.AddId("clicks.item", v1::SEQUENCE, "item")->mutable_id()->set_pad_row(kPadRow);
  model.AddNumeric("clicks.price", v1::SEQUENCE);
  *model.AddLayer("history", {"clicks.item", "clicks.price"})->mutable_self_attention() =
      model.MakeSelfAttention("history", options);
  v1::Pooling& pooling = *model.AddLayer("last", {"history"})->mutable_pooling();
  pooling.set_method(v1::Pooling::LAST);
  const bool has_pad_row = options.pads == Attention::ATTENDED || options.pads == Attention::ZEROED;
  pooling.set_empty(has_pad_row ? v1::PAD_VALUE : v1::ZEROS);
  *model.AddLayer("out", {"last"})->mutable_dense() =
      model.MakeDense("out", options.out_width > 0 ? options.out_width : kWidth, 1, v1::LINEAR);
  model.AddOutput("out", "out", v1::Output::RAW);
  return model;
}

void Compare(v1::Sequence::Pad pad, const Options& options, const std::vector<int>& lengths) {
  const RandomModel random_model = AttentionModel(pad, options);
  const std::unique_ptr<Model> model = CreateModel(random_model);
  ASSERT_NE(model, nullptr);
  for (const int length : lengths) {
    SCOPED_TRACE(::testing::Message() << "length " << length);
    CompareWithReference(random_model, *model,
                         RandomBatch(random_model, {.candidates = 1, .lengths = {length}}, 11));
  }
}

struct Pads {
  const char* name;
  v1::Sequence::Pad side;
  Attention::Pads pads;

  bool masked() const { return pads == Attention::PADS_UNSPECIFIED || pads == Attention::MASKED; }
};
// For ctest.
void PrintTo(const Pads& pads, std::ostream* out) { *out << pads.name; }

const Pads kPads[] = {{"None", v1::Sequence::NONE, Attention::PADS_UNSPECIFIED},
                      {"NoneMasked", v1::Sequence::NONE, Attention::MASKED},
                      {"LeftMasked", v1::Sequence::LEFT, Attention::MASKED},
                      {"RightMasked", v1::Sequence::RIGHT, Attention::MASKED},
                      {"Attended", v1::Sequence::LEFT, Attention::ATTENDED},
                      {"Zeroed", v1::Sequence::LEFT, Attention::ZEROED}};

struct Named {
  std::string name;
  Options options;
};

// Every kind of position that `pads` takes.
std::vector<Named> AllPositions(const Pads& pads, const Options& options) {
  std::vector<Named> out = {{"none", options}};
  const auto add = [&](const std::string& name) -> Options& {
    return out.emplace_back(name, options).options;
  };
  const bool pad_row = pads.pads == Attention::ATTENDED;
  for (const auto origin : {v1::FROM_OLDEST, v1::FROM_NEWEST, v1::FROM_SLOT}) {
    if (origin == v1::FROM_SLOT && pads.side == v1::Sequence::NONE) continue;
    Options& learned = add(v1::PositionOrigin_Name(origin));
    learned.positions = kPositions;
    learned.origin = origin;
    if (origin == v1::FROM_SLOT) learned.first_row = 1;
    // Where pads are ZEROED it may be there too, and does nothing.
    const bool zeroed = pads.pads == Attention::ZEROED && origin != v1::FROM_OLDEST;
    if (pad_row || zeroed) learned.pad_row = 0;
  }
  if (pad_row) return out;
  for (const auto origin : {v1::FROM_OLDEST, v1::FROM_NEWEST}) {
    for (const auto layout : {v1::SinusoidalPositions::INTERLEAVED, v1::SinusoidalPositions::HALVES}) {
      Options& sinusoidal = add(absl::StrCat("sinusoidal ", origin, " ", layout));
      sinusoidal.origin = origin;
      sinusoidal.layout = layout;
    }
  }
  return out;
}

// Causal or not, windows, kernels.
std::vector<Named> AllKernels(const Pads& pads, const Options& options) {
  std::vector<Named> out;
  for (const bool causal : {true, false}) {
    if (!causal && !pads.masked()) continue;
    for (const int window : {0, 1, 3, kMaxLength + 5}) {
      Options& windowed =
          out.emplace_back(absl::StrCat("window ", window, " causal ", causal), options).options;
      windowed.causal = causal;
      windowed.window = window;
    }
    if (!pads.masked()) continue;
    Options& linear = out.emplace_back(absl::StrCat("linear causal ", causal), options).options;
    linear.causal = causal;
    linear.linear = true;
  }
  return out;
}

class PaddedAttentionTest : public ::testing::TestWithParam<std::tuple<Attention::Wiring, Pads>> {
 protected:
  Attention::Wiring wiring() const { return std::get<0>(GetParam()); }
  const Pads& pads() const { return std::get<1>(GetParam()); }
};

TEST_P(PaddedAttentionTest, EveryPosition) {
  const Options options{.width = kWidth, .heads = 2, .blocks = 2, .wiring = wiring(), .pads = pads().pads};
  for (Named& positions : AllPositions(pads(), options)) {
    for (const bool norms : {false, true}) {
      SCOPED_TRACE(::testing::Message() << positions.name << ", norms " << norms);
      positions.options.input_norm = norms;
      positions.options.final_norm = norms;
      Compare(pads().side, positions.options, {0, 1, 2, 7, 15, 16, 17, kMaxLength - 1, kMaxLength});
    }
  }
}

TEST_P(PaddedAttentionTest, EveryKernelAndHead) {
  const Options options{.width = kWidth, .heads = 6, .blocks = 2, .wiring = wiring(), .pads = pads().pads};
  for (const Named& kernel : AllKernels(pads(), options)) {
    for (const int shared : {0, 1, 3}) {
      // Positions take turns.
      const std::vector<Named> positions = AllPositions(pads(), kernel.options);
      Named named = positions[(shared + kernel.options.window) % positions.size()];
      named.options.key_value_heads = shared;
      SCOPED_TRACE(::testing::Message() << kernel.name << ", " << shared << " shared heads, " << named.name);
      Compare(pads().side, named.options, {0, 1, 2, 4, 17, kMaxLength - 1, kMaxLength});
    }
  }
}

// Heads whose width is not width / heads, values of another width, and a latent.
TEST_P(PaddedAttentionTest, EveryWidth) {
  for (const int latent : {0, 5}) {
    for (const int shared : {0, 1}) {
      Options options{.width = kWidth,
                      .heads = 3,
                      .blocks = 2,
                      .wiring = wiring(),
                      .final_norm = true,
                      .pads = pads().pads,
                      .window = 6,
                      .key_value_heads = shared,
                      .head_width = 5,
                      .value_width = 7,
                      .latent = latent};
      if (wiring() == Attention::BARE) options.out_width = 17;
      SCOPED_TRACE(::testing::Message() << "latent " << latent << ", " << shared << " shared heads");
      Compare(pads().side, options, {0, 1, 3, 18, kMaxLength});
      if (!pads().masked()) continue;
      options.window = 0;
      options.linear = true;
      Compare(pads().side, options, {0, 1, 3, 18, kMaxLength});
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, PaddedAttentionTest,
                         ::testing::Combine(::testing::Values(Attention::PRE_NORM, Attention::POST_NORM,
                                                              Attention::SASREC_ORIGINAL, Attention::BARE),
                                            ::testing::ValuesIn(kPads)),
                         [](const auto& info) {
                           return absl::StrCat("Wiring", std::get<0>(info.param),
                                               std::get<1>(info.param).name);
                         });

// The debug values of "history", by rows.
std::vector<float> History(const Model& model, const FeatureBatch& batch, ops::Scratch& scratch) {
  ModelOutputs outputs;
  model.Score(batch, {.attention = false, .debug_names = {"history"}}, scratch, outputs);
  return outputs.debug[0].values;
}

// The history with its pads written out as behaviors, as the trainer has it.
FeatureBatch WrittenOut(const FeatureBatch& batch, int max_length) {
  FeatureBatch out = batch;
  const int pads = max_length - batch.sequence_lengths[0];
  out.sequence_lengths[0] = max_length;
  out.columns[0].rows.insert(out.columns[0].rows.begin(), pads, kPadRow);
  out.columns[1].values.insert(out.columns[1].values.begin(), pads, 0.0f);
  return out;
}

// Only real behaviors are computed, and one row for all pads. That agrees with the full computation over
// max_length rows: with the reference's, and with the engine's own over the history written out. The latter
// only over short ones, since the rounding of many equal terms adds up to 1e-5 at 200 of them, where one term
// that counts often keeps within 2e-6.
class ShortenedTest : public ::testing::TestWithParam<std::tuple<Attention::Wiring, int>> {
 protected:
  static Options MakeOptions(Attention::Pads pads) {
    return {.width = kWidth,
            .heads = 2,
            .blocks = 2,
            .wiring = std::get<0>(GetParam()),
            .final_norm = true,
            .pads = pads,
            .window = std::get<1>(GetParam())};
  }
};

TEST_P(ShortenedTest, AgreesWithTheFullComputationInDouble) {
  constexpr int kLong = 200;
  for (const Attention::Pads pads : {Attention::ATTENDED, Attention::ZEROED}) {
    const RandomModel random_model = AttentionModel(v1::Sequence::LEFT, MakeOptions(pads), kLong);
    const std::unique_ptr<Model> model = CreateModel(random_model);
    ASSERT_NE(model, nullptr);
    ops::Scratch scratch;
    for (const int length : {1, 2, 31, 100, 199, kLong}) {
      const FeatureBatch batch = RandomBatch(random_model, {.candidates = 1, .lengths = {length}}, 3);
      const std::vector<float> got = History(*model, batch, scratch);
      const Row expected =
          Concat(RunReferenceModel(random_model.manifest, random_model.tensors, batch).values.at("history"));
      ASSERT_EQ(got.size(), expected.size());
      for (size_t i = 0; i < got.size(); ++i) {
        ASSERT_NEAR(got[i], expected[i], 2e-6)
            << "pads " << pads << ", length " << length << ", element " << i;
      }
    }
  }
}

TEST_P(ShortenedTest, AgreesWithTheEnginesFullComputation) {
  const RandomModel shortened = AttentionModel(v1::Sequence::LEFT, MakeOptions(Attention::ATTENDED));
  const RandomModel full = AttentionModel(v1::Sequence::NONE, MakeOptions(Attention::PADS_UNSPECIFIED));
  const std::unique_ptr<Model> shortened_model = CreateModel(shortened);
  const std::unique_ptr<Model> full_model = CreateModel(full);
  ASSERT_TRUE(shortened_model && full_model);
  ops::Scratch scratch;
  for (int length = 1; length <= kMaxLength; ++length) {
    const FeatureBatch batch = RandomBatch(shortened, {.candidates = 1, .lengths = {length}}, 3);
    const std::vector<float> got = History(*shortened_model, batch, scratch);
    const std::vector<float> all = History(*full_model, WrittenOut(batch, kMaxLength), scratch);
    ASSERT_EQ(got.size(), static_cast<size_t>(length * kWidth));
    const size_t pads = all.size() - got.size();
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_NEAR(got[i], all[pads + i], 2e-6) << "length " << length << ", element " << i;
    }
    // Without pads it is the same computation.
    if (pads == 0) {
      EXPECT_EQ(got, all);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, ShortenedTest,
                         ::testing::Combine(::testing::Values(Attention::PRE_NORM, Attention::POST_NORM,
                                                              Attention::SASREC_ORIGINAL),
                                            ::testing::Values(0, 20)));

// Queries and keys that are small whole numbers times `query` and `key`, plus `bias`, exact in float.
void CompareWholeNumbers(const Options& options, float query, float key, float bias) {
  RandomModel random_model = AttentionModel(v1::Sequence::LEFT, options);
  Attention& attention = *random_model.manifest.mutable_layers(0)->mutable_self_attention();
  attention.set_input_scale(1);
  for (const auto& [dense, scale] :
       {std::pair{attention.blocks(0).query(), query}, std::pair{attention.blocks(0).key(), key}}) {
    for (int i = 0; i < kWidth; ++i) {
      random_model.tensors[dense.bias()].data[i] = bias;
      for (int j = 0; j < kWidth; ++j) {
        random_model.tensors[dense.weight()].data[i * kWidth + j] = i == j ? scale : 0;
      }
    }
  }
  Tensor& table = random_model.tensors["item.table"];
  for (int64_t i = 0; i < table.size; ++i) table.data[i] = std::round(table.data[i]);
  const std::unique_ptr<Model> model = CreateModel(random_model);
  ASSERT_NE(model, nullptr);
  for (const int length : {0, 1, 2, 17, kMaxLength}) {
    SCOPED_TRACE(::testing::Message()
                 << "pads " << options.pads << ", causal " << options.causal << ", length " << length);
    FeatureBatch batch = RandomBatch(random_model, {.candidates = 1, .lengths = {length}}, 11);
    for (float& price : batch.columns[1].values) price = std::round(price);
    CompareWithReference(random_model, *model, batch);
  }
}

TEST(PaddedAttentionScoresTest, LogitsOfAThousand) {
  for (const Attention::Pads pads : {Attention::MASKED, Attention::ATTENDED, Attention::ZEROED}) {
    CompareWholeNumbers({.width = kWidth, .heads = 3, .wiring = Attention::BARE, .pads = pads}, 32, 16, 0);
  }
}

// Of elu + 1 of such numbers nothing would be left in float.
TEST(PaddedAttentionScoresTest, LinearKernelOfNegativeNumbers) {
  for (const bool causal : {false, true}) {
    const Options options{.width = kWidth,
                          .heads = 3,
                          .wiring = Attention::BARE,
                          .causal = causal,
                          .pads = Attention::MASKED,
                          .linear = true};
    CompareWholeNumbers(options, 8, 8, -120);
    CompareWholeNumbers(options, 8, -8, -120);
    CompareWholeNumbers(options, 300, 200, 0);
  }
}

// What lies in the scratch from before must not matter.
TEST(PaddedAttentionScoresTest, SameBitsInAnyScratch) {
  for (const Options& options :
       {Options{.width = kWidth, .heads = 2, .blocks = 2, .pads = Attention::ATTENDED},
        Options{.width = kWidth,
        .heads = 6,
        .wiring = Attention::BARE,
        .pads = Attention::ZEROED,
        .key_value_heads = 2,
        .value_width = 3,
        .latent = 5,
        .out_width = 9},
        Options{.width = kWidth, .heads = 2, .blocks = 2, .pads = Attention::MASKED, .linear = true}}) {
    const RandomModel random_model = AttentionModel(v1::Sequence::LEFT, options);
    const std::unique_ptr<Model> model = CreateModel(random_model);
    ASSERT_NE(model, nullptr);
    for (const int length : {1, 16, kMaxLength}) {
      const FeatureBatch batch = RandomBatch(random_model, {.candidates = 1, .lengths = {length}}, 11);
      ops::Scratch clean, dirty;
      {
        ops::Scratch::Scope scope(dirty);
        std::fill_n(dirty.Floats(100000), 100000, std::numeric_limits<float>::quiet_NaN());
      }
      EXPECT_EQ(History(*model, batch, clean), History(*model, batch, dirty)) << length;
    }
  }
}

}  // namespace
}  // namespace dinghy::reference
