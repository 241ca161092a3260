// What Model::Create says of target attention that it cannot take.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "model/model.h"
#include "tests/model/layers/attention_cases.h"

namespace dinghy::reference {
namespace {

using Attention = v1::TargetAttention;

struct Fault {
  std::string name;
  std::string from;  // the case that it is made in
  std::function<void(RandomModel&, Attention&)> make;
  std::string message;  // behind `layer "interest": `
};

void PrintTo(const Fault& fault, std::ostream* out) { *out << fault.name; }

std::vector<Fault> Faults() {
  return {
      {"NoScore", "Dot", [](RandomModel&, Attention& a) { a.clear_score(); },
       "score: expected din, additive, dot, bilinear, linear or auto, got nothing"},
      {"NoNormalization", "Dot", [](RandomModel&, Attention& a) { a.clear_normalization(); },
       "normalization: expected NONE, SOFTMAX, SIGMOID_EACH or SILU_MEAN, got nothing"},
      {"NoEmpty", "Dot", [](RandomModel&, Attention& a) { a.clear_empty(); },
       "empty: expected ZEROS or PAD_VALUE, got nothing"},
      {"NoScale", "Dot", [](RandomModel&, Attention& a) { a.clear_scale(); },
       "scale: expected a number, got nothing"},
      // Scores.
      {"DotWidth", "Bilinear", [](RandomModel&, Attention& a) { a.mutable_dot(); },
       "keys: expected the query's width 9, got 14"},
      {"DinWidth", "DinQueryZeros", [](RandomModel&, Attention& a) { a.mutable_din()->clear_query_zeros(); },
       "keys: expected the query's width 6, got 11"},
      {"DinZeros", "DinQueryZeros", [](RandomModel&, Attention& a) { a.mutable_din()->set_query_zeros(4); },
       "keys: expected the query's width 6 and query_zeros 4, got 11"},
      {"BilinearShape", "Bilinear",
       [](RandomModel& m, Attention&) {
         m.AddTensor("bilinear.weight", {14, 9}, 1);
       },
       "bilinear.weight \"bilinear.weight\": expected shape [9, 14], got [14, 9]"},
      {"AdditiveQueryWeight", "Additive_TANH",
       [](RandomModel& m, Attention&) {
         m.AddTensor("additive.query_weight", {21, 13}, 1);
       },
       "additive.query_weight \"additive.query_weight\": expected shape [any, 9], got [21, 13]"},
      {"AdditiveKeyWeight", "Additive_TANH",
       [](RandomModel& m, Attention&) {
         m.AddTensor("additive.key_weight", {20, 13}, 1);
       },
       "additive.key_weight \"additive.key_weight\": expected shape [21, 13], got [20, 13]"},
      {"AdditiveVector", "Additive_TANH",
       [](RandomModel& m, Attention&) {
         m.AddTensor("additive.vector", {1, 21}, 1);
       },
       "additive.vector \"additive.vector\": expected shape [21], got [1, 21]"},
      {"AdditiveBias", "Additive_TANH",
       [](RandomModel& m, Attention&) { m.AddTensor("additive.bias", {9}, 1); },
       "additive.bias \"additive.bias\": expected shape [21], got [9]"},
      {"AdditiveNoBias", "Additive_TANH",
       [](RandomModel&, Attention& a) { a.mutable_additive()->clear_bias(); },
       "additive.bias: expected a tensor's name, or \"\" for none, got nothing"},
      {"AdditiveNoActivation", "Additive_TANH",
       [](RandomModel&, Attention& a) { a.mutable_additive()->clear_activation(); },
       "additive.activation: expected an activation without parameters, got nothing"},
      {"AdditiveActivation", "Additive_TANH",
       [](RandomModel&, Attention& a) { a.mutable_additive()->set_activation(v1::DICE); },
       "additive.activation: expected an activation without parameters, got DICE"},
      // Auto.
      {"AutoNoLength", "Auto", [](RandomModel&, Attention& a) { a.mutable_auto_()->clear_max_short(); },
       "auto.max_short: expected a length, got nothing"},
      {"AutoNoBranch", "Auto", [](RandomModel&, Attention& a) { a.mutable_auto_()->clear_long_history(); },
       "auto.long_history: expected a score, got nothing"},
      {"AutoNoScore", "Auto",
       [](RandomModel&, Attention& a) { a.mutable_auto_()->mutable_short_history()->clear_score(); },
       "auto.short_history.score: expected din, additive, dot or bilinear, got nothing"},
      {"AutoNoScale", "Auto",
       [](RandomModel&, Attention& a) { a.mutable_auto_()->mutable_short_history()->clear_scale(); },
       "auto.short_history.scale: expected a number, got nothing"},
      {"AutoTensor", "Auto", [](RandomModel& m, Attention&) { m.tensors.erase("short.vector"); },
       "auto.short_history.additive.vector: expected a tensor of the bundle, got \"short.vector\", which is "
       "in "
       "no file"},
      {"AutoDinPart", "AutoDin",
       [](RandomModel&, Attention& a) {
         a.mutable_auto_()->mutable_long_history()->mutable_din()->set_parts(1, v1::DinScore::QUERY);
       },
       "auto.long_history.din.parts[1]: expected each part once, got QUERY again"},
      // Heads.
      {"HeadsOfDin", "DinDice", [](RandomModel&, Attention& a) { a.set_heads(3); },
       "heads: expected none, as only dot and linear scores have heads, got 3"},
      {"HeadsOfAuto", "Auto", [](RandomModel&, Attention& a) { a.set_heads(3); },
       "heads: expected none, as only dot and linear scores have heads, got 3"},
      {"KeyValueHeadsOfAdditive", "Additive_TANH",
       [](RandomModel&, Attention& a) { a.set_key_value_heads(3); },
       "key_value_heads: expected none, as only dot and linear scores have heads, got 3"},
      {"HeadsNotDividing", "MultiHeadDot", [](RandomModel&, Attention& a) { a.set_heads(4); },
       "heads: expected a divisor of the query's width 30, got 4"},
      {"NoHead", "MultiHeadDot", [](RandomModel&, Attention& a) { a.set_heads(0); },
       "heads: expected a divisor of the query's width 30, got 0"},
      {"KeyValueHeadsNotDividing", "GroupedQueryDot",
       [](RandomModel&, Attention& a) { a.set_key_value_heads(4); },
       "key_value_heads: expected a divisor of heads 6, got 4"},
      {"NoKeyValueHead", "GroupedQueryLinear", [](RandomModel&, Attention& a) { a.set_key_value_heads(0); },
       "key_value_heads: expected a divisor of heads 6, got 0"},
      {"HeadKeys", "GroupedQueryDot", [](RandomModel&, Attention& a) { a.set_key_value_heads(1); },
       "keys: expected width 5, heads of 5 columns as the query's, got 10"},
      {"HeadKeysOfLinear", "MultiQueryLinear", [](RandomModel&, Attention& a) { a.clear_key_value_heads(); },
       "values: expected a width that 6 heads divide, got 7"},
      {"LinearKeys", "Bilinear", [](RandomModel&, Attention& a) { a.mutable_linear(); },
       "keys: expected the query's width 9, got 14"},
      {"LinearNormalization", "Linear",
       [](RandomModel&, Attention& a) { a.set_normalization(Attention::SOFTMAX); },
       "normalization: expected NONE beside linear, which has its own, got SOFTMAX"},
      // Latent.
      {"LatentOfLinear", "Latent", [](RandomModel&, Attention& a) { a.mutable_linear(); },
       "latent: expected none, as only dot scores have one, got one"},
      {"LatentValues", "Latent", [](RandomModel&, Attention& a) { a.set_values(0, "values"); },
       "values: expected the keys, since there is a latent, got others"},
      {"LatentKeyValueHeads", "Latent", [](RandomModel&, Attention& a) { a.set_key_value_heads(2); },
       "key_value_heads: expected none beside latent, got 2"},
      {"LatentKeyUp", "Latent",
       [](RandomModel& m, Attention&) {
         m.AddTensor("latent.key_up", {20, 12}, 1);
       },
       "latent.key_up \"latent.key_up\": expected shape [20, 11], got [20, 12]"},
      {"LatentValueUp", "Latent",
       [](RandomModel& m, Attention&) {
         m.AddTensor("latent.value_up", {12, 9}, 1);
       },
       "latent.value_up \"latent.value_up\": expected shape [any, 11], got [12, 9]"},
      {"LatentValueRows", "Latent",
       [](RandomModel& m, Attention&) {
         m.AddTensor("latent.value_up", {10, 11}, 1);
       },
       "latent.value_up \"latent.value_up\": expected rows that 4 heads divide, got 10"},
      // Windows.
      {"NoWindow", "WindowsFromOldest",
       [](RandomModel&, Attention& a) { a.mutable_windows()->clear_sizes(); },
       "windows.sizes: expected at least one, got none"},
      {"EmptyWindow", "WindowsFromOldest",
       [](RandomModel&, Attention& a) { a.mutable_windows()->set_sizes(1, 0); },
       "windows.sizes[1]: expected at least 1, got 0"},
      {"NoWindowOrigin", "WindowsFromOldest",
       [](RandomModel&, Attention& a) { a.mutable_windows()->clear_origin(); },
       "windows.origin: expected FROM_OLDEST or FROM_NEWEST, got nothing"},
      {"WindowOrigin", "WindowsFromOldest",
       [](RandomModel&, Attention& a) { a.mutable_windows()->set_origin(v1::FROM_SLOT); },
       "windows.origin: expected FROM_OLDEST or FROM_NEWEST, got FROM_SLOT"},
      {"WindowNormalization", "WindowsFromOldest",
       [](RandomModel&, Attention& a) { a.set_normalization(Attention::SOFTMAX); },
       "windows: expected normalization NONE and a score for each behavior, got SOFTMAX"},
      {"WindowsOfLinear", "WindowsFromOldest", [](RandomModel&, Attention& a) { a.mutable_linear(); },
       "windows: expected normalization NONE and a score for each behavior, got linear"},
      {"WindowsEmpty", "WindowsFromOldest", [](RandomModel&, Attention& a) { a.set_empty(v1::PAD_VALUE); },
       "empty: expected ZEROS, since there are windows, got PAD_VALUE"},
      // Pads.
      {"MaskNormalization", "MaskNear",
       [](RandomModel&, Attention& a) { a.set_normalization(Attention::SIGMOID_EACH); },
       "mask: expected none beside normalization SIGMOID_EACH, got -1"},
      {"MaskWithoutPads", "MaskNear",
       [](RandomModel& m, Attention&) { m.manifest.mutable_sequences(1)->set_pad(v1::Sequence::NONE); },
       "mask: expected pad LEFT or RIGHT of sequence \"clicks\", got NONE"},
      {"EmptyWithoutPads", "Dot", [](RandomModel&, Attention& a) { a.set_empty(v1::PAD_VALUE); },
       "values: expected inputs that pad behaviors have, got \"values\", whose sequence \"clicks\" has pad "
       "NONE"},
  };
}

class TargetAttentionErrorsTest : public ::testing::TestWithParam<Fault> {};

TEST_P(TargetAttentionErrorsTest, SaysWhatIsWrong) {
  const auto from = std::find_if(AttentionCases().begin(), AttentionCases().end(),
                                 [](const AttentionCase& c) { return c.name == GetParam().from; });
  ASSERT_NE(from, AttentionCases().end());
  RandomModel random_model = MakeAttentionModel(*from);
  GetParam().make(random_model, Interest(random_model));
  const absl::StatusOr<std::unique_ptr<Model>> model =
      Model::Create(random_model.manifest, random_model.tensors);
  ASSERT_FALSE(model.ok());
  EXPECT_EQ(model.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(std::string(model.status().message()), "layer \"interest\": " + GetParam().message);
}

INSTANTIATE_TEST_SUITE_P(All, TargetAttentionErrorsTest, ::testing::ValuesIn(Faults()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace dinghy::reference
