#include "tests/testing/test_bundle.h"

#include <google/protobuf/util/json_util.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "features/encoder.h"
#include "model/bundle.h"
#include "model/loaded_model.h"
#include "model/model.h"
#include "model/ops/cpu.h"
#include "model/sha256.h"
#include "proto/catalog.pb.h"

namespace dinghy {
namespace {

constexpr int kCategories = 8;
constexpr int kSegmentRows = 5;
constexpr int kTimeRows = 5;
constexpr int kItemDim = 8;
constexpr int kCategoryDim = 4;
constexpr int kWidth = kItemDim + kCategoryDim;  // of a behavior and of a candidate
constexpr int kSegmentDim = 4;
constexpr int kTowerIn = 1 + kSegmentDim + kWidth + kWidth;

v1::Feature IdFeatureOf(const std::string& name, v1::Level level, v1::FeatureSource from,
                        const std::string& table, int rows) {
  v1::Feature feature;
  feature.set_name(name);
  feature.set_level(level);
  if (level == v1::SEQUENCE) feature.set_sequence("clicks");
  feature.set_from(from);
  feature.set_table(table);
  v1::IdFeature& id = *feature.mutable_id();
  id.set_type(v1::IdFeature::INT64);
  id.set_bag(v1::IdFeature::SINGLE);
  id.mutable_identity()->set_rows(rows);
  id.set_pad_row(0);
  id.set_oov_row(1);
  id.set_unknown(v1::OOV_ROW);
  id.set_negative(v1::PAD_ROW);
  if (from == v1::CATALOG) feature.set_missing_id(v1::OOV_ROW);
  return feature;
}

void AddFeatures(v1::BundleManifest& manifest) {
  v1::Feature& age = *manifest.add_features();
  age.set_name("age");
  age.set_level(v1::USER);
  age.set_from(v1::REQUEST);
  age.mutable_numeric()->set_mean(40);
  age.mutable_numeric()->set_stddev(15);
  age.set_missing(40);

  v1::Feature& segment = *manifest.add_features();
  segment.set_name("segment");
  segment.set_level(v1::USER);
  segment.set_from(v1::REQUEST);
  segment.set_table("segment");
  v1::IdFeature& id = *segment.mutable_id();
  id.set_type(v1::IdFeature::STRING);
  id.set_bag(v1::IdFeature::SINGLE);
  id.mutable_file()->set_path("segments.txt");
  id.mutable_file()->set_first_row(2);
  id.set_pad_row(0);
  id.set_oov_row(1);
  id.set_unknown(v1::OOV_ROW);
  segment.set_missing_id(v1::PAD_ROW);

  *manifest.add_features() = IdFeatureOf("item", v1::CANDIDATE, v1::REQUEST, "item", kTestItems);
  *manifest.add_features() = IdFeatureOf("category", v1::CANDIDATE, v1::CATALOG, "category", kCategories);
  *manifest.add_features() = IdFeatureOf("clicks.item", v1::SEQUENCE, v1::EVENT, "item", kTestItems);
  *manifest.add_features() =
      IdFeatureOf("clicks.category", v1::SEQUENCE, v1::CATALOG, "category", kCategories);

  v1::Feature& time = *manifest.add_features();
  time.set_name("clicks.time");
  time.set_level(v1::SEQUENCE);
  time.set_sequence("clicks");
  time.set_from(v1::EVENT);
  time.set_table("time");
  for (int64_t boundary : {60'000, 3'600'000, 86'400'000}) {
    time.mutable_time_since()->add_boundaries_ms(boundary);
  }
  time.mutable_time_since()->set_first_row(1);
}

void AddTable(v1::BundleManifest& manifest, const std::string& name, int dim) {
  v1::Table& table = *manifest.add_tables();
  table.set_name(name);
  table.set_tensor(name + ".weight");
  table.set_dim(dim);
}

void SetDense(v1::Dense& dense, const std::string& name, v1::Activation activation) {
  dense.set_weight(name + ".weight");
  dense.set_bias(name + ".bias");
  dense.set_activation(activation);
}

void SetNorm(v1::LayerNorm& norm, const std::string& name) {
  norm.set_weight(name + ".weight");
  norm.set_bias(name + ".bias");
  norm.set_epsilon(1e-6f);
}

void AddSelfAttention(v1::BundleManifest& manifest) {
  v1::Layer& layer = *manifest.add_layers();
  layer.set_name("history");
  layer.add_inputs("behaviors");
  v1::SelfAttention& attention = *layer.mutable_self_attention();
  v1::SelfAttention::Block& block = *attention.add_blocks();
  SetNorm(*block.mutable_attention_norm(), "history.attention_norm");
  SetDense(*block.mutable_query(), "history.query", v1::LINEAR);
  SetDense(*block.mutable_key(), "history.key", v1::LINEAR);
  SetDense(*block.mutable_value(), "history.value", v1::LINEAR);
  SetDense(*block.mutable_out(), "history.out", v1::LINEAR);
  SetNorm(*block.mutable_ffn_norm(), "history.ffn_norm");
  SetDense(*block.add_ffn(), "history.ffn.0", v1::RELU);
  SetDense(*block.add_ffn(), "history.ffn.1", v1::LINEAR);
  attention.set_heads(2);
  attention.set_wiring(v1::SelfAttention::PRE_NORM);
  attention.set_causal(true);
  attention.set_input_scale(1);
  attention.mutable_positions()->set_tensor("history.positions");
  attention.mutable_positions()->set_origin(v1::FROM_NEWEST);
  SetNorm(*attention.mutable_final_norm(), "history.final_norm");
}

void AddLayers(v1::BundleManifest& manifest, bool self_attention) {
  v1::Layer& behaviors = *manifest.add_layers();
  behaviors.set_name("behaviors");
  v1::InputList& side = *behaviors.mutable_add()->add_terms();
  side.add_inputs("clicks.item");
  side.add_inputs("clicks.category");
  behaviors.mutable_add()->add_terms()->add_inputs("clicks.time");
  if (self_attention) AddSelfAttention(manifest);

  v1::Layer& interest = *manifest.add_layers();
  interest.set_name("interest");
  v1::TargetAttention& attention = *interest.mutable_target_attention();
  attention.add_query("item");
  attention.add_query("category");
  attention.add_keys(self_attention ? "history" : "behaviors");
  attention.add_values(self_attention ? "history" : "behaviors");
  for (v1::DinScore::Part part :
       {v1::DinScore::QUERY, v1::DinScore::KEY, v1::DinScore::DIFFERENCE, v1::DinScore::PRODUCT}) {
    attention.mutable_din()->add_parts(part);
  }
  SetDense(*attention.mutable_din()->add_layers(), "interest.0", v1::SIGMOID);
  SetDense(*attention.mutable_din()->add_layers(), "interest.1", v1::LINEAR);
  attention.set_normalization(v1::TargetAttention::SOFTMAX);
  attention.set_empty(v1::ZEROS);
  attention.set_scale(1);

  for (const char* name : {"tower", "buy"}) {
    v1::Layer& layer = *manifest.add_layers();
    layer.set_name(name);
    for (const char* input : {"age", "segment", "item", "category", "interest"}) layer.add_inputs(input);
  }
  v1::Layer& buy = *manifest.mutable_layers()->rbegin();
  SetDense(*buy.mutable_dense(), "buy", v1::LINEAR);
  v1::Layer& tower = *std::next(manifest.mutable_layers()->rbegin());
  SetDense(*tower.mutable_mlp()->add_layers(), "tower.0", v1::RELU);
  SetDense(*tower.mutable_mlp()->add_layers(), "tower.1", v1::LINEAR);

  for (const auto& [name, input] : {std::pair("click", "tower"), std::pair("purchase", "buy")}) {
    v1::Output& output = *manifest.add_outputs();
    output.set_name(name);
    output.set_input(input);
    output.set_link(v1::Output::SIGMOID);
  }
}

// Uniform in [-1, 1), the same on every platform.
float NextFloat(std::mt19937& random) {
  return static_cast<float>(random() >> 8) / static_cast<float>(1 << 23) - 1.0f;
}

v1::Catalog MakeCatalog() {
  v1::Catalog catalog;
  v1::Column& items = *catalog.add_columns();
  items.set_feature("item");
  v1::Column& categories = *catalog.add_columns();
  categories.set_feature("category");
  for (int item = 2; item < kTestItems; ++item) {
    items.mutable_ints()->add_values(item);
    categories.mutable_ints()->add_values(2 + item % (kCategories - 2));
  }
  return catalog;
}

// Of a test's own set-up: there is no going on.
void Require(bool condition, const std::string& what) {
  if (condition) return;
  std::fprintf(stderr, "%s\n", what.c_str());
  std::abort();
}

}  // namespace

v1::BundleManifest MakeTestManifest(const TestBundleOptions& options) {
  v1::BundleManifest manifest;
  manifest.set_format_version(1);
  manifest.set_name(options.model);
  manifest.mutable_provenance()->set_trainer("test");
  manifest.mutable_provenance()->set_data("random weights");
  manifest.mutable_provenance()->set_created("2024-01-01T00:00:00Z");
  v1::Sequence& clicks = *manifest.add_sequences();
  clicks.set_name("clicks");
  clicks.add_actions("click");
  clicks.set_max_length(options.max_length);
  clicks.set_keep(v1::Sequence::NEWEST);
  clicks.set_pad(v1::Sequence::NONE);
  if (options.skip_pads) clicks.set_skip_pad_of("clicks.item");
  AddFeatures(manifest);
  AddTable(manifest, "item", kItemDim);
  AddTable(manifest, "category", kCategoryDim);
  AddTable(manifest, "segment", kSegmentDim);
  AddTable(manifest, "time", kWidth);
  AddLayers(manifest, options.self_attention);
  manifest.set_item_feature("item");
  return manifest;
}

TestTensors MakeTestTensors(const TestBundleOptions& options) {
  std::mt19937 random(options.seed);
  TestTensors tensors;
  const auto add = [&](const std::string& name, std::vector<int64_t> shape, float mean, float scale) {
    TestTensor& tensor = tensors[name];
    int64_t size = 1;
    for (int64_t dim : shape) size *= dim;
    tensor.shape = std::move(shape);
    for (int64_t i = 0; i < size; ++i) tensor.values.push_back(mean + scale * NextFloat(random));
  };
  const auto add_dense = [&](const std::string& name, int64_t out, int64_t in) {
    add(name + ".weight", {out, in}, 0, 0.5f);
    add(name + ".bias", {out}, 0, 0.5f);
  };
  const auto add_norm = [&](const std::string& name) {
    add(name + ".weight", {kWidth}, 1, 0.2f);
    add(name + ".bias", {kWidth}, 0, 0.2f);
  };
  add("item.weight", {kTestItems, kItemDim}, 0, 1);
  add("category.weight", {kCategories, kCategoryDim}, 0, 1);
  add("segment.weight", {kSegmentRows, kSegmentDim}, 0, 1);
  add("time.weight", {kTimeRows, kWidth}, 0, 1);
  add_dense("interest.0", 16, 4 * kWidth);
  add_dense("interest.1", 1, 16);
  add_dense("tower.0", 16, kTowerIn);
  add_dense("tower.1", 1, 16);
  add_dense("buy", 1, kTowerIn);
  if (options.self_attention) {
    for (const char* part : {"query", "key", "value", "out"}) {
      add_dense(absl::StrCat("history.", part), kWidth, kWidth);
    }
    add_dense("history.ffn.0", 2 * kWidth, kWidth);
    add_dense("history.ffn.1", kWidth, 2 * kWidth);
    for (const char* norm : {"attention_norm", "ffn_norm", "final_norm"}) {
      add_norm(absl::StrCat("history.", norm));
    }
    add("history.positions", {options.max_length, kWidth}, 0, 0.5f);
  }
  return tensors;
}

std::string MessageToJson(const google::protobuf::Message& message) {
  std::string json;
  const auto status = google::protobuf::util::MessageToJsonString(message, &json);
  Require(status.ok(), status.ToString());
  return json;
}

std::string SafetensorsFile(const std::string& header, const std::string& data) {
  const uint64_t size = header.size();
  return std::string(reinterpret_cast<const char*>(&size), sizeof(size)) + header + data;
}

std::string SerializeSafetensors(const TestTensors& tensors) {
  std::vector<std::string> entries;
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    const size_t begin = data.size();
    data.append(reinterpret_cast<const char*>(tensor.values.data()), tensor.values.size() * sizeof(float));
    entries.push_back(absl::StrCat("\"", name, "\":{\"dtype\":\"F32\",\"shape\":[",
                                   absl::StrJoin(tensor.shape, ","), "],\"data_offsets\":[", begin, ",",
                                   data.size(), "]}"));
  }
  return SafetensorsFile(absl::StrCat("{", absl::StrJoin(entries, ","), "}"), data);
}

BundleFiles MakeTestBundleFiles(const TestBundleOptions& options) {
  return {{"bundle.json", MessageToJson(MakeTestManifest(options))},
          {"weights.safetensors", SerializeSafetensors(MakeTestTensors(options))},
          {"catalog.json", MessageToJson(MakeCatalog())},
          {"segments.txt", "student\nworker\nretired\n"}};
}

void WriteFiles(const std::string& folder, const BundleFiles& files) {
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  for (const auto& [name, content] : files) {
    std::ofstream file(folder + "/" + name, std::ios::binary);
    file << content;
    file.close();
    Require(file.good(), absl::StrCat("cannot write ", folder, "/", name));
  }
}

std::string MakeCompleteFile(const BundleFiles& files) {
  v1::CompleteFile complete;
  for (const auto& [name, content] : files) {
    v1::CompleteFile::Entry& entry = *complete.add_files();
    entry.set_path(name);
    entry.set_size(content.size());
    Sha256 hash;
    hash.Update(content);
    entry.set_sha256(hash.Hex());
  }
  return MessageToJson(complete);
}

void WriteBundleFolder(const std::string& folder, const BundleFiles& files) {
  BundleFiles all = files;
  all["COMPLETE"] = MakeCompleteFile(files);
  WriteFiles(folder, all);
}

std::string ReadFileBytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  Require(file.good(), absl::StrCat("cannot read ", path));
  return std::string(std::istreambuf_iterator<char>(file), {});
}

