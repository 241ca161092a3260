#include "features/schema.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace dinghy {
namespace {

// The field of the event's action.
constexpr char kAction[] = "action";

absl::Status Invalid(absl::string_view kind, absl::string_view name, absl::string_view message) {
  return absl::InvalidArgumentError(absl::StrCat(kind, " \"", name, "\": ", message));
}

absl::Status CheckSource(const v1::Feature& feature) {
  bool right = feature.from() != v1::FEATURE_SOURCE_UNSPECIFIED;
  if (feature.level() == v1::USER) right = feature.from() == v1::REQUEST;
  if (feature.level() == v1::CANDIDATE) right = right && feature.from() != v1::EVENT;
  if (feature.has_time_since()) right = feature.level() == v1::SEQUENCE && feature.from() == v1::EVENT;
  if (right) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "from: expected REQUEST for USER, REQUEST or CATALOG for CANDIDATE, EVENT at SEQUENCE level for "
      "time_since features, got ",
      v1::FeatureSource_Name(feature.from()), " at level ", v1::Level_Name(feature.level())));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Schema>> Schema::Create(const v1::BundleManifest& manifest,
                                                       const FileContents& files,
                                                       absl::Span<const int64_t> table_rows) {
  if (table_rows.size() != static_cast<size_t>(manifest.tables_size())) {
    return absl::InvalidArgumentError(absl::StrCat("tables: expected the rows of ", manifest.tables_size(),
                                                   " tables, got ", table_rows.size()));
  }
  auto schema = std::make_unique<Schema>();
  schema->manifest = &manifest;
  for (const v1::Sequence& sequence : manifest.sequences()) {
    if (absl::Status status = schema->AddSequence(sequence); !status.ok()) {
      return Invalid("sequence", sequence.name(), status.message());
    }
  }
  schema->fields.resize(static_cast<size_t>(manifest.features_size()));
  schema->sequence_of.resize(static_cast<size_t>(manifest.features_size()), -1);
  FeatureIndex tables;
  for (int i = 0; i < manifest.tables_size(); ++i) {
    const std::string& name = manifest.tables(i).name();
    if (name.empty() || !tables.emplace(name, i).second) {
      return Invalid("table", name, "name: expected a name of its own");
    }
  }
  for (int i = 0; i < manifest.features_size(); ++i) {
    const v1::Feature& feature = manifest.features(i);
    const bool embedded = feature.has_id() || feature.has_time_since();
    const auto table = tables.find(feature.table());
    if (embedded ? table == tables.end() : !feature.table().empty()) {
      return Invalid("feature", feature.name(),
                     absl::StrCat("table: expected ", embedded ? "one of the tables" : "none", ", got \"",
                                  feature.table(), "\""));
    }
    absl::Status status = schema->AddFeature(i);
    if (status.ok()) {
      auto encoder = ColumnEncoder::Create(feature, files, embedded ? table_rows[table->second] : 0);
      status = encoder.status();
      if (status.ok()) schema->encoders.push_back(*std::move(encoder));
    }
    if (!status.ok()) {
      return absl::Status(status.code(),
                          absl::StrCat("feature \"", feature.name(), "\": ", status.message()));
    }
  }
  if (absl::Status status = schema->SetItemFeature(); !status.ok()) return status;
  for (SequenceSchema& sequence : schema->sequences) {
    if (absl::Status status = schema->SetSkipFeature(sequence); !status.ok()) {
      return Invalid("sequence", sequence.sequence->name(), absl::StrCat("skip_pad_of: ", status.message()));
    }
  }

  std::vector<CatalogRead> reads;
  for (int i = 0; i < manifest.features_size(); ++i) {
    if (manifest.features(i).from() != v1::CATALOG) continue;
    reads.push_back({.feature = i, .field = &schema->fields[i], .encoder = schema->encoders[i].get()});
  }
  if (!reads.empty()) {
    if (schema->item_feature < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("item_feature: expected the item id's feature, as feature \"",
                       manifest.features(reads[0].feature).name(), "\" reads the catalog, got none"));
    }
    const auto json = files.find("catalog.json");
    if (json == files.end()) {
      return absl::NotFoundError(absl::StrCat("catalog.json: expected it in the bundle, as feature \"",
                                              manifest.features(reads[0].feature).name(), "\" reads it"));
    }
    auto catalog = Catalog::Read(json->second, schema->item(), reads);
    if (!catalog.ok()) return catalog.status();
    schema->catalog = *std::move(catalog);
  }
  return schema;
}

absl::Status Schema::AddSequence(const v1::Sequence& sequence) {
  if (sequence.name().empty() || sequence.name().find('.') != std::string::npos) {
    return absl::InvalidArgumentError("name: expected one without \".\"");
  }
  if (sequence.actions().empty()) {
    return absl::InvalidArgumentError("actions: expected at least one, got none");
  }
  if (!sequence.has_max_length()) return absl::InvalidArgumentError("max_length: expected a value, got none");
  if (sequence.max_length() == 0 || sequence.max_length() > 1u << 20) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_length: expected 1 to ", 1 << 20, ", got ", sequence.max_length()));
  }
  if (sequence.keep() != v1::Sequence::NEWEST && sequence.keep() != v1::Sequence::OLDEST) {
    return absl::InvalidArgumentError(
        absl::StrCat("keep: expected NEWEST or OLDEST, got ", v1::Sequence::Keep_Name(sequence.keep())));
  }
  if (sequence.pad() == v1::Sequence::PAD_UNSPECIFIED) {
    return absl::InvalidArgumentError("pad: expected NONE, LEFT or RIGHT, got nothing");
  }
  if (!sequence_index.emplace(sequence.name(), static_cast<int>(sequences.size())).second) {
    return absl::InvalidArgumentError("name: expected each once, got it again");
  }
  sequences.push_back({.sequence = &sequence, .features = {}});
  return absl::OkStatus();
}

