// Embedding tables in F16 and I8: as the F32 table of the same values, or refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "model/safetensors.h"
#include "tests/testing/half.h"
#include "tests/testing/reference/compare.h"
#include "tests/testing/reference/random_model.h"

namespace dinghy::reference {
namespace {

using ::testing::HasSubstr;

// Single ids, bags and a padded sequence, over tables of odd and even widths.
RandomModel FeatureModel() {
  RandomModel model(3);
  model.AddSequence("clicks", 12, v1::Sequence::LEFT);
  model.AddTable("item", 23, 7);
  model.AddTable("tag", 11, 16);
  model.AddId("item", v1::CANDIDATE, "item");
  model.AddId("tags", v1::CANDIDATE, "tag", v1::IdFeature::BAG_SUM);
  model.AddId("interests", v1::USER, "tag", v1::IdFeature::BAG_MEAN);
  model.AddId("clicks.item", v1::SEQUENCE, "item")->mutable_id()->set_pad_row(22);
  v1::Pooling& pooling = *model.AddLayer("history", {"clicks.item"})->mutable_pooling();
  pooling.set_method(v1::Pooling::SUM);
  pooling.set_empty(v1::PAD_VALUE);
  *model.AddLayer("tower", {"item", "tags", "interests", "history"})->mutable_dense() =
      model.MakeDense("tower", 7 + 16 + 16 + 7, 1, v1::LINEAR);
  model.AddOutput("click", "tower", v1::Output::SIGMOID);
  return model;
}

// Gives each table random elements of `dtype`, or the same values as F32.
void FillTables(RandomModel& model, DType dtype, bool as_f32) {
  std::mt19937 random(17);
  for (v1::Table& table : *model.manifest.mutable_tables()) {
    Tensor& tensor = model.tensors[table.tensor()];
    const int64_t rows = tensor.shape[0], width = tensor.shape[1];
    auto f16 = AllocateElements<uint16_t>(tensor.size);
    auto i8 = AllocateElements<int8_t>(tensor.size);
    const std::string scale_name = table.name() + ".scale";
    model.AddTensor(scale_name, {rows}, 0.01);
    const float* scale = model.tensors[scale_name].data.get();
    for (int64_t i = 0; i < tensor.size; ++i) {
      f16[i] = static_cast<uint16_t>((random() & 0x83FF) | (9 + random() % 8) << 10);  // 2^-6 to 4
      i8[i] = static_cast<int8_t>(random());
      tensor.data[i] =
          dtype == DType::kF16 ? HalfToFloat(f16[i]) : static_cast<float>(i8[i]) * scale[i / width];
    }
    if (as_f32) continue;
    tensor.dtype = dtype;
    tensor.data = nullptr;
    if (dtype == DType::kF16) {
      tensor.f16 = std::move(f16);
    } else {
      tensor.i8 = std::move(i8);
      table.set_scale(scale_name);
    }
  }
}

class TableTypesTest : public ::testing::TestWithParam<DType> {};

TEST_P(TableTypesTest, HasTheBitsOfAnF32TableOfTheSameValues) {
  RandomModel narrow = FeatureModel(), wide = FeatureModel();
  FillTables(narrow, GetParam(), /*as_f32=*/false);
  FillTables(wide, GetParam(), /*as_f32=*/true);
  const std::unique_ptr<Model> narrow_model = CreateModel(narrow), wide_model = CreateModel(wide);
  ASSERT_NE(narrow_model, nullptr);
  ASSERT_NE(wide_model, nullptr);
  const std::vector<std::string> names = {"item", "tags", "interests", "clicks.item", "history"};
  for (const int candidates : {0, 1, 2, 17, 64, 65}) {
    for (const int length : {0, 1, 12}) {
      SCOPED_TRACE(::testing::Message() << candidates << " candidates, " << length << " behaviors");
      const FeatureBatch batch = RandomBatch(wide, {.candidates = candidates, .lengths = {length}}, 5);
      ops::Scratch scratch;
      ModelOutputs narrow_outputs, wide_outputs;
      narrow_model->Score(batch, {.debug_names = names}, scratch, narrow_outputs);
      wide_model->Score(batch, {.debug_names = names}, scratch, wide_outputs);
      EXPECT_EQ(narrow_outputs.scores, wide_outputs.scores);
      for (size_t i = 0; i < names.size(); ++i) {
        EXPECT_EQ(narrow_outputs.debug[i].values, wide_outputs.debug[i].values) << names[i];
      }
      CompareWithReference(wide, *narrow_model, batch);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, TableTypesTest, ::testing::Values(DType::kF16, DType::kI8),
                         [](const auto& info) { return DTypeName(info.param); });

struct Fault {
  std::string name;
  DType dtype;
  std::function<void(RandomModel&)> make;
  std::vector<std::string> message;
};
void PrintTo(const Fault& fault, std::ostream* out) { *out << fault.name; }

void SetScale(RandomModel& model, float value) { model.tensors["item.scale"].data[5] = value; }

std::vector<Fault> Faults() {
  const std::string table = "feature \"item\": table \"item\": ";
  return {
      {"I8WithoutScale",
       DType::kI8,
       [](RandomModel& m) { m.manifest.mutable_tables(0)->clear_scale(); },
       {table, "scale: expected a tensor's name, since tensor \"item.table\" is I8, got nothing"}},
      {"F16WithScale",
       DType::kF16,
       [](RandomModel& m) { m.manifest.mutable_tables(0)->set_scale("item.scale"); },
       {table, "scale: expected none, since tensor \"item.table\" is F16, got \"item.scale\""}},
      {"F32WithScale",
       DType::kF16,
       [](RandomModel& m) {
         m.AddTensor("item.table", {23, 7}, 1);
         m.manifest.mutable_tables(0)->set_scale("item.scale");
       },
       {table, "scale: expected none, since tensor \"item.table\" is F32"}},
      {"ScaleInNoFile",
       DType::kI8,
       [](RandomModel& m) { m.tensors.erase("item.scale"); },
       {table, "scale: expected a tensor of the bundle, got \"item.scale\""}},
      {"ScaleLength",
       DType::kI8,
       [](RandomModel& m) { m.AddTensor("item.scale", {22}, 1); },
       {table, "scale \"item.scale\": expected shape [23], got [22]"}},
      {"ScaleRank",
       DType::kI8,
       [](RandomModel& m) {
         m.AddTensor("item.scale", {23, 1}, 1);
       },
       {table, "scale \"item.scale\": expected shape [23], got [23, 1]"}},
      {"ScaleType",
       DType::kI8,
       [](RandomModel& m) {
         Tensor& scale = m.tensors["item.scale"];
         scale.dtype = DType::kF16;
         scale.f16 = AllocateElements<uint16_t>(23);
         scale.data = nullptr;
       },
       {table, "scale \"item.scale\": expected dtype F32", "got F16"}},
      {"ScaleNan",
       DType::kI8,
       [](RandomModel& m) { SetScale(m, std::numeric_limits<float>::quiet_NaN()); },
       {table, "scale \"item.scale\": expected numbers whose product with -128 is finite",
        "got nan in row 5"}},
      {"ScaleOverflows",
       DType::kI8,
       [](RandomModel& m) { SetScale(m, 3e36f); },
       {table, "scale \"item.scale\"", "got 3e+36 in row 5"}},
      {"TableShape",
       DType::kI8,
       [](RandomModel& m) {
         m.tensors["item.table"].shape = {7, 23};
       },
       {table, "tensor \"item.table\": expected shape [any, 7], got [7, 23]"}},
      {"PadRow",
       DType::kI8,
       [](RandomModel& m) { m.manifest.mutable_features(3)->mutable_id()->set_pad_row(23); },
       {"feature \"clicks.item\"", "id.pad_row", "which has 23, got 23"}},
      {"WeightOfALayer",
       DType::kF16,
       [](RandomModel& m) {
         Tensor& weight = m.tensors["tower.weight"];
         weight.dtype = DType::kF16;
         weight.f16 = AllocateElements<uint16_t>(weight.size);
         weight.data = nullptr;
       },
       {"layer \"tower\": ",
        "weight \"tower.weight\": expected dtype F32, as all but embedding tables, got F16"}},
      {"BiasOfALayer",
       DType::kI8,
       [](RandomModel& m) {
         Tensor& bias = m.tensors["tower.bias"];
         bias.dtype = DType::kI8;
         bias.i8 = AllocateElements<int8_t>(bias.size);
         bias.data = nullptr;
       },
       {"layer \"tower\": ", "bias \"tower.bias\": expected dtype F32", "got I8"}},
  };
}

class TableFaultsTest : public ::testing::TestWithParam<Fault> {};

TEST_P(TableFaultsTest, IsRefused) {
  RandomModel model = FeatureModel();
  FillTables(model, GetParam().dtype, /*as_f32=*/false);
  GetParam().make(model);
  const absl::Status status = Model::Create(model.manifest, model.tensors).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  for (const std::string& part : GetParam().message) {
    EXPECT_THAT(std::string(status.message()), HasSubstr(part));
  }
}

INSTANTIATE_TEST_SUITE_P(All, TableFaultsTest, ::testing::ValuesIn(Faults()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace dinghy::reference
