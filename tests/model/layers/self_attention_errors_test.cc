// What self-attention over a padded sequence refuses, word for word.
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <ostream>
#include <string>
#include <vector>

#include "model/model.h"
#include "tests/testing/reference/random_model.h"

namespace dinghy::reference {
namespace {

using Options = RandomModel::SelfAttentionOptions;
using Attention = v1::SelfAttention;

struct Fault {
  std::string name;
  Options options;  // width and heads are set
  std::string message;
  v1::Sequence::Pad pad = v1::Sequence::LEFT;
  std::function<void(Attention&, RandomModel&)> change = {};
};

// For ctest.
void PrintTo(const Fault& fault, std::ostream* out) { *out << fault.name; }

RandomModel MakeModel(const Fault& fault) {
  RandomModel model(7);
  model.AddSequence("clicks", 20, fault.pad);
  model.AddTable("item", 30, 6);
  model.AddId("clicks.item", v1::SEQUENCE, "item")->mutable_id()->set_pad_row(2);
  Options options = fault.options;
  options.width = 6;
  if (options.heads == 1) options.heads = 2;
  Attention& attention = *model.AddLayer("history", {"clicks.item"})->mutable_self_attention();
  attention = model.MakeSelfAttention("history", options);
  if (fault.change) fault.change(attention, model);
  v1::Pooling& last = *model.AddLayer("last", {"history"})->mutable_pooling();
  last.set_method(v1::Pooling::LAST);
  last.set_empty(v1::ZEROS);
  *model.AddLayer("out", {"last"})->mutable_dense() = model.MakeDense("out", 6, 1, v1::LINEAR);
  model.AddOutput("out", "out", v1::Output::RAW);
  return model;
}

std::vector<Fault> Faults() {
  Options sinusoidal{.pads = Attention::MASKED};
  sinusoidal.layout = v1::SinusoidalPositions::HALVES;
  Options attended_sinusoidal = sinusoidal;
  attended_sinusoidal.pads = Attention::ATTENDED;
  const Options masked{.pads = Attention::MASKED};
  return {
      // Pads.
      {.name = "PadsUnsaid",
       .options = {},
       .message =
           "pads: expected MASKED, ATTENDED or ZEROED, since sequence \"clicks\" is padded, got nothing"},
      {.name = "AttendedRight",
       .options = {.pads = Attention::ATTENDED},
       .message =
           "pads: expected pad LEFT of sequence \"clicks\" and causal for ATTENDED, so that all pads are "
           "alike, got pad RIGHT",
       .pad = v1::Sequence::RIGHT},
      {.name = "ZeroedNotCausal",
       .options = {.causal = false, .pads = Attention::ZEROED},
       .message =
           "pads: expected pad LEFT of sequence \"clicks\" and causal for ZEROED, so that all pads are "
           "alike, got causal false"},
      {.name = "AttendedLinear",
       .options = {.pads = Attention::ATTENDED, .linear = true},
       .message = "pads: expected MASKED with kernel ELU_PLUS_ONE, got ATTENDED"},
      {.name = "AttendedInputWithoutPadRow",
       .options = {.pads = Attention::ATTENDED},
       .message = "inputs: expected inputs that pad behaviors have, got \"clicks.time\", a time, which pad "
                  "behaviors do not have",
       .change =
           [](Attention&, RandomModel& m) {
             m.AddTimeSince("clicks.time", "item");
             m.manifest.mutable_layers(0)->set_inputs(0, "clicks.time");
           }},
      {.name = "ZeroedWithoutPads",
       .options = {.pads = Attention::ZEROED},
       .message =
           "pads: expected pad LEFT of sequence \"clicks\" and causal for ZEROED, so that all pads are "
           "alike, got pad NONE",
       .pad = v1::Sequence::NONE},
      // Positions.
      {.name = "SlotWithoutPads",
       .options = {.positions = 21, .origin = v1::FROM_SLOT, .first_row = 1},
       .message = "positions.origin: expected FROM_OLDEST or FROM_NEWEST, since sequence \"clicks\" is not "
                  "padded, got FROM_SLOT",
       .pad = v1::Sequence::NONE},
      {.name = "AttendedPadRowUnsaid",
       .options = {.positions = 21, .pads = Attention::ATTENDED},
       .message = "positions.pad_row: expected a row, since pads are ATTENDED, got nothing"},
      {.name = "PadRowBeyond",
       .options = {.positions = 21, .pad_row = 21, .pads = Attention::ATTENDED},
       .message = "positions.pad_row: expected a row of the table, which has 21, got 21"},
      {.name = "SlotWithoutFirstRow",
       .options = {.positions = 21, .origin = v1::FROM_SLOT, .pads = Attention::MASKED},
       .message = "positions.first_row: expected a row for FROM_SLOT, got nothing"},
      {.name = "FirstRowWithoutSlot",
       .options = {.positions = 30, .origin = v1::FROM_OLDEST, .first_row = 3, .pads = Attention::MASKED},
       .message = "positions.first_row: expected none or 0 but for FROM_SLOT, got 3"},
      {.name = "SlotRows",
       .options = {.positions = 22, .origin = v1::FROM_SLOT, .first_row = 3, .pads = Attention::MASKED},
       .message = "positions.tensor \"history.positions\": expected at least 23 rows, first_row and the "
                  "sequence's max_length, got 22"},
      {.name = "AttendedSinusoidal",
       .options = attended_sinusoidal,
       .message = "sinusoidal: expected learned positions with a pad_row where pads are ATTENDED, got these"},
      {.name = "SinusoidalSlot",
       .options = sinusoidal,
       .message = "sinusoidal.origin: expected FROM_OLDEST or FROM_NEWEST, got FROM_SLOT",
       .change = [](Attention& a, RandomModel&) { a.mutable_sinusoidal()->set_origin(v1::FROM_SLOT); }},
      {.name = "SinusoidalFirst",
       .options = sinusoidal,
       .message = "sinusoidal.first: expected a finite number, got nothing",
       .change = [](Attention& a, RandomModel&) { a.mutable_sinusoidal()->clear_first(); }},
      {.name = "SinusoidalLayout",
       .options = sinusoidal,
       .message = "sinusoidal.layout: expected INTERLEAVED or HALVES, got nothing",
       .change = [](Attention& a, RandomModel&) { a.mutable_sinusoidal()->clear_layout(); }},
      {.name = "SinusoidalBase",
       .options = sinusoidal,
       .message = "sinusoidal.base: expected a number above 1, got nothing",
       .change = [](Attention& a, RandomModel&) { a.mutable_sinusoidal()->clear_base(); }},
      {.name = "SinusoidalBaseOfOne",
       .options = sinusoidal,
       .message = "sinusoidal.base: expected a number above 1, got 1",
       .change = [](Attention& a, RandomModel&) { a.mutable_sinusoidal()->set_base(1); }},
      {.name = "SinusoidalWidth",
       .options = sinusoidal,
       .message = "sinusoidal: expected an even width, got 7",
       .change =
           [](Attention&, RandomModel& m) {
             m.AddNumeric("clicks.price", v1::SEQUENCE);
             m.manifest.mutable_layers(0)->add_inputs("clicks.price");
           }},
      // Heads and widths.
      {.name = "ZeroKeyValueHeads",
       .options = masked,
       .message = "key_value_heads: expected a divisor of the 2 heads, got 0",
       .change = [](Attention& a, RandomModel&) { a.set_key_value_heads(0); }},
      {.name = "KeyValueHeads",
       .options = masked,
       .message = "key_value_heads: expected a divisor of the 2 heads, got 3",
       .change = [](Attention& a, RandomModel&) { a.set_key_value_heads(3); }},
      {.name = "ZeroWindow",
       .options = masked,
       .message = "window: expected at least 1, got 0",
       .change = [](Attention& a, RandomModel&) { a.set_window(0); }},
      {.name = "LinearWindow",
       .options = {.pads = Attention::MASKED, .window = 4, .linear = true},
       .message = "window: expected none with kernel ELU_PLUS_ONE, got 4"},
      {.name = "KeyWidth",
       .options = {.pads = Attention::MASKED, .key_value_heads = 1},
       .message = "blocks[0].key: expected width 5, 1 heads as wide as the query's, got 4",
       .change =
           [](Attention& a, RandomModel& m) {
             *a.mutable_blocks(0)->mutable_query() = m.MakeDense("q", 6, 10, v1::LINEAR);
             *a.mutable_blocks(0)->mutable_key() = m.MakeDense("k", 6, 4, v1::LINEAR);
           }},
      {.name = "ValueWidth",
       .options = masked,
       .message = "blocks[0].value: expected a width that 2 heads divide, got 7",
       .change =
           [](Attention& a, RandomModel& m) {
             *a.mutable_blocks(0)->mutable_value() = m.MakeDense("v", 6, 7, v1::LINEAR);
           }},
      {.name = "OutWidth",
       .options = masked,
       .message = "blocks[0].out: expected the input's width 6, got 7",
       .change =
           [](Attention& a, RandomModel& m) {
             *a.mutable_blocks(0)->mutable_out() = m.MakeDense("o", 6, 7, v1::LINEAR);
           }},
      {.name = "LatentWidth",
       .options = {.pads = Attention::MASKED, .latent = 5},
       .message = "blocks[0].key.weight \"k.weight\": expected shape [any, 5], got [6, 6]",
       .change =
           [](Attention& a, RandomModel& m) {
             *a.mutable_blocks(0)->mutable_key() = m.MakeDense("k", 6, 6, v1::LINEAR);
           }},
      {.name = "InputNormWidth",
       .options = masked,
       .message = "input_norm.weight \"n.weight\": expected shape [6], got [5]",
       .change = [](Attention& a, RandomModel& m) { *a.mutable_input_norm() = m.MakeNorm("n", 5); }},
      // Wirings.
      {.name = "BareFfn",
       .options = {.wiring = Attention::BARE, .pads = Attention::MASKED},
       .message = "blocks[0].ffn: expected none in wiring BARE, got one",
       .change =
           [](Attention& a, RandomModel& m) {
             *a.mutable_blocks(0)->add_ffn() = m.MakeDense("f", 6, 6, v1::LINEAR);
           }},
      {.name = "BareAttentionNorm",
       .options = masked,
       .message = "blocks[0].attention_norm: expected none in wiring BARE, got one",
       .change = [](Attention& a, RandomModel&) { a.set_wiring(Attention::BARE); }},
      {.name = "BareFfnNorm",
       .options = {.wiring = Attention::BARE, .pads = Attention::MASKED},
       .message = "blocks[0].ffn_norm: expected none in wiring BARE, got one",
       .change = [](Attention& a,
                    RandomModel& m) { *a.mutable_blocks(0)->mutable_ffn_norm() = m.MakeNorm("n", 6); }},
      {.name = "NoFfn",
       .options = masked,
       .message = "blocks[0].ffn: expected at least one layer, got none",
       .change = [](Attention& a, RandomModel&) { a.mutable_blocks(0)->clear_ffn(); }},
      {.name = "InputScale",
       .options = masked,
       .message = "input_scale: expected a finite number, got inf",
       .change = [](Attention& a,
                    RandomModel&) { a.set_input_scale(std::numeric_limits<float>::infinity()); }},
  };
}

class SelfAttentionErrorsTest : public ::testing::TestWithParam<Fault> {};

TEST_P(SelfAttentionErrorsTest, SaysWhatIsWrong) {
  const RandomModel random_model = MakeModel(GetParam());
  const absl::StatusOr<std::unique_ptr<Model>> model =
      Model::Create(random_model.manifest, random_model.tensors);
  ASSERT_FALSE(model.ok());
  EXPECT_EQ(model.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(std::string(model.status().message()), "layer \"history\": " + GetParam().message);
}

INSTANTIATE_TEST_SUITE_P(All, SelfAttentionErrorsTest, ::testing::ValuesIn(Faults()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace dinghy::reference
