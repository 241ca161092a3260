// Names in a manifest: each once, and what refers to one finds it.
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "model/bundle.h"
#include "tests/model/manifest_expectations.h"
#include "tests/testing/test_bundle.h"

namespace dinghy {
namespace {

TEST(ManifestNamesTest, RefusesNamesUsedTwice) {
  v1::BundleManifest manifest = MakeTestManifest({});
  *manifest.add_sequences() = manifest.sequences(0);
  ExpectInvalid(manifest, "sequence \"clicks\": this name is used twice");
  manifest = MakeTestManifest({});
  *manifest.add_features() = manifest.features(0);
  ExpectInvalid(manifest, "feature \"age\": this name is used twice");
  manifest = MakeTestManifest({});
  *manifest.add_tables() = manifest.tables(0);
  ExpectInvalid(manifest, "table \"item\": this name is used twice");
  manifest = MakeTestManifest({});
  *manifest.add_layers() = manifest.layers(0);
  ExpectInvalid(manifest, "layer \"behaviors\": this name is used twice");
  manifest = MakeTestManifest({});
  *manifest.add_outputs() = manifest.outputs(0);
  ExpectInvalid(manifest, "output \"click\": this name is used twice");
  manifest = MakeTestManifest({});
  LayerOf(manifest, "buy").set_name("age");
  ExpectInvalid(manifest, "layer \"age\": a feature has this name too");
}

TEST(ManifestNamesTest, RefusesInputsThatDoNotExistOrComeLater) {
  v1::BundleManifest manifest = MakeTestManifest({});
  LayerOf(manifest, "tower").set_inputs(1, "segmnt");
  ExpectInvalid(manifest, "layer \"tower\": input \"segmnt\" is neither a feature nor a layer");
  manifest = MakeTestManifest({});
  LayerOf(manifest, "tower").set_inputs(1, "buy");
  ExpectInvalid(manifest, "layer \"tower\": input \"buy\" is not an earlier layer");
  manifest = MakeTestManifest({});
  LayerOf(manifest, "tower").set_inputs(1, "tower");
  ExpectInvalid(manifest, "layer \"tower\": input \"tower\" is not an earlier layer");
  manifest = MakeTestManifest({});
  LayerOf(manifest, "behaviors").mutable_add()->mutable_terms(1)->set_inputs(0, "clicks.tme");
  ExpectInvalid(manifest, "layer \"behaviors\": input \"clicks.tme\"");
  for (const char* list : {"query", "keys", "values"}) {
    manifest = MakeTestManifest({});
    v1::TargetAttention& attention = *LayerOf(manifest, "interest").mutable_target_attention();
    attention.GetReflection()->SetRepeatedString(&attention, attention.GetDescriptor()->FindFieldByName(list),
                                                 0, "nothing");
    ExpectInvalid(manifest, "layer \"interest\": input \"nothing\"");
  }
}

TEST(ManifestNamesTest, RefusesInputsBesideInputLists) {
  v1::BundleManifest manifest = MakeTestManifest({});
  LayerOf(manifest, "interest").add_inputs("age");
  ExpectInvalid(manifest, "layer \"interest\": expected no inputs beside the input lists of its kind");
}

TEST(ManifestNamesTest, RefusesOutputsThatAreNoLayers) {
  for (const char* input : {"age", "nothing"}) {
    v1::BundleManifest manifest = MakeTestManifest({});
    manifest.mutable_outputs(0)->set_input(input);
    ExpectInvalid(manifest, absl::StrCat("output \"click\": input \"", input, "\" is not a layer"));
  }
}

TEST(ManifestNamesTest, ChecksSequencesAndFeaturesOfThem) {
  for (uint32_t length : {0u, 1001u, 4294967295u}) {
    v1::BundleManifest manifest = MakeTestManifest({});
    manifest.mutable_sequences(0)->set_max_length(length);
    ExpectInvalid(manifest, absl::StrCat("sequence \"clicks\": maxLength: expected 1 to 1000, got ", length));
  }
  v1::BundleManifest manifest = MakeTestManifest({});
  manifest.mutable_sequences(0)->set_max_length(1000);
  EXPECT_EQ(CheckManifest(manifest), absl::OkStatus());
  manifest.mutable_sequences(0)->add_actions("click");
  ExpectInvalid(manifest, "sequence \"clicks\": action \"click\" is listed twice");
  for (const char* name : {"time", "clicks.", "purchases.time", "clicks"}) {
    manifest = MakeTestManifest({});
    FeatureOf(manifest, "clicks.time").set_name(name);
    ExpectInvalid(manifest,
                  absl::StrCat("feature \"", name, "\": expected a name that begins with \"clicks.\""));
  }
  manifest = MakeTestManifest({});
  FeatureOf(manifest, "clicks.time").set_sequence("views");
  ExpectInvalid(manifest, "feature \"clicks.time\": sequence \"views\" is not among the sequences");
  manifest = MakeTestManifest({});
  FeatureOf(manifest, "item").set_sequence("clicks");
  ExpectInvalid(manifest, "feature \"item\": expected no sequence at this level");
}

TEST(ManifestNamesTest, ChecksTables) {
  v1::BundleManifest manifest = MakeTestManifest({});
  FeatureOf(manifest, "category").set_table("categories");
  ExpectInvalid(manifest, "feature \"category\": table \"categories\" is not among the tables");
  manifest = MakeTestManifest({});
  FeatureOf(manifest, "age").set_table("item");
  ExpectInvalid(manifest, "feature \"age\": expected no table, got \"item\"");
  manifest = MakeTestManifest({});
  manifest.mutable_tables(0)->set_dim(0);
  ExpectInvalid(manifest, "table \"item\": dim: expected at least 1, got 0");
}

TEST(ManifestNamesTest, ChecksTheItemFeature) {
  for (const char* name : {"clicks.item", "age", "category"}) {
    v1::BundleManifest manifest = MakeTestManifest({});
    manifest.set_item_feature(name);
    ExpectInvalid(manifest, absl::StrCat("feature \"", name, "\": expected the itemFeature to be"));
  }
  v1::BundleManifest manifest = MakeTestManifest({});
  manifest.set_item_feature("product");
  ExpectInvalid(manifest, "itemFeature \"product\" is not among the features");
  manifest = MakeTestManifest({});
  FeatureOf(manifest, "item").mutable_id()->set_bag(v1::IdFeature::BAG_SUM);
  ExpectInvalid(manifest, "SINGLE");
}

}  // namespace
}  // namespace dinghy
