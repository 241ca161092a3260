#include <functional>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "gtest/gtest.h"
#include "model/bundle.h"
#include "tests/model/manifest_expectations.h"
#include "tests/testing/test_bundle.h"

namespace dinghy {
namespace {

using ::google::protobuf::FieldDescriptor;
using ::google::protobuf::Message;
using ::google::protobuf::Reflection;
using ::testing::HasSubstr;
using ::testing::StartsWith;

v1::Feature& AddUserFeature(v1::BundleManifest& manifest, const std::string& name) {
  v1::Feature& feature = *manifest.add_features();
  feature.set_name(name);
  feature.set_level(v1::USER);
  feature.set_from(v1::REQUEST);
  return feature;
}

void FillHashed(v1::Feature& feature) {
  feature.set_table("segment");
  feature.set_missing_id(v1::PAD_ROW);
  v1::IdFeature& id = *feature.mutable_id();
  id.set_type(v1::IdFeature::INT64);
  id.set_bag(v1::IdFeature::BAG_MEAN);
  id.set_oov_row(1);
  id.set_unknown(v1::OOV_ROW);
  id.set_negative(v1::REFUSE);
}

void FillBatchNorm(v1::BatchNorm& norm) {
  norm.set_mean("bn.mean");
  norm.set_variance("bn.variance");
  norm.set_weight("");
  norm.set_bias("bn.bias");
  norm.set_epsilon(1e-5f);
}

// A manifest that uses every kind of feature, vocabulary and layer.
v1::BundleManifest RichManifest() {
  v1::BundleManifest manifest = MakeTestManifest({.self_attention = true});

  v1::Feature& farm = AddUserFeature(manifest, "farm");
  FillHashed(farm);
  v1::FarmHashVocabulary& farm_hash = *farm.mutable_id()->mutable_farm_hash();
  farm_hash.set_buckets(3);
  farm_hash.set_first_row(2);
  farm_hash.set_input(v1::TEXT);
  v1::HashExample& text = *farm_hash.add_examples();
  text.set_text("");
  text.set_row(2);

  v1::Feature& murmur = AddUserFeature(manifest, "murmur");
  FillHashed(murmur);
  v1::Murmur3Vocabulary& murmur3 = *murmur.mutable_id()->mutable_murmur3();
  murmur3.set_seed(0);
  murmur3.set_buckets(3);
  murmur3.set_first_row(2);
  murmur3.set_input(v1::INT64_LE);
  murmur3.set_remainder(v1::Murmur3Vocabulary::FLOOR);
  v1::HashExample& integer = *murmur3.add_examples();
  integer.set_integer(0);
  integer.set_row(2);

  AddUserFeature(manifest, "vector").mutable_vector()->set_dim(16);

  v1::Layer& norm = *manifest.add_layers();
  norm.set_name("norm");
  norm.add_inputs("vector");
  norm.mutable_layer_norm()->set_weight("norm.weight");
  norm.mutable_layer_norm()->set_bias("norm.bias");
  norm.mutable_layer_norm()->set_epsilon(0);
  v1::Layer& mean = *manifest.add_layers();
  mean.set_name("mean");
  mean.add_inputs("history");
  mean.mutable_pooling()->set_method(v1::Pooling::MEAN);
  v1::Layer& product = *manifest.add_layers();
  product.set_name("product");
  product.mutable_multiply()->add_terms()->add_inputs("mean");
  v1::InputList& term = *product.mutable_multiply()->add_terms();
  term.add_inputs("item");
  term.add_inputs("category");
  v1::Layer& relu = *manifest.add_layers();
  relu.set_name("relu");
  relu.add_inputs("product");
  relu.mutable_activation()->set_function(v1::RELU);
  v1::Layer& batch_norm = *manifest.add_layers();
  batch_norm.set_name("batch_norm");
  batch_norm.add_inputs("relu");
  FillBatchNorm(*batch_norm.mutable_batch_norm());
  v1::Layer& dot = *manifest.add_layers();
  dot.set_name("dot");
  dot.mutable_dot()->add_left("batch_norm");
  dot.mutable_dot()->add_right("product");
  v1::Layer& dice = *manifest.add_layers();
  dice.set_name("dice");
  dice.add_inputs("dot");
  v1::Dense& dense = *dice.mutable_dense();
  dense.set_weight("dice.weight");
  dense.set_bias("");
  dense.set_activation(v1::DICE);
  FillBatchNorm(*dense.mutable_norm());
  dense.mutable_parameters()->set_alpha("dice.alpha");
  FillBatchNorm(*dense.mutable_parameters()->mutable_norm());
  v1::Layer& leaky = *manifest.add_layers();
  leaky.set_name("leaky");
  leaky.add_inputs("dice");
  leaky.mutable_activation()->set_function(v1::LEAKY_RELU);
  leaky.mutable_activation()->mutable_parameters()->set_slope(0.1f);
  const auto add_output = [&manifest](const std::string& name) -> v1::Output& {
    v1::Output& output = *manifest.add_outputs();
    output.set_name(name);
    output.set_input("leaky");
    output.set_link(v1::Output::SIGMOID);
    return output;
  };
  add_output("downsampled").mutable_negative_downsampling()->set_rate(0.1);
  v1::Platt& platt = *add_output("platt").mutable_platt();
  platt.set_slope(2);
  platt.set_intercept(-1);
  v1::PiecewiseLinear& line = *add_output("piecewise").mutable_piecewise_linear();
  line.add_x(0.5);
  line.add_y(0.25);
  return manifest;
}

// Fields that may be absent, and still the manifest is whole.
const std::set<std::string>& MayBeAbsent() {
  static const auto& names = *new std::set<std::string>{
      "dinghy.v1.BundleManifest.provenance",
      "dinghy.v1.Feature.missing",  // then a request without the value is refused
      "dinghy.v1.Feature.missing_id",
      "dinghy.v1.TimeSince.boundaries_ms",  // one row for all times
      "dinghy.v1.SelfAttention.positions",
      "dinghy.v1.SelfAttention.final_norm",
      "dinghy.v1.Dense.norm",
      "dinghy.v1.Dense.parameters",  // what an activation needs is checked with its layer
      "dinghy.v1.ActivationLayer.parameters",
      "dinghy.v1.ActivationParameters.slope",
      "dinghy.v1.ActivationParameters.alpha",
      "dinghy.v1.ActivationParameters.norm",
      "dinghy.v1.Output.negative_downsampling",
      "dinghy.v1.Output.platt",
      "dinghy.v1.Output.piecewise_linear",
  };
  return names;
}

// A field that is set, and how to clear it in another copy of the manifest.
struct SetField {
  std::string object;  // as errors name it
  std::string path;
  const FieldDescriptor* field;
  std::function<void(v1::BundleManifest&)> clear;
};

using Find = std::function<Message&(v1::BundleManifest&)>;

// Appends all set fields of `message`, which is what `find` finds in a copy of the manifest.
void CollectFields(const Message& message, const std::string& object, const std::string& prefix,
                   const Find& find, std::vector<SetField>& out) {
  const Reflection& reflection = *message.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    const std::string path = prefix + field->json_name();
    out.push_back({object, path, field, [find, field](v1::BundleManifest& manifest) {
                     Message& parent = find(manifest);
                     parent.GetReflection()->ClearField(&parent, field);
                   }});
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE || field->is_map() ||
        field->name() == "provenance") {
      continue;
    }
    if (!field->is_repeated()) {
      CollectFields(
          reflection.GetMessage(message, field), object, path + ".",
          [find, field](v1::BundleManifest& manifest) -> Message& {
            Message& parent = find(manifest);
            return *parent.GetReflection()->MutableMessage(&parent, field);
          },
          out);
      continue;
    }
    for (int i = 0; i < reflection.FieldSize(message, field); ++i) {
      const Find find_item = [find, field, i](v1::BundleManifest& manifest) -> Message& {
        Message& parent = find(manifest);
        return *parent.GetReflection()->MutableRepeatedMessage(&parent, field, i);
      };
      const Message& item = reflection.GetRepeatedMessage(message, field, i);
      if (message.GetDescriptor() == v1::BundleManifest::descriptor()) {
        const std::string name =
            item.GetReflection()->GetString(item, item.GetDescriptor()->FindFieldByName("name"));
        const std::string kind = field->name().substr(0, field->name().size() - 1);
        CollectFields(item, absl::StrCat(kind, " \"", name, "\""), "", find_item, out);
      } else {
        CollectFields(item, object, absl::StrCat(path, "[", i, "]."), find_item, out);
      }
    }
  }
}

