#include "server/inspect.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "model/loaded_model.h"
#include "model/ops/cpu.h"

namespace dinghy {
namespace {

// Rows of text in aligned columns. The first row is the heading.
class TextTable {
 public:
  // One letter a column: 'l' to the left, 'r' to the right.
  explicit TextTable(std::string alignment) : alignment_(std::move(alignment)) {}

  void Add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }

  void Print(std::ostream& out) const {
    if (rows_.size() < 2) return;
    std::vector<size_t> widths(alignment_.size());
    for (const auto& row : rows_) {
      for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
    }
    out << '\n';
    for (const auto& row : rows_) {
      std::string line;
      for (size_t i = 0; i < row.size(); ++i) {
        const std::string space(widths[i] - row[i].size(), ' ');
        absl::StrAppend(&line, i == 0 ? "" : "  ", alignment_[i] == 'r' ? space : "", row[i],
                        alignment_[i] == 'r' ? "" : space);
      }
      out << absl::StripTrailingAsciiWhitespace(line) << '\n';
    }
  }

 private:
  const std::string alignment_;
  std::vector<std::vector<std::string>> rows_;
};

// "PRE_NORM" as "pre norm".
std::string Words(const std::string& enum_name) {
  return absl::StrReplaceAll(absl::AsciiStrToLower(enum_name), {{"_", " "}});
}

// 1234567 as "1.23 M"; 0 as "-".
std::string Short(double count) {
  if (count == 0) return "-";
  const std::pair<double, const char*> units[] = {{1e9, " G"}, {1e6, " M"}, {1e3, " k"}};
  for (const auto& [size, unit] : units) {
    if (count >= size) return absl::StrFormat("%.3g%s", count / size, unit);
  }
  return absl::StrFormat("%.3g", count);
}

std::string VocabularyText(const v1::IdFeature& id) {
  switch (id.vocabulary_case()) {
    case v1::IdFeature::kIdentity:
      return absl::StrCat("identity, ", id.identity().rows(), " rows");
    case v1::IdFeature::kFarmHash:
      return absl::StrCat("farmhash, ", id.farm_hash().buckets(), " buckets");
    case v1::IdFeature::kMurmur3:
      return absl::StrCat("murmur3 seed ", id.murmur3().seed(), ", ", id.murmur3().buckets(), " buckets, ",
                          v1::Murmur3Vocabulary::Remainder_Name(id.murmur3().remainder()));
    case v1::IdFeature::kFile:
      return id.file().path();
    case v1::IdFeature::VOCABULARY_NOT_SET:
      break;
  }
  return "";
}

// What the feature's values are and how they are encoded.
std::string KindText(const v1::Feature& feature) {
  switch (feature.kind_case()) {
    case v1::Feature::kId:
      return absl::StrCat(Words(v1::IdFeature::Type_Name(feature.id().type())), " id",
                          feature.id().bag() == v1::IdFeature::SINGLE
                              ? ""
                              : absl::StrCat(", ", Words(v1::IdFeature::Bag_Name(feature.id().bag()))),
                          ", ", VocabularyText(feature.id()));
    case v1::Feature::kNumeric:
      return absl::StrCat("number, (x - ", feature.numeric().mean(), ") / ", feature.numeric().stddev());
    case v1::Feature::kVector:
      return absl::StrCat(feature.vector().dim(), " numbers");
    case v1::Feature::kTimeSince:
      return absl::StrCat("time since, ", feature.time_since().boundaries_ms_size() + 1, " buckets");
    case v1::Feature::KIND_NOT_SET:
      break;
  }
  return "";
}

std::string MissingText(const v1::Feature& feature) {
  switch (feature.if_missing_case()) {
    case v1::Feature::kMissing:
      return absl::StrCat(feature.missing());
    case v1::Feature::kMissingId:
      return Words(v1::IdPolicy_Name(feature.missing_id()));
    case v1::Feature::IF_MISSING_NOT_SET:
      break;
  }
  return "refuse";
}

void PrintProvenance(const Bundle& bundle, std::ostream& out) {
  const v1::BundleManifest& manifest = bundle.manifest;
  out << manifest.name() << " version " << bundle.version << "\n";
  out << "digest   " << bundle.digest << "\n";
  const v1::Provenance& provenance = manifest.provenance();
  if (!provenance.trainer().empty()) out << "trainer  " << provenance.trainer() << "\n";
  if (!provenance.data().empty()) out << "data     " << provenance.data() << "\n";
  if (!provenance.created().empty()) out << "created  " << provenance.created() << "\n";
  // Sorted: a protobuf map has no order of its own.
  std::vector<std::pair<std::string, std::string>> details(provenance.details().begin(),
                                                           provenance.details().end());
  std::sort(details.begin(), details.end());
  for (const auto& [name, value] : details) out << "         " << name << ": " << value << "\n";
  out << "golden   " << bundle.goldens.size() << " requests\n";
}

void PrintFeatures(const v1::BundleManifest& manifest, std::ostream& out) {
  TextTable sequences("lrll");
  sequences.Add({"SEQUENCE", "MAX LENGTH", "KEEPS", "ACTIONS"});
  for (const v1::Sequence& sequence : manifest.sequences()) {
    sequences.Add({sequence.name(), absl::StrCat(sequence.max_length()),
                   Words(v1::Sequence::Keep_Name(sequence.keep())), absl::StrJoin(sequence.actions(), ", ")});
  }
  sequences.Print(out);

  TextTable features("llllll");
  features.Add({"FEATURE", "LEVEL", "FROM", "WHAT", "TABLE", "IF MISSING"});
  for (const v1::Feature& feature : manifest.features()) {
    features.Add({absl::StrCat(feature.name(), feature.name() == manifest.item_feature() ? " (item)" : ""),
                  Words(v1::Level_Name(feature.level())), Words(v1::FeatureSource_Name(feature.from())),
                  KindText(feature), feature.table().empty() ? "-" : feature.table(), MissingText(feature)});
  }
  features.Print(out);
}

// Returns the number of parameters in tables.
int64_t PrintTables(const Bundle& bundle, const std::vector<int64_t>& rows, std::ostream& out) {
  TextTable tables("lrrlrl");
  tables.Add({"TABLE", "ROWS", "DIM", "TYPE", "MB", "TENSOR"});
  int64_t parameters = 0;
  for (int i = 0; i < bundle.manifest.tables_size(); ++i) {
    const v1::Table& table = bundle.manifest.tables(i);
    const DType dtype = bundle.tensors.find(table.tensor())->second.dtype;
    const int64_t size = rows[i] * table.dim();
    parameters += size;
    const int64_t scales = dtype == DType::kI8 ? rows[i] : 0;  // F32
    const auto bytes = static_cast<double>(size * DTypeBytes(dtype) + scales * DTypeBytes(DType::kF32));
    tables.Add({table.name(), absl::StrCat(rows[i]), absl::StrCat(table.dim()), DTypeName(dtype),
                absl::StrFormat("%.3f", bytes / 1e6), table.tensor()});
  }
  tables.Print(out);
  return parameters;
}

// Returns the number of parameters in layers.
int64_t PrintLayers(const Model& model, std::ostream& out) {
  // Two tables: one would be wider than a terminal.
  TextTable layers("lllrr"), flops("lrrrrr");
  layers.Add({"LAYER", "KIND", "LEVEL", "WIDTH", "PARAMETERS"});
  flops.Add({"FLOPS PER", "USER", "BEHAVIOR", "CANDIDATE", "PAIR", "BEHAVIOR PAIR"});
  const auto add_flops = [&flops](const std::string& name, const LayerInfo& cost) {
    flops.Add({name, Short(cost.flops_user), Short(cost.flops_behavior), Short(cost.flops_candidate),
               Short(cost.flops_pair), Short(cost.flops_behavior_pair)});
  };
  LayerInfo total;
  for (const LayerInfo& layer : model.Layers()) {
    std::string level = Words(v1::Level_Name(layer.level));
    if (!layer.sequence.empty()) absl::StrAppend(&level, " ", layer.sequence);
    layers.Add(
        {layer.name, Words(layer.kind), level, absl::StrCat(layer.width), absl::StrCat(layer.parameters)});
    add_flops(layer.name, layer);
    total.parameters += layer.parameters;
    total.flops_user += layer.flops_user;
    total.flops_behavior += layer.flops_behavior;
    total.flops_candidate += layer.flops_candidate;
    total.flops_pair += layer.flops_pair;
    total.flops_behavior_pair += layer.flops_behavior_pair;
  }
  add_flops("together", total);
  layers.Print(out);
  flops.Print(out);
  out << "A pair is a candidate and a behavior; a behavior pair, two behaviors of one sequence.\n";
  return total.parameters;
}

std::string CalibrationText(const v1::Output& output) {
  switch (output.calibration_case()) {
    case v1::Output::kNegativeDownsampling:
      return absl::StrCat("negative downsampling, rate ", output.negative_downsampling().rate());
    case v1::Output::kPlatt:
      return absl::StrCat("platt, slope ", output.platt().slope(), ", intercept ",
                          output.platt().intercept());
    case v1::Output::kPiecewiseLinear:
      return absl::StrCat("piecewise linear, ", output.piecewise_linear().x_size(), " points");
    case v1::Output::CALIBRATION_NOT_SET:
      break;
  }
  return "-";
}

void PrintOutputs(const v1::BundleManifest& manifest, std::ostream& out) {
  TextTable outputs("llll");
  outputs.Add({"OUTPUT", "INPUT", "LINK", "CALIBRATION"});
  for (const v1::Output& output : manifest.outputs()) {
    outputs.Add({output.name(), output.input(), Words(v1::Output::Link_Name(output.link())),
                 CalibrationText(output)});
  }
  outputs.Print(out);
}

}  // namespace