absl::Status Schema::AddFeature(int index) {
  const v1::Feature& feature = manifest->features(index);
  if (feature.name().empty()) return absl::InvalidArgumentError("name: expected one, got none");
  if (absl::Status status = CheckSource(feature); !status.ok()) return status;
  const bool is_sequence = feature.level() == v1::SEQUENCE;
  if (!is_sequence && !feature.sequence().empty()) {
    return absl::InvalidArgumentError(absl::StrCat("sequence: expected none at level ",
                                                   v1::Level_Name(feature.level()), ", got \"",
                                                   feature.sequence(), "\""));
  }
  std::string field = feature.name();
  int sequence = -1;
  FeatureIndex* index_of_level = nullptr;
  if (is_sequence) {
    const auto found = sequence_index.find(feature.sequence());
    if (found == sequence_index.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("sequence: expected one of the sequences, got \"", feature.sequence(), "\""));
    }
    const std::string prefix = absl::StrCat(feature.sequence(), ".");
    if (!field.starts_with(prefix) || field.size() == prefix.size()) {
      return absl::InvalidArgumentError(absl::StrCat("name: expected \"", prefix, "<field>\""));
    }
    field.erase(0, prefix.size());
    sequence = found->second;
    index_of_level = &sequences[sequence].features;
    if (field == kAction && feature.from() == v1::EVENT && feature.id().type() != v1::IdFeature::STRING) {
      return absl::InvalidArgumentError("expected an id feature of type STRING, which an event's action is");
    }
    // An event's absent bag and an empty one look the same in a column.
    if (feature.from() == v1::EVENT && feature.id().bag() > v1::IdFeature::SINGLE &&
        feature.missing_id() == v1::OOV_ROW) {
      return absl::InvalidArgumentError(
          "missing_id: expected PAD_ROW or none for a bag from EVENT, got OOV_ROW");
    }
  } else if (feature.level() == v1::USER) {
    index_of_level = &user_features;
  } else if (feature.level() == v1::CANDIDATE) {
    index_of_level = &candidate_features;
  } else {
    return absl::InvalidArgumentError("level: expected USER, SEQUENCE or CANDIDATE, got none");
  }
  for (int i = 0; i < index; ++i) {
    if (manifest->features(i).name() == feature.name()) {
      return absl::InvalidArgumentError("name: expected each once, got it again");
    }
  }
  fields[index] = std::move(field);
  sequence_of[index] = sequence;
  if (feature.has_time_since()) {
    sequences[sequence].time_feature = index;
  } else {
    index_of_level->emplace(fields[index], index);
  }
  return absl::OkStatus();
}

absl::Status Schema::SetItemFeature() {
  const std::string& name = manifest->item_feature();
  if (name.empty()) return absl::OkStatus();
  const auto found = candidate_features.find(name);
  if (found == candidate_features.end() || feature(found->second).id().bag() != v1::IdFeature::SINGLE ||
      feature(found->second).from() != v1::REQUEST) {
    return absl::InvalidArgumentError(absl::StrCat(
        "item_feature: expected a CANDIDATE id feature, SINGLE and from REQUEST, got \"", name, "\""));
  }
  item_feature = found->second;
  for (const SequenceSchema& sequence : sequences) {
    const auto behavior_item = sequence.features.find(name);
    if (behavior_item == sequence.features.end()) continue;
    const v1::IdFeature& id = feature(behavior_item->second).id();
    if (id.type() != item().id().type() || id.bag() != v1::IdFeature::SINGLE) {
      return Invalid("feature", feature(behavior_item->second).name(),
                     absl::StrCat("id: expected a SINGLE id of type ",
                                  v1::IdFeature::Type_Name(item().id().type()), ", as \"", name, "\" is"));
    }
  }
  return absl::OkStatus();
}

absl::Status Schema::SetSkipFeature(SequenceSchema& sequence) {
  const std::string& name = sequence.sequence->skip_pad_of();
  if (name.empty()) return absl::OkStatus();
  const auto found = std::find_if(manifest->features().begin(), manifest->features().end(),
                                  [&name](const v1::Feature& feature) { return feature.name() == name; });
  if (found == manifest->features().end()) {
    return absl::InvalidArgumentError(absl::StrCat("expected a feature, got \"", name, "\""));
  }
  const absl::string_view wrong = found->sequence() != sequence.sequence->name()
                                      ? "which is not of this sequence"
                                  : !found->has_id()                           ? "which has no id"
                                  : found->id().bag() != v1::IdFeature::SINGLE ? "which is a bag"
                                  : !found->id().has_pad_row()                 ? "which has no pad_row"
                                                                               : "";
  if (!wrong.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "expected a SINGLE id feature of this sequence with a pad_row, got \"", name, "\", ", wrong));
  }
  sequence.skip_feature = static_cast<int>(found - manifest->features().begin());
  return absl::OkStatus();
}

}  // namespace dinghy