std::vector<SetField> AllFields(const v1::BundleManifest& manifest) {
  std::vector<SetField> fields;
  CollectFields(
      manifest, "bundle.json", "", [](v1::BundleManifest& copy) -> Message& { return copy; }, fields);
  return fields;
}

TEST(ManifestTest, AcceptsWholeManifests) {
  EXPECT_EQ(CheckManifest(MakeTestManifest({})), absl::OkStatus());
  EXPECT_EQ(CheckManifest(MakeTestManifest({.self_attention = true})), absl::OkStatus());
  EXPECT_EQ(CheckManifest(RichManifest()), absl::OkStatus());
}

// Each field in turn is cleared; the error names the object and the field.
TEST(ManifestTest, RefusesEachMissingField) {
  const v1::BundleManifest whole = RichManifest();
  const std::vector<SetField> fields = AllFields(whole);
  EXPECT_GT(fields.size(), 200u);
  std::set<std::string> absent;
  for (const SetField& set_field : fields) {
    SCOPED_TRACE(absl::StrCat(set_field.object, ": ", set_field.path));
    v1::BundleManifest manifest = whole;
    set_field.clear(manifest);
    const absl::Status status = CheckManifest(manifest);
    const std::string& name = set_field.field->full_name();
    if (MayBeAbsent().contains(name)) {
      EXPECT_EQ(status, absl::OkStatus());
      absent.insert(name);
      continue;
    }
    ASSERT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    const std::string message(status.message());
    if (name == "dinghy.v1.BundleManifest.sequences" || name == "dinghy.v1.BundleManifest.tables") {
      // A model may have none; this one has features that name them.
      EXPECT_THAT(message, HasSubstr(absl::StrCat("is not among the ", set_field.field->name())));
      continue;
    }
    if (set_field.path == "name" && set_field.object != "bundle.json") {
      EXPECT_THAT(message, HasSubstr("]: name is missing"));
      continue;
    }
    const auto* oneof = set_field.field->real_containing_oneof();
    if (oneof != nullptr) {
      const std::string prefix = set_field.path.substr(0, set_field.path.rfind('.') + 1);
      EXPECT_THAT(message, StartsWith(absl::StrCat(set_field.object, ": ", prefix, oneof->name(),
                                                   " is missing: expected ")));
      continue;
    }
    EXPECT_THAT(message, StartsWith(absl::StrCat(set_field.object, ": ", set_field.path, " is missing")));
  }
  EXPECT_EQ(absent, MayBeAbsent());
}

