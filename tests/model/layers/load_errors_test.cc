// What Model::Create refuses, and that it names the object, what was expected and what came.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "model/model.h"
#include "tests/testing/reference/random_model.h"

namespace dinghy::reference {
namespace {

using ::testing::HasSubstr;

constexpr int kHistory = 1, kInterest = 2, kTower = 3;  // layers

// item, category -> behaviors -> history (self-attention) -> interest (target attention) -> tower.
RandomModel ValidModel() {
  RandomModel model(5);
  model.AddSequence("clicks", 20);
  model.AddSequence("purchases", 10);
  model.AddTable("item", 30, 6);
  model.AddId("item", v1::CANDIDATE, "item");
  model.AddNumeric("age", v1::USER);
  model.AddId("clicks.item", v1::SEQUENCE, "item");
  model.AddId("purchases.item", v1::SEQUENCE, "item");
  *model.AddLayer("behaviors", {"clicks.item"})->mutable_dense() =
      model.MakeDense("behaviors", 6, 6, v1::RELU);
  *model.AddLayer("history", {"behaviors"})->mutable_self_attention() =
      model.MakeSelfAttention("history", {.width = 6, .heads = 2, .positions = 20, .final_norm = true});
  v1::TargetAttention& attention = *model.AddLayer("interest", {})->mutable_target_attention();
  attention.add_query("item");
  attention.add_keys("history");
  attention.add_values("history");
  *attention.mutable_din() =
      model.MakeDin("interest", {v1::DinScore::QUERY, v1::DinScore::KEY, v1::DinScore::PRODUCT}, 6, {8});
  attention.set_normalization(v1::TargetAttention::SOFTMAX);
  attention.set_empty(v1::ZEROS);
  attention.set_scale(1);
  v1::Mlp& mlp = *model.AddLayer("tower", {"age", "interest", "item"})->mutable_mlp();
  *mlp.add_layers() = model.MakeDense("tower.0", 13, 8, v1::RELU);
  *mlp.add_layers() = model.MakeDense("tower.1", 8, 1, v1::LINEAR);
  model.AddOutput("click", "tower", v1::Output::SIGMOID);
  return model;
}

struct Fault {
  std::string name;
  std::function<void(RandomModel&)> make;
  std::vector<std::string> message;
};

// ctest shows parameters beside the names.
void PrintTo(const Fault& fault, std::ostream* out) { *out << fault.name; }

v1::SelfAttention& History(RandomModel& m) {
  return *m.manifest.mutable_layers(kHistory)->mutable_self_attention();
}
v1::TargetAttention& Interest(RandomModel& m) {
  return *m.manifest.mutable_layers(kInterest)->mutable_target_attention();
}
v1::Mlp& Tower(RandomModel& m) { return *m.manifest.mutable_layers(kTower)->mutable_mlp(); }

std::vector<Fault> Faults() {
  return {
      // Weights.
      {"MissingTensor",
       [](RandomModel& m) { m.tensors.erase("tower.1.weight"); },
       {"layer \"tower\"", "mlp.layers[1].weight", "\"tower.1.weight\"", "no file"}},
      {"WrongInputWidth",
       [](RandomModel& m) {
         m.AddTensor("tower.0.weight", {8, 12}, 1);
       },
       {"layer \"tower\"", "\"tower.0.weight\"", "expected shape [any, 13]", "got [8, 12]"}},
      {"WrongRank",
       [](RandomModel& m) { m.AddTensor("tower.0.weight", {8 * 13}, 1); },
       {"layer \"tower\"", "expected shape [any, 13]", "got [104]"}},
      {"WrongBias",
       [](RandomModel& m) { m.AddTensor("tower.0.bias", {9}, 1); },
       {"layer \"tower\"", "\"tower.0.bias\"", "expected shape [8]", "got [9]"}},
      {"EmptyWeight",
       [](RandomModel& m) {
         m.AddTensor("tower.0.weight", {0, 13}, 1);
       },
       {"layer \"tower\"", "expected shape [any, 13]", "got [0, 13]"}},
      {"MissingBiasField",
       [](RandomModel& m) { Tower(m).mutable_layers(0)->clear_bias(); },
       {"layer \"tower\"", "mlp.layers[0].bias", "got nothing"}},
      {"MissingActivation",
       [](RandomModel& m) { Tower(m).mutable_layers(1)->clear_activation(); },
       {"layer \"tower\"", "mlp.layers[1].activation", "got nothing"}},
      {"NoMlpLayers",
       [](RandomModel& m) { Tower(m).clear_layers(); },
       {"layer \"tower\"", "mlp.layers", "got none"}},
      {"WrongTable",
       [](RandomModel& m) {
         m.AddTensor("item.table", {30, 5}, 1);
       },
       {"feature \"item\"", "\"item.table\"", "expected shape [any, 6]", "got [30, 5]"}},
      {"UnknownTable",
       [](RandomModel& m) { m.manifest.mutable_features(0)->set_table("items"); },
       {"feature \"item\"", "table", "\"items\""}},
      {"UnknownSequence",
       [](RandomModel& m) { m.manifest.mutable_features(2)->set_sequence("views"); },
       {"feature \"clicks.item\"", "sequence", "\"views\""}},
      {"BagUnset",
       [](RandomModel& m) { m.manifest.mutable_features(0)->mutable_id()->clear_bag(); },
       {"feature \"item\"", "bag", "got nothing"}},
      // Inputs and levels.
      {"UnknownInput",
       [](RandomModel& m) { m.manifest.mutable_layers(kTower)->set_inputs(0, "aeg"); },
       {"layer \"tower\"", "inputs", "\"aeg\""}},
      {"LaterInput",
       [](RandomModel& m) { m.manifest.mutable_layers(0)->set_inputs(0, "tower"); },
       {"layer \"behaviors\"", "earlier layer", "\"tower\""}},
      {"NoInputs",
       [](RandomModel& m) { m.manifest.mutable_layers(kTower)->clear_inputs(); },
       {"layer \"tower\"", "inputs", "got none"}},
      {"SequenceAndCandidate",
       [](RandomModel& m) { m.manifest.mutable_layers(kTower)->set_inputs(1, "history"); },
       {"layer \"tower\"", "\"history\" (sequence \"clicks\")", "\"item\" (candidate level)"}},
      {"TwoSequences",
       [](RandomModel& m) { m.manifest.mutable_layers(0)->add_inputs("purchases.item"); },
       {"layer \"behaviors\"", "\"clicks.item\" (sequence \"clicks\")",
        "\"purchases.item\" (sequence \"purchases\")"}},
      {"AddMixesLevels",
       [](RandomModel& m) {
         v1::Add& add = *m.AddLayer("sum", {})->mutable_add();
         add.add_terms()->add_inputs("item");
         add.add_terms()->add_inputs("history");
       },
       {"layer \"sum\"", "\"terms[0]\" (candidate level)", "\"terms[1]\" (sequence \"clicks\")"}},
      {"AddWidths",
       [](RandomModel& m) {
         v1::Multiply& multiply = *m.AddLayer("product", {})->mutable_multiply();
         multiply.add_terms()->add_inputs("item");
         multiply.add_terms()->add_inputs("age");
       },
       {"layer \"product\"", "terms[1]", "expected width 6", "got 1"}},
      {"NoTerms",
       [](RandomModel& m) { m.AddLayer("sum", {})->mutable_add(); },
       {"layer \"sum\"", "terms", "got none"}},
      {"PoolingOfCandidates",
       [](RandomModel& m) { m.AddLayer("pool", {"item"})->mutable_pooling()->set_method(v1::Pooling::MEAN); },
       {"layer \"pool\"", "expected sequence level", "got candidate level"}},
      {"PoolingMethod",
       [](RandomModel& m) { m.AddLayer("pool", {"history"})->mutable_pooling(); },
       {"layer \"pool\"", "method", "got nothing"}},
      {"UnknownKind",
       [](RandomModel& m) { m.AddLayer("magic", {"item"}); },
       {"layer \"magic\"", "kind of layer"}},
      {"DuplicateName",
       [](RandomModel& m) { m.manifest.mutable_layers(kTower)->set_name("item"); },
       {"layer \"item\"", "name of its own"}},
      {"NoFunction",
       [](RandomModel& m) { m.AddLayer("act", {"item"})->mutable_activation(); },
       {"layer \"act\"", "function", "got nothing"}},
      {"NormEpsilon",
       [](RandomModel& m) {
         *m.AddLayer("norm", {"item"})->mutable_layer_norm() = m.MakeNorm("norm", 6);
         m.manifest.mutable_layers(4)->mutable_layer_norm()->clear_epsilon();
       },
       {"layer \"norm\"", "epsilon", "got nothing"}},
      // Self-attention.
      {"HeadsNotDividing",
       [](RandomModel& m) { History(m).set_heads(4); },
       {"layer \"history\"", "blocks[0].query", "a width that 4 heads divide", "got 6"}},
      {"ZeroHeads", [](RandomModel& m) { History(m).set_heads(0); }, {"layer \"history\"", "heads", "got 0"}},
      {"NoHeads",
       [](RandomModel& m) { History(m).clear_heads(); },
       {"layer \"history\"", "heads", "got nothing"}},
      {"NoWiring", [](RandomModel& m) { History(m).clear_wiring(); }, {"layer \"history\"", "wiring"}},
      {"NoCausal", [](RandomModel& m) { History(m).clear_causal(); }, {"layer \"history\"", "causal"}},
      {"NoInputScale",
       [](RandomModel& m) { History(m).clear_input_scale(); },
       {"layer \"history\"", "input_scale", "got nothing"}},
      {"NoBlocks", [](RandomModel& m) { History(m).clear_blocks(); }, {"layer \"history\"", "blocks"}},
      {"PositionsTooShort",
       [](RandomModel& m) {
         m.AddTensor("history.positions", {19, 6}, 1);
       },
       {"layer \"history\"", "positions", "at least 20 rows", "got 19"}},
      {"PositionsOrigin",
       [](RandomModel& m) { History(m).mutable_positions()->clear_origin(); },
       {"layer \"history\"", "positions.origin"}},
      {"BlockEpsilon",
       [](RandomModel& m) { History(m).mutable_blocks(0)->mutable_ffn_norm()->set_epsilon(0); },
       {"layer \"history\"", "blocks[0].ffn_norm.epsilon", "got 0"}},
      {"BlockWidth",
       [](RandomModel& m) {
         *History(m).mutable_blocks(0)->mutable_value() = m.MakeDense("v", 6, 4, v1::LINEAR);
       },
       {"layer \"history\"", "blocks[0].out.weight", "[any, 4]", "got [6, 6]"}},
      {"FfnWidth",
       [](RandomModel& m) { History(m).mutable_blocks(0)->mutable_ffn()->RemoveLast(); },
       {"layer \"history\"", "blocks[0].ffn", "width 6", "got 9"}},
      {"AttentionOverCandidates",
       [](RandomModel& m) { m.manifest.mutable_layers(kHistory)->set_inputs(0, "item"); },
       {"layer \"history\"", "expected sequence level", "got candidate level"}},
      {"NoMaxLength",
       [](RandomModel& m) { m.manifest.mutable_sequences(0)->clear_max_length(); },
       {"layer \"history\"", "max_length", "sequence \"clicks\"", "got 0"}},
      {"HugeMaxLength",
       [](RandomModel& m) { m.manifest.mutable_sequences(0)->set_max_length(1u << 31); },
       {"layer \"history\"", "max_length", "got 2147483648"}},
      // Target attention.
      {"KeysOfCandidates",
       [](RandomModel& m) { Interest(m).set_keys(0, "item"); },
       {"layer \"interest\"", "keys", "expected sequence level", "got candidate level"}},
      {"QueryOfSequence",
       [](RandomModel& m) { Interest(m).set_query(0, "history"); },
       {"layer \"interest\"", "query", "expected user or candidate level", "got sequence \"clicks\""}},
      {"ValuesOfOtherSequence",
       [](RandomModel& m) { Interest(m).set_values(0, "purchases.item"); },
       {"layer \"interest\"", "values", "sequence \"clicks\"", "got sequence \"purchases\""}},
      {"KeyWidth",
       [](RandomModel& m) { Interest(m).add_query("age"); },
       {"layer \"interest\"", "keys", "the query's width 7", "got 6"}},
      {"NoScore", [](RandomModel& m) { Interest(m).clear_din(); }, {"layer \"interest\"", "score"}},
      {"NoNormalization",
       [](RandomModel& m) { Interest(m).clear_normalization(); },
       {"layer \"interest\"", "normalization"}},
      {"NoEmpty", [](RandomModel& m) { Interest(m).clear_empty(); }, {"layer \"interest\"", "empty"}},
      {"NoScale", [](RandomModel& m) { Interest(m).clear_scale(); }, {"layer \"interest\"", "scale"}},
      {"NoParts",
       [](RandomModel& m) { Interest(m).mutable_din()->clear_parts(); },
       {"layer \"interest\"", "din.parts"}},
      {"PartTwice",
       [](RandomModel& m) { Interest(m).mutable_din()->set_parts(2, v1::DinScore::QUERY); },
       {"layer \"interest\"", "din.parts[2]", "each part once", "QUERY"}},
      {"PartUnset",
       [](RandomModel& m) { Interest(m).mutable_din()->set_parts(1, v1::DinScore::PART_UNSPECIFIED); },
       {"layer \"interest\"", "din.parts[1]"}},
      {"ScoreWidth",
       [](RandomModel& m) { Interest(m).mutable_din()->mutable_layers()->RemoveLast(); },
       {"layer \"interest\"", "din.layers[0]", "width 1", "got 8"}},
      // Outputs.
      {"OutputWidth",
       [](RandomModel& m) { Tower(m).mutable_layers()->RemoveLast(); },
       {"output \"click\"", "\"tower\"", "width 1", "got 8"}},
      {"OutputLevel",
       [](RandomModel& m) {
         *m.AddLayer("last", {"history"})->mutable_dense() = m.MakeDense("last", 6, 1, v1::LINEAR);
         m.manifest.mutable_outputs(0)->set_input("last");
       },
       {"output \"click\"", "\"last\"", "user or candidate level", "got sequence \"clicks\""}},
      {"OutputOfFeature",
       [](RandomModel& m) { m.manifest.mutable_outputs(0)->set_input("age"); },
       {"output \"click\"", "expected a layer", "feature \"age\""}},
      {"OutputUnknown",
       [](RandomModel& m) { m.manifest.mutable_outputs(0)->set_input("towr"); },
       {"output \"click\"", "expected a layer", "\"towr\""}},
      {"OutputLink",
       [](RandomModel& m) { m.manifest.mutable_outputs(0)->clear_link(); },
       {"output \"click\"", "link"}},
      {"NoOutputs", [](RandomModel& m) { m.manifest.clear_outputs(); }, {"outputs", "got none"}},
  };
}

TEST(LoadErrorsTest, TheValidModelLoads) {
  const RandomModel random_model = ValidModel();
  const absl::StatusOr<std::unique_ptr<Model>> model =
      Model::Create(random_model.manifest, random_model.tensors);
  EXPECT_TRUE(model.ok()) << model.status();
}

class LoadErrorsTest : public ::testing::TestWithParam<Fault> {};

TEST_P(LoadErrorsTest, NamesWhatIsWrong) {
  RandomModel random_model = ValidModel();
  GetParam().make(random_model);
  const absl::StatusOr<std::unique_ptr<Model>> model =
      Model::Create(random_model.manifest, random_model.tensors);
  ASSERT_FALSE(model.ok());
  EXPECT_EQ(model.status().code(), absl::StatusCode::kInvalidArgument);
  for (const std::string& part : GetParam().message) {
    EXPECT_THAT(std::string(model.status().message()), HasSubstr(part));
  }
}

INSTANTIATE_TEST_SUITE_P(All, LoadErrorsTest, ::testing::ValuesIn(Faults()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace dinghy::reference
