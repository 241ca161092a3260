// What pad behaviors have as each value: seen where pooling returns it for an empty history.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/testing/reference/compare.h"

namespace dinghy::reference {
namespace {

using ::testing::HasSubstr;

void AddPooling(RandomModel& model, const std::string& input, v1::Pooling::Method method) {
  v1::Pooling& pooling = *model.AddLayer("pooled_" + input, {input})->mutable_pooling();
  pooling.set_method(method);
  pooling.set_empty(v1::PAD_VALUE);
}

// Features of all kinds at one padded sequence, and a chain of layers over them.
RandomModel PaddedModel(v1::Sequence::Pad pad) {
  RandomModel model(7);
  model.AddSequence("views", 9, v1::Sequence::NONE);
  model.AddSequence("clicks", 20, pad);
  model.AddTable("item", 30, 7);
  model.AddTable("tag", 9, 3);
  model.AddId("views.item", v1::SEQUENCE, "item");
  model.AddId("clicks.item", v1::SEQUENCE, "item")->mutable_id()->set_pad_row(29);
  model.AddNumeric("clicks.price", v1::SEQUENCE);
  model.AddVector("clicks.picture", v1::SEQUENCE, 3);
  model.AddId("clicks.tags", v1::SEQUENCE, "tag", v1::IdFeature::BAG_MEAN);
  model.AddTimeSince("clicks.time", "tag");
  model.AddNumeric("age", v1::USER);
  return model;
}

void AddOut(RandomModel& model, const std::string& input, int width) {
  *model.AddLayer("out", {input})->mutable_dense() = model.MakeDense("out", width, 1, v1::LINEAR);
  model.AddOutput("out", "out", v1::Output::RAW);
}

TEST(PadRowTest, OfFeaturesAndRowwiseLayers) {
  for (const v1::Sequence::Pad pad : {v1::Sequence::LEFT, v1::Sequence::RIGHT}) {
    RandomModel model = PaddedModel(pad);
    *model.AddLayer("dense", {"clicks.item", "clicks.price", "clicks.picture"})->mutable_dense() =
        model.MakeDense("dense", 11, 10, v1::TANH);
    v1::Add& add = *model.AddLayer("add", {})->mutable_add();
    add.add_terms()->add_inputs("dense");
    v1::InputList& term = *add.add_terms();
    term.add_inputs("clicks.tags");
    term.add_inputs("clicks.item");
    v1::Multiply& multiply = *model.AddLayer("multiply", {})->mutable_multiply();
    multiply.add_terms()->add_inputs("dense");
    multiply.add_terms()->add_inputs("add");
    *model.AddLayer("norm", {"multiply", "clicks.picture"})->mutable_layer_norm() =
        model.MakeNorm("norm", 13);
    model.AddLayer("activation", {"norm"})->mutable_activation()->set_function(v1::SIGMOID);
    v1::Mlp& mlp = *model.AddLayer("mlp", {"activation", "add"})->mutable_mlp();
    *mlp.add_layers() = model.MakeDense("mlp.0", 23, 17, v1::RELU);
    *mlp.add_layers() = model.MakeDense("mlp.1", 17, 5, v1::SILU);
    v1::Dot& dot = *model.AddLayer("dot", {})->mutable_dot();
    dot.add_left("dense");
    dot.add_right("add");
    *model.AddLayer("batch_norm", {"mlp", "clicks.price"})->mutable_batch_norm() =
        model.MakeBatchNorm("batch_norm", 6);
    AddPooling(model, "clicks.item", v1::Pooling::LAST);
    AddPooling(model, "clicks.tags", v1::Pooling::MEAN);
    AddPooling(model, "norm", v1::Pooling::SUM);
    AddPooling(model, "mlp", v1::Pooling::MEAN);
    AddPooling(model, "batch_norm", v1::Pooling::LAST);
    AddPooling(model, "dot", v1::Pooling::LAST);
    // What has no pad row may still be computed for real behaviors.
    *model.AddLayer("timed", {"clicks.time", "age"})->mutable_dense() =
        model.MakeDense("timed", 4, 3, v1::LINEAR);
    v1::Pooling& pooled = *model.AddLayer("pooled_timed", {"timed"})->mutable_pooling();
    pooled.set_method(v1::Pooling::MEAN);
    pooled.set_empty(v1::ZEROS);
    AddOut(model, "pooled_mlp", 5);
    const std::unique_ptr<Model> created = CreateModel(model);
    ASSERT_NE(created, nullptr);
    for (const int length : {0, 1, 2, 17, 20}) {
      SCOPED_TRACE(::testing::Message() << v1::Sequence::Pad_Name(pad) << ", length " << length);
      CompareWithReference(model, *created,
                           RandomBatch(model, {.candidates = 2, .lengths = {3, length}}, 11));
    }
  }
}

TEST(PadRowTest, PoolsToZerosOrToThePadRow) {
  RandomModel model = PaddedModel(v1::Sequence::LEFT);
  model.AddLayer("zeros", {"clicks.item"})->mutable_pooling()->set_method(v1::Pooling::MEAN);
  model.manifest.mutable_layers(0)->mutable_pooling()->set_empty(v1::ZEROS);
  AddPooling(model, "clicks.item", v1::Pooling::SUM);
  AddOut(model, "zeros", 7);
  const std::unique_ptr<Model> created = CreateModel(model);
  ASSERT_NE(created, nullptr);
  ops::Scratch scratch;
  ModelOutputs outputs;
  created->Score(RandomBatch(model, {.candidates = 1, .lengths = {3, 0}}, 11),
                 {.attention = false, .debug_names = {"zeros", "pooled_clicks.item"}}, scratch, outputs);
  EXPECT_EQ(outputs.debug[0].values, std::vector<float>(7, 0.0f));
  const float* pad = model.tensors["item.table"].data.get() + 29 * 7;
  EXPECT_EQ(outputs.debug[1].values, std::vector<float>(pad, pad + 7));
}

// The error of a model whose `input` is asked for its pad row.
std::string ErrorOf(const std::string& input) {
  RandomModel model = PaddedModel(v1::Sequence::LEFT);
  *model.AddLayer("timed", {"clicks.item", "clicks.time"})->mutable_layer_norm() =
      model.MakeNorm("timed", 10);
  *model.AddLayer("personal", {"clicks.price", "age"})->mutable_layer_norm() = model.MakeNorm("personal", 2);
  *model.AddLayer("history", {"clicks.tags"})->mutable_self_attention() =
      model.MakeSelfAttention("history", {.width = 3, .pads = v1::SelfAttention::MASKED});
  v1::Multiply& multiply = *model.AddLayer("after", {})->mutable_multiply();
  multiply.add_terms()->add_inputs("clicks.picture");
  multiply.add_terms()->add_inputs("history");
  AddPooling(model, input, v1::Pooling::MEAN);
  AddOut(model, "pooled_" + input, 1);
  const absl::StatusOr<std::unique_ptr<Model>> created = Model::Create(model.manifest, model.tensors);
  return created.ok() ? "" : std::string(created.status().message());
}

TEST(PadRowTest, SaysWhyThereIsNone) {
  constexpr char kExpected[] = "inputs: expected inputs that pad behaviors have, got ";
  EXPECT_EQ(ErrorOf("views.item"), std::string("layer \"pooled_views.item\": ") + kExpected +
                                       "\"views.item\", whose sequence \"views\" has pad NONE");
  EXPECT_EQ(ErrorOf("clicks.time"), std::string("layer \"pooled_clicks.time\": ") + kExpected +
                                        "\"clicks.time\", a time, which pad behaviors do not have");
  EXPECT_EQ(ErrorOf("timed"),
            std::string("layer \"pooled_timed\": ") + kExpected +
                "\"timed\", which reads \"clicks.time\", a time, which pad behaviors do not have");
  EXPECT_EQ(ErrorOf("personal"), std::string("layer \"pooled_personal\": ") + kExpected +
                                     "\"personal\", which reads \"age\", which is of user level");
  EXPECT_EQ(ErrorOf("history"),
            std::string("layer \"pooled_history\": ") + kExpected + "\"history\", whose pads are MASKED");
  EXPECT_EQ(ErrorOf("after"), std::string("layer \"pooled_after\": ") + kExpected +
                                  "\"after\", which reads \"history\", whose pads are MASKED");
}

TEST(PadRowTest, WhatAnEmptyHistoryPoolsToMustBeSaid) {
  RandomModel model = PaddedModel(v1::Sequence::RIGHT);
  model.AddLayer("pooled", {"clicks.item"})->mutable_pooling()->set_method(v1::Pooling::MEAN);
  AddOut(model, "pooled", 7);
  EXPECT_EQ(std::string(Model::Create(model.manifest, model.tensors).status().message()),
            "layer \"pooled\": pooling.empty: expected ZEROS or PAD_VALUE, since sequence \"clicks\" is "
            "padded, got "
            "nothing");
}

TEST(PadRowTest, NeedsThePadRowOfTheId) {
  const auto error = [](auto change) {
    RandomModel model = PaddedModel(v1::Sequence::RIGHT);
    change(*model.manifest.mutable_features(1)->mutable_id());
    AddPooling(model, "clicks.item", v1::Pooling::MEAN);
    AddOut(model, "pooled_clicks.item", 7);
    return std::string(Model::Create(model.manifest, model.tensors).status().message());
  };
  EXPECT_EQ(error([](v1::IdFeature& id) { id.clear_pad_row(); }),
            "feature \"clicks.item\": id.pad_row: expected one, since the sequence is padded, got nothing");
  EXPECT_EQ(error([](v1::IdFeature& id) { id.set_pad_row(30); }),
            "feature \"clicks.item\": id.pad_row: expected a row of the table, which has 30, got 30");
}

TEST(PadRowTest, NeedsThePadOfTheSequence) {
  RandomModel model = PaddedModel(v1::Sequence::PAD_UNSPECIFIED);
  AddPooling(model, "clicks.item", v1::Pooling::MEAN);
  AddOut(model, "pooled_clicks.item", 7);
  EXPECT_THAT(std::string(Model::Create(model.manifest, model.tensors).status().message()),
              HasSubstr("expected pad NONE, LEFT or RIGHT of sequence \"clicks\", got nothing"));
}

}  // namespace
}  // namespace dinghy::reference