// An enum that the JSON gave as a number that means nothing.
TEST(ManifestTest, RefusesUnknownEnumNumbers) {
  const v1::BundleManifest whole = RichManifest();
  int enums = 0;
  for (const SetField& set_field : AllFields(whole)) {
    if (set_field.field->cpp_type() != FieldDescriptor::CPPTYPE_ENUM) continue;
    ++enums;
  }
  EXPECT_GT(enums, 30);
  v1::BundleManifest manifest = whole;
  FeatureOf(manifest, "item").set_level(static_cast<v1::Level>(77));
  ExpectInvalid(manifest, "feature \"item\": level: unknown Level 77");
  manifest = whole;
  LayerOf(manifest, "interest")
      .mutable_target_attention()
      ->mutable_din()
      ->set_parts(2, static_cast<v1::DinScore::Part>(9));
  ExpectInvalid(manifest, "layer \"interest\": targetAttention.din.parts[2]: unknown Part 9");
  manifest = whole;
  FeatureOf(manifest, "category").set_missing_id(v1::ID_POLICY_UNSPECIFIED);
  ExpectInvalid(manifest, "feature \"category\": missingId is missing");
  manifest = whole;
  manifest.set_precision(static_cast<v1::Precision>(3));
  ExpectInvalid(manifest, "bundle.json: precision: unknown Precision 3");
}

