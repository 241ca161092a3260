// CheckManifest: what a manifest must say, by itself.
//
// Presence is checked by reflection and everything is required, so that a field added to bundle.proto is
// required from its first day; the few exceptions are listed by name.
#include <cmath>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "model/bundle.h"

namespace dinghy {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::OneofDescriptor;
using google::protobuf::Reflection;

constexpr uint32_t kFormatVersion = 1;
constexpr uint32_t kMaxLength = 1000;  // exact attention

// Fields (and oneofs) that may be absent, without the package. Those with "needed" are checked below.
constexpr absl::string_view kOptional[] = {
    "BundleManifest.provenance",
    "BundleManifest.sequences",
    "BundleManifest.tables",
    "BundleManifest.precision",
    "Feature.if_missing",
    "Feature.sequence",    // needed at SEQUENCE level
    "Feature.table",       // needed by id and time_since
    "IdFeature.pad_row",   // needed by a PAD_ROW policy
    "IdFeature.oov_row",   // needed by an OOV_ROW policy
    "IdFeature.negative",  // needed by INT64
    "TimeSince.boundaries_ms",
    "Layer.inputs",  // needed by the kinds without input lists of their own
    "Sequence.skip_pad_of",
    "Table.scale",  // needed by I8
    "Dense.norm",
    "Dense.parameters",
    "ActivationLayer.parameters",
    "ActivationParameters.slope",  // each needed by some activations; checked with the layer
    "ActivationParameters.alpha",
    "ActivationParameters.norm",
    "LearnedPositions.first_row",  // needed by FROM_SLOT
    "LearnedPositions.pad_row",    // needed where pads are ATTENDED
    "SelfAttention.Block.latent",
    "SelfAttention.Block.attention_norm",  // needed but in wiring BARE
    "SelfAttention.Block.ffn_norm",
    "SelfAttention.Block.ffn",
    "SelfAttention.position_kind",
    "SelfAttention.input_norm",
    "SelfAttention.final_norm",
    "SelfAttention.pads",  // needed where the sequence has pads
    "SelfAttention.window",
    "SelfAttention.key_value_heads",
    "SelfAttention.kernel",
    "TargetAttention.mask",
    "TargetAttention.heads",
    "TargetAttention.key_value_heads",
    "TargetAttention.latent",
    "TargetAttention.windows",
    "DinScore.query_zeros",
    "Pooling.empty",
    "Output.calibration",
};

bool IsOptional(absl::string_view full_name) {
  const absl::string_view name = absl::StripPrefix(full_name, "dinghy.v1.");
  for (absl::string_view optional : kOptional) {
    if (name == optional) return true;
  }
  return false;
}

absl::Status Invalid(absl::string_view object, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(object, ": ", what));
}

std::string Label(absl::string_view kind, absl::string_view name) {
  return absl::StrCat(kind, " \"", name, "\"");
}

// Walks one object of the manifest ("layer \"history\""), keeping the path of the field it is at.
class PresenceCheck {
 public:
  explicit PresenceCheck(std::string object) : object_(std::move(object)) {}