v1::ScoreRequest MakeTestRequest(const TestRequestOptions& options) {
  std::mt19937 random(options.seed);
  const auto next_item = [&random] { return 2 + static_cast<int64_t>(random() % (kTestItems - 2)); };
  v1::ScoreRequest request;
  request.set_request_id(absl::StrCat("request ", options.seed));
  request.set_model("shop");
  request.set_user_id(absl::StrCat("user ", options.seed));
  request.set_request_time_ms(kTestRequestTimeMs);
  v1::Column& age = *request.add_user();
  age.set_feature("age");
  age.mutable_floats()->add_values(20 + static_cast<float>(random() % 50));
  v1::Column& segment = *request.add_user();
  segment.set_feature("segment");
  const char* const segments[] = {"student", "worker", "retired"};
  segment.mutable_strings()->add_values(segments[random() % 3]);
  v1::Column& items = *request.add_candidates();
  items.set_feature("item");
  items.mutable_ints();
  for (int i = 0; i < options.candidates; ++i) items.mutable_ints()->add_values(next_item());
  v1::SequenceData& clicks = *request.add_sequences();
  clicks.set_sequence("clicks");
  v1::Column& clicked = *clicks.add_columns();
  clicked.set_feature("item");
  clicked.mutable_ints();
  for (int i = 0; i < options.behaviors; ++i) {
    clicked.mutable_ints()->add_values(next_item());
    clicks.add_event_time_ms(kTestRequestTimeMs - int64_t{600'000} * (options.behaviors - i));
  }
  return request;
}

absl::StatusOr<std::string> MakeGoldens(const std::string& folder,
                                        const std::vector<v1::ScoreRequest>& requests) {
  absl::StatusOr<std::unique_ptr<Bundle>> bundle = OpenBundle(folder);
  if (!bundle.ok()) return bundle.status();
  const v1::BundleManifest& manifest = (*bundle)->manifest;
  absl::StatusOr<std::vector<int64_t>> table_rows = TableRows(**bundle);
  if (!table_rows.ok()) return table_rows.status();
  absl::StatusOr<std::unique_ptr<RequestEncoder>> encoder =
      RequestEncoder::Create(manifest, (*bundle)->files, *table_rows, {});
  if (!encoder.ok()) return encoder.status();
  ops::PrepareThread();
  absl::StatusOr<std::unique_ptr<Model>> model = Model::Create(manifest, (*bundle)->tensors);
  if (!model.ok()) return model.status();

  std::string lines;
  for (const v1::ScoreRequest& request : requests) {
    FeatureBatch batch;
    EncodeNotes notes;
    absl::Status status = (*encoder)->Encode(request, batch, notes);
    if (!status.ok()) return status;
    ops::Scratch scratch;
    ModelOutputs outputs;
    (*model)->Score(batch, {}, scratch, outputs);
    v1::ScoreLog golden;
    *golden.mutable_request() = request;
    for (int o = 0; o < manifest.outputs_size(); ++o) {
      v1::OutputScores& scores = *golden.add_outputs();
      scores.set_output(manifest.outputs(o).name());
      scores.mutable_scores()->Add(outputs.scores[o].begin(), outputs.scores[o].end());
    }
    golden.set_tolerance(1e-6);
    absl::StrAppend(&lines, MessageToJson(golden), "\n");
  }
  return lines;
}

absl::StatusOr<std::string> WriteTestBundle(const std::string& model_root, const TestBundleOptions& options) {
  const std::string parent = absl::StrCat(model_root, "/", options.model, "/");
  // A name that no registry takes for a version.
  const std::string unfinished = absl::StrCat(parent, ".", options.version);
  BundleFiles files = MakeTestBundleFiles(options);
  WriteBundleFolder(unfinished, files);
  absl::StatusOr<std::string> goldens = MakeGoldens(
      unfinished, {MakeTestRequest({.candidates = 5, .behaviors = 3, .seed = 1}),
                   MakeTestRequest({.candidates = 3, .behaviors = 0, .seed = 2}),
                   MakeTestRequest({.candidates = 70, .behaviors = kTestMaxLength + 2, .seed = 3})});
  std::filesystem::remove_all(unfinished);
  if (!goldens.ok()) return goldens.status();
  files["golden.jsonl"] = *goldens;
  // Renamed into place, as exporters do: a registry that looks meanwhile never sees half a bundle.
  WriteBundleFolder(unfinished, files);
  const std::string folder = absl::StrCat(parent, options.version);
  std::filesystem::remove_all(folder);
  std::filesystem::rename(unfinished, folder);
  return folder;
}

}  // namespace dinghy