absl::Status InspectBundle(const std::string& directory, std::ostream& out, const ModelOptions& options) {
  absl::StatusOr<std::unique_ptr<Bundle>> opened = OpenBundle(directory);
  if (!opened.ok()) return opened.status();
  const Bundle& bundle = **opened;
  absl::StatusOr<std::vector<int64_t>> table_rows = TableRows(bundle);
  if (!table_rows.ok()) return table_rows.status();
  ops::PrepareThread();
  absl::StatusOr<std::unique_ptr<Model>> model = Model::Create(bundle.manifest, bundle.tensors, options);
  if (!model.ok()) return model.status();

  PrintProvenance(bundle, out);
  PrintFeatures(bundle.manifest, out);
  const int64_t table_parameters = PrintTables(bundle, *table_rows, out);
  const int64_t layer_parameters = PrintLayers(**model, out);
  PrintOutputs(bundle.manifest, out);
  out << '\n'
      << table_parameters + layer_parameters << " parameters: " << table_parameters << " in tables, "
      << layer_parameters << " in layers\n";
  return absl::OkStatus();
}

absl::Status ValidateBundle(const std::string& directory, std::ostream& out, const ModelOptions& options) {
  absl::StatusOr<std::unique_ptr<LoadedModel>> loaded = LoadModel(directory, {}, options);
  if (!loaded.ok()) return loaded.status();
  const Bundle& bundle = *(*loaded)->bundle;
  const GoldenResult& golden = (*loaded)->golden;
  out << bundle.manifest.name() << " version " << bundle.version << " is valid\n"
      << "digest          " << bundle.digest << "\n"
      << "golden requests " << golden.requests << "\n"
      << "golden scores   " << golden.scores << "\n"
      << "largest error   " << absl::StrFormat("%.3g", golden.max_error) << "\n"
      << "numerics_id     " << (*loaded)->model->numerics_id() << "\n"
      << "numerics        " << ops::NumericsDescription() << "\n";
  return absl::OkStatus();
}

}  // namespace dinghy