  absl::Status Check(const Message& message, const std::string& prefix) const {
    const Descriptor& descriptor = *message.GetDescriptor();
    // The real ones come first, before those that stand for optional scalars.
    for (int i = 0; i < descriptor.real_oneof_decl_count(); ++i) {
      absl::Status status = CheckOneof(message, *descriptor.oneof_decl(i), prefix);
      if (!status.ok()) return status;
    }
    for (int i = 0; i < descriptor.field_count(); ++i) {
      const FieldDescriptor& field = *descriptor.field(i);
      if (field.is_map()) continue;
      const std::string path = absl::StrCat(prefix, field.json_name());
      absl::Status status =
          field.is_repeated() ? CheckRepeated(message, field, path) : CheckSingular(message, field, path);
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

 private:
  absl::Status CheckOneof(const Message& message, const OneofDescriptor& oneof,
                          const std::string& prefix) const {
    if (message.GetReflection()->HasOneof(message, &oneof) || IsOptional(oneof.full_name())) {
      return absl::OkStatus();
    }
    std::vector<std::string> choices;
    for (int i = 0; i < oneof.field_count(); ++i) choices.push_back(oneof.field(i)->json_name());
    return Invalid(object_, absl::StrCat(prefix, oneof.name(), " is missing: expected ",
                                         choices.size() > 1 ? "one of " : "", absl::StrJoin(choices, ", ")));
  }

  absl::Status CheckSingular(const Message& message, const FieldDescriptor& field,
                             const std::string& path) const {
    const Reflection& reflection = *message.GetReflection();
    if (field.has_presence() && !reflection.HasField(message, &field)) {
      const bool other_choice = field.real_containing_oneof() != nullptr;
      return other_choice || IsOptional(field.full_name()) ? absl::OkStatus() : Missing(path);
    }
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_MESSAGE:
        if (field.full_name() == "dinghy.v1.BundleManifest.provenance") return absl::OkStatus();
        return Check(reflection.GetMessage(message, &field), path + ".");
      case FieldDescriptor::CPPTYPE_ENUM:
        return CheckEnum(field, reflection.GetEnumValue(message, &field), path);
      case FieldDescriptor::CPPTYPE_STRING:
        // A string with presence may be empty: it was said.
        if (!field.has_presence() && !IsOptional(field.full_name()) &&
            reflection.GetString(message, &field).empty()) {
          return Missing(path);
        }
        return absl::OkStatus();
      case FieldDescriptor::CPPTYPE_DOUBLE:
        return CheckFinite(reflection.GetDouble(message, &field), path);
      case FieldDescriptor::CPPTYPE_FLOAT:
        return CheckFinite(reflection.GetFloat(message, &field), path);
      default:
        return absl::OkStatus();
    }
  }

  absl::Status CheckRepeated(const Message& message, const FieldDescriptor& field,
                             const std::string& path) const {
    const Reflection& reflection = *message.GetReflection();
    const int size = reflection.FieldSize(message, &field);
    if (size == 0 && !IsOptional(field.full_name())) return Missing(path);
    if (message.GetDescriptor() == v1::BundleManifest::descriptor())
      return absl::OkStatus();  // see CheckItems
    for (int i = 0; i < size; ++i) {
      const std::string item = absl::StrCat(path, "[", i, "]");
      absl::Status status;
      if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
        status = Check(reflection.GetRepeatedMessage(message, &field, i), item + ".");
      } else if (field.cpp_type() == FieldDescriptor::CPPTYPE_ENUM) {
        status = CheckEnum(field, reflection.GetRepeatedEnumValue(message, &field, i), item);
      } else if (field.cpp_type() == FieldDescriptor::CPPTYPE_STRING &&
                 reflection.GetRepeatedString(message, &field, i).empty()) {
        status = Missing(item);
      }
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::Status CheckEnum(const FieldDescriptor& field, int value, const std::string& path) const {
    if (value == 0) return IsOptional(field.full_name()) ? absl::OkStatus() : Missing(path);
    // The JSON parser takes any number for an enum.
    if (field.enum_type()->FindValueByNumber(value) != nullptr) return absl::OkStatus();
    return Invalid(object_, absl::StrCat(path, ": unknown ", field.enum_type()->name(), " ", value));
  }

  absl::Status CheckFinite(double value, const std::string& path) const {
    if (std::isfinite(value)) return absl::OkStatus();
    return Invalid(object_, absl::StrCat(path, ": expected a finite number, got ", value));
  }

  absl::Status Missing(const std::string& path) const {
    return Invalid(object_, absl::StrCat(path, " is missing"));
  }

  const std::string object_;
};

// Presence in `items`, the manifest's list `list` of objects of one `kind`, and that their names differ.
template <typename Items>
absl::Status CheckItems(const Items& items, absl::string_view list, absl::string_view kind) {
  std::set<absl::string_view> names;
  for (int i = 0; i < items.size(); ++i) {
    const auto& item = items[i];
    const std::string label =
        item.name().empty() ? absl::StrCat(list, "[", i, "]") : Label(kind, item.name());
    absl::Status status = PresenceCheck(label).Check(item, "");
    if (!status.ok()) return status;
    if (!names.insert(item.name()).second) return Invalid(label, "this name is used twice");
  }
  return absl::OkStatus();
}

bool Uses(const v1::Feature& feature, v1::IdPolicy policy) {
  const v1::IdFeature& id = feature.id();
  // For a bag, a missing PAD_ROW is an empty bag.
  const bool missing = feature.if_missing_case() == v1::Feature::kMissingId &&
                       feature.missing_id() == policy &&
                       !(policy == v1::PAD_ROW && id.bag() != v1::IdFeature::SINGLE);
  return missing || id.unknown() == policy || id.negative() == policy;
}

absl::Status CheckFeature(const v1::Feature& feature, const std::set<absl::string_view>& sequences,
                          const std::set<absl::string_view>& tables) {
  const std::string label = Label("feature", feature.name());
  if (feature.level() == v1::SEQUENCE) {
    if (feature.sequence().empty()) return Invalid(label, "sequence is missing");
    if (!sequences.contains(feature.sequence())) {
      return Invalid(label, absl::StrCat("sequence \"", feature.sequence(), "\" is not among the sequences"));
    }
    const std::string prefix = absl::StrCat(feature.sequence(), ".");
    absl::string_view field = feature.name();
    if (!absl::ConsumePrefix(&field, prefix) || field.empty()) {
      return Invalid(label, absl::StrCat("expected a name that begins with \"", prefix, "\""));
    }
  } else if (!feature.sequence().empty()) {
    return Invalid(label,
                   absl::StrCat("expected no sequence at this level, got \"", feature.sequence(), "\""));
  }
  if (feature.has_id() || feature.has_time_since()) {
    if (feature.table().empty()) return Invalid(label, "table is missing");
    if (!tables.contains(feature.table())) {
      return Invalid(label, absl::StrCat("table \"", feature.table(), "\" is not among the tables"));
    }
  } else if (!feature.table().empty()) {
    return Invalid(label, absl::StrCat("expected no table, got \"", feature.table(), "\""));
  }
  if (feature.has_id()) {
    const v1::IdFeature& id = feature.id();
    if (id.type() == v1::IdFeature::INT64 && id.negative() == v1::ID_POLICY_UNSPECIFIED) {
      return Invalid(label, "id.negative is missing");
    }
    if (Uses(feature, v1::PAD_ROW) && !id.has_pad_row()) {
      return Invalid(label, "id.padRow is missing, and a policy says PAD_ROW");
    }
    if (Uses(feature, v1::OOV_ROW) && !id.has_oov_row()) {
      return Invalid(label, "id.oovRow is missing, and a policy says OOV_ROW");
    }
  }
  return absl::OkStatus();
}

// The names that a layer reads, all its lists together.
std::vector<absl::string_view> InputsOf(const v1::Layer& layer) {
  std::vector<absl::string_view> inputs(layer.inputs().begin(), layer.inputs().end());
  const auto add = [&inputs](const auto& names) { inputs.insert(inputs.end(), names.begin(), names.end()); };
  for (const v1::InputList& term : layer.add().terms()) add(term.inputs());
  for (const v1::InputList& term : layer.multiply().terms()) add(term.inputs());
  add(layer.dot().left());
  add(layer.dot().right());
  add(layer.target_attention().query());
  add(layer.target_attention().keys());
  add(layer.target_attention().values());
  return inputs;
}

// What the blocks of self-attention need beside what all wirings do.
absl::Status CheckBlocks(const v1::Layer& layer) {
  const v1::SelfAttention& attention = layer.self_attention();
  if (attention.wiring() == v1::SelfAttention::BARE) return absl::OkStatus();
  for (int i = 0; i < attention.blocks_size(); ++i) {
    const v1::SelfAttention::Block& block = attention.blocks(i);
    const char* const missing = !block.has_attention_norm() ? "attentionNorm"
                                : !block.has_ffn_norm()     ? "ffnNorm"
                                : block.ffn().empty()       ? "ffn"
                                                            : nullptr;
    if (missing != nullptr) {
      return Invalid(Label("layer", layer.name()),
                     absl::StrCat("selfAttention.blocks[", i, "].", missing, " is missing"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckLayers(const v1::BundleManifest& manifest) {
  std::set<absl::string_view> known;
  for (const v1::Feature& feature : manifest.features()) known.insert(feature.name());
  std::set<absl::string_view> layers;
  for (const v1::Layer& layer : manifest.layers()) layers.insert(layer.name());

  for (const v1::Layer& layer : manifest.layers()) {
    const std::string label = Label("layer", layer.name());
    const bool own_lists =
        layer.has_add() || layer.has_multiply() || layer.has_dot() || layer.has_target_attention();
    if (own_lists && layer.inputs_size() > 0) {
      return Invalid(label, "expected no inputs beside the input lists of its kind");
    }
    if (!own_lists && layer.inputs_size() == 0) return Invalid(label, "inputs is missing");
    for (absl::string_view input : InputsOf(layer)) {
      if (known.contains(input)) continue;
      return Invalid(label,
                     absl::StrCat("input \"", input, "\" is ",
                                  layers.contains(input) ? "not an earlier layer but this or a later one"
                                                         : "neither a feature nor a layer"));
    }
    if (absl::Status status = CheckBlocks(layer); !status.ok()) return status;
    if (!known.insert(layer.name()).second) return Invalid(label, "a feature has this name too");
  }
  for (const v1::Output& output : manifest.outputs()) {
    if (layers.contains(output.input())) continue;
    return Invalid(Label("output", output.name()),
                   absl::StrCat("input \"", output.input(), "\" is not a layer"));
  }
  return absl::OkStatus();
}

absl::Status CheckSequence(const v1::Sequence& sequence) {
  const std::string label = Label("sequence", sequence.name());
  if (sequence.max_length() < 1 || sequence.max_length() > kMaxLength) {
    return Invalid(label,
                   absl::StrCat("maxLength: expected 1 to ", kMaxLength, ", got ", sequence.max_length()));
  }
  std::set<absl::string_view> actions;
  for (const std::string& action : sequence.actions()) {
    if (!actions.insert(action).second) {
      return Invalid(label, absl::StrCat("action \"", action, "\" is listed twice"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckItemFeature(const v1::BundleManifest& manifest) {
  for (const v1::Feature& feature : manifest.features()) {
    if (feature.name() != manifest.item_feature()) continue;
    const bool fits = feature.level() == v1::CANDIDATE && feature.from() == v1::REQUEST && feature.has_id() &&
                      feature.id().bag() == v1::IdFeature::SINGLE;
    if (fits) return absl::OkStatus();
    return Invalid(Label("feature", feature.name()),
                   "expected the itemFeature to be a CANDIDATE feature from REQUEST with a SINGLE id");
  }
  return Invalid("bundle.json",
                 absl::StrCat("itemFeature \"", manifest.item_feature(), "\" is not among the features"));
}

}  // namespace

absl::Status CheckManifest(const v1::BundleManifest& manifest) {
  if (manifest.has_format_version() && manifest.format_version() != kFormatVersion) {
    // Before all else: of another format nothing else can be said.
    return Invalid("bundle.json", absl::StrCat("formatVersion: expected ", kFormatVersion, ", got ",
                                               manifest.format_version()));
  }
  absl::Status status = PresenceCheck("bundle.json").Check(manifest, "");
  if (status.ok()) status = CheckItems(manifest.sequences(), "sequences", "sequence");
  if (status.ok()) status = CheckItems(manifest.features(), "features", "feature");
  if (status.ok()) status = CheckItems(manifest.tables(), "tables", "table");
  if (status.ok()) status = CheckItems(manifest.layers(), "layers", "layer");
  if (status.ok()) status = CheckItems(manifest.outputs(), "outputs", "output");
  if (!status.ok()) return status;

  std::set<absl::string_view> sequences, tables;
  for (const v1::Sequence& sequence : manifest.sequences()) {
    sequences.insert(sequence.name());
    status = CheckSequence(sequence);
    if (!status.ok()) return status;
  }
  for (const v1::Table& table : manifest.tables()) {
    tables.insert(table.name());
    if (table.dim() == 0) return Invalid(Label("table", table.name()), "dim: expected at least 1, got 0");
  }
  for (const v1::Feature& feature : manifest.features()) {
    status = CheckFeature(feature, sequences, tables);
    if (!status.ok()) return status;
  }
  status = CheckItemFeature(manifest);
  if (!status.ok()) return status;
  return CheckLayers(manifest);
}

}  // namespace dinghy