TEST(ManifestTest, RefusesNumbersThatAreNotFinite) {
  v1::BundleManifest manifest = RichManifest();
  LayerOf(manifest, "interest").mutable_target_attention()->set_scale(std::numeric_limits<float>::infinity());
  ExpectInvalid(manifest, "layer \"interest\": targetAttention.scale: expected a finite number, got inf");
  manifest = RichManifest();
  FeatureOf(manifest, "age").mutable_numeric()->set_mean(std::numeric_limits<double>::quiet_NaN());
  ExpectInvalid(manifest, "feature \"age\": numeric.mean: expected a finite number");
}

TEST(ManifestTest, TakesBiaslessDense) {
  v1::BundleManifest manifest = MakeTestManifest({});
  LayerOf(manifest, "buy").mutable_dense()->set_bias("");
  EXPECT_EQ(CheckManifest(manifest), absl::OkStatus());
}

TEST(ManifestTest, NeedsRowsOnlyWherePoliciesUseThem) {
  v1::BundleManifest manifest = MakeTestManifest({});
  v1::Feature& item = FeatureOf(manifest, "item");
  item.mutable_id()->set_negative(v1::OOV_ROW);
  item.mutable_id()->clear_pad_row();
  EXPECT_EQ(CheckManifest(manifest), absl::OkStatus());
  item.set_missing_id(v1::PAD_ROW);
  ExpectInvalid(manifest, "feature \"item\": id.padRow is missing");
  item.mutable_id()->set_bag(v1::IdFeature::BAG_SUM);  // an empty bag needs no row
  manifest.set_item_feature("category");
  FeatureOf(manifest, "category").set_from(v1::REQUEST);
  EXPECT_EQ(CheckManifest(manifest), absl::OkStatus());
}

TEST(ManifestTest, NeedsNormsAndFfnButInWiringBare) {
  v1::BundleManifest manifest = RichManifest();
  v1::SelfAttention& attention = *LayerOf(manifest, "history").mutable_self_attention();
  v1::SelfAttention::Block& block = *attention.mutable_blocks(0);
  block.clear_ffn();
  ExpectInvalid(manifest, "layer \"history\": selfAttention.blocks[0].ffn is missing");
  block.clear_ffn_norm();
  ExpectInvalid(manifest, "layer \"history\": selfAttention.blocks[0].ffnNorm is missing");
  block.clear_attention_norm();
  ExpectInvalid(manifest, "layer \"history\": selfAttention.blocks[0].attentionNorm is missing");
  attention.set_wiring(v1::SelfAttention::BARE);
  EXPECT_EQ(CheckManifest(manifest), absl::OkStatus());
}

TEST(ManifestTest, NeedsEachFieldOfSinusoidalPositions) {
  v1::BundleManifest manifest = RichManifest();
  v1::SelfAttention& attention = *LayerOf(manifest, "history").mutable_self_attention();
  v1::SinusoidalPositions& positions = *attention.mutable_sinusoidal();
  constexpr char kPath[] = "layer \"history\": selfAttention.sinusoidal.";
  ExpectInvalid(manifest, absl::StrCat(kPath, "origin is missing"));
  positions.set_origin(v1::FROM_OLDEST);
  ExpectInvalid(manifest, absl::StrCat(kPath, "first is missing"));
  positions.set_first(0);
  ExpectInvalid(manifest, absl::StrCat(kPath, "base is missing"));
  positions.set_base(10000);
  ExpectInvalid(manifest, absl::StrCat(kPath, "layout is missing"));
  positions.set_layout(v1::SinusoidalPositions::HALVES);
  EXPECT_EQ(CheckManifest(manifest), absl::OkStatus());
}

TEST(ManifestTest, RefusesAnotherFormatVersion) {
  v1::BundleManifest manifest = MakeTestManifest({});
  for (uint32_t version : {0u, 2u}) {
    manifest.set_format_version(version);
    manifest.clear_name();  // of another format nothing else is said
    ExpectInvalid(manifest, absl::StrCat("formatVersion: expected 1, got ", version));
  }
}

}  // namespace
}  // namespace dinghy
