// Histories as request data: made from stored events, and cut.
#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "features/encoder.h"
#include "features/schema.h"

namespace dinghy {
namespace {

using Events = google::protobuf::RepeatedPtrField<v1::Event>;

constexpr char kAction[] = "action";

absl::string_view ValueTypeName(const v1::EventValue& value) {
  switch (value.value_case()) {
    case v1::EventValue::kInteger:
      return "an integer";
    case v1::EventValue::kText:
      return "a text";
    case v1::EventValue::kNumber:
      return "a number";
    default:
      return "no value";
  }
}

absl::Status AppendItems(const v1::IdFeature& id, const Events& events, v1::Column& column) {
  const bool integers = id.type() == v1::IdFeature::INT64;
  // Set even where there are no events, so that the column has a type.
  if (integers) column.mutable_ints();
  if (!integers) column.mutable_strings();
  for (int i = 0; i < events.size(); ++i) {
    const v1::Event& event = events[i];
    if (integers ? !event.has_item_id() : !event.has_item_key()) {
      const absl::string_view got = event.has_item_id()    ? "an integer"
                                    : event.has_item_key() ? "a text"
                                                           : "none";
      return absl::InvalidArgumentError(absl::StrCat(
          "event ", i, ": expected ", integers ? "an integer" : "a text", " as its item, got ", got));
    }
    if (integers) column.mutable_ints()->add_values(event.item_id());
    if (!integers) column.mutable_strings()->add_values(event.item_key());
  }
  return absl::OkStatus();
}

// Adds the values of `event` that are named `field`; returns how many.
absl::StatusOr<uint32_t> AppendValues(const v1::Feature& feature, const std::string& field,
                                      const v1::Event& event, v1::Column& column) {
  uint32_t count = 0;
  for (const v1::EventValue& value : event.values()) {
    if (value.name() != field) continue;
    ++count;
    bool right = false;
    absl::string_view expected = "a number";
    if (column.has_ints()) {
      expected = "an integer";
      if ((right = value.has_integer())) column.mutable_ints()->add_values(value.integer());
    } else if (column.has_strings()) {
      expected = "a text";
      if ((right = value.has_text())) column.mutable_strings()->add_values(value.text());
    } else if (value.has_integer()) {
      right = feature.has_numeric();
      column.mutable_floats()->add_values(static_cast<float>(value.integer()));
    } else if ((right = value.has_number())) {
      column.mutable_floats()->add_values(value.number());
    }
    if (!right) {
      return absl::InvalidArgumentError(
          absl::StrCat("value \"", field, "\": expected ", expected, ", got ", ValueTypeName(value)));
    }
  }
  return count;
}

absl::Status AppendColumn(const ColumnEncoder& encoder, const std::string& field, const Events& events,
                          v1::Column& column) {
  const v1::Feature& feature = encoder.feature();
  if (feature.has_id() && feature.id().type() == v1::IdFeature::INT64) {
    column.mutable_ints();
  } else if (feature.has_id()) {
    column.mutable_strings();
  } else {
    column.mutable_floats();
  }
  const uint32_t width = feature.has_vector() ? feature.vector().dim() : 1;
  bool lengths_needed = encoder.is_bag() || width > 1;
  for (int i = 0; i < events.size(); ++i) {
    const absl::StatusOr<uint32_t> count = AppendValues(feature, field, events[i], column);
    if (!count.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("event ", i, ": ", count.status().message()));
    }
    const bool missing = *count == 0;
    if ((missing && !encoder.has_missing()) || (!missing && !encoder.is_bag() && *count != width)) {
      return absl::InvalidArgumentError(
          absl::StrCat("event ", i, ": value \"", field, "\": expected ",
                       encoder.is_bag() ? "at least 1" : absl::StrCat(width), ", got ", *count,
                       missing ? ", and the feature has no missing value" : ""));
    }
    lengths_needed = lengths_needed || missing;
    column.add_lengths(*count);
  }
  if (!lengths_needed) column.clear_lengths();
  return absl::OkStatus();
}

// Appends the values of rows `rows`, ascending. Empty `lengths`: one value a row.
template <typename Values>
void CopyValues(const Values& from, const google::protobuf::RepeatedField<uint32_t>& lengths,
                absl::Span<const int> rows, Values& to) {
  int row = 0;
  int64_t begin = 0;  // of `row`'s values
  for (const int wanted : rows) {
    if (lengths.empty()) {
      *to.Add() = from[wanted];
      continue;
    }
    for (; row < wanted; ++row) begin += lengths[row];
    for (uint32_t i = 0; i < lengths[wanted]; ++i) *to.Add() = from[static_cast<int>(begin + i)];
  }
}

}  // namespace

absl::Status RequestEncoder::FromEvents(int index, const Events& events, v1::SequenceData& data) const {
  const SequenceSchema& sequence = schema_->sequences[index];
  data.Clear();
  data.set_sequence(sequence.sequence->name());
  const auto error = [&data](absl::string_view message) {
    return absl::InvalidArgumentError(absl::StrCat("sequence \"", data.sequence(), "\": ", message));
  };
  data.mutable_event_time_ms()->Reserve(events.size());
  for (const v1::Event& event : events) data.add_event_time_ms(event.event_time_ms());
  if (schema_->item_feature >= 0) {
    v1::Column& items = *data.add_columns();
    items.set_feature(schema_->item().name());
    if (absl::Status status = AppendItems(schema_->item().id(), events, items); !status.ok()) {
      return error(status.message());
    }
  }
  // In the manifest's order, so that equal histories give equal bytes.
  for (int i = 0; i < schema_->manifest->features_size(); ++i) {
    const v1::Feature& feature = schema_->feature(i);
    const std::string& field = schema_->fields[i];
    if (schema_->sequence_of[i] != index || feature.from() != v1::EVENT || feature.has_time_since() ||
        field == schema_->manifest->item_feature()) {
      continue;
    }
    v1::Column& column = *data.add_columns();
    column.set_feature(field);
    if (field == kAction) {
      for (const v1::Event& event : events) column.mutable_strings()->add_values(event.action());
      column.mutable_strings();
    } else if (absl::Status status = AppendColumn(*schema_->encoders[i], field, events, column);
               !status.ok()) {
      return error(absl::StrCat("feature \"", feature.name(), "\": ", status.message()));
    }
  }
  return absl::OkStatus();
}

void CopyBehaviors(const v1::SequenceData& from, absl::Span<const int> behaviors, v1::SequenceData& to) {
  to.Clear();
  to.set_sequence(from.sequence());
  to.set_source(from.source());
  if (!from.event_time_ms().empty()) {
    for (const int behavior : behaviors) to.add_event_time_ms(from.event_time_ms(behavior));
  }
  for (const v1::Column& column : from.columns()) {
    v1::Column& copy = *to.add_columns();
    copy.set_feature(column.feature());
    if (!column.lengths().empty()) {
      for (const int behavior : behaviors) copy.add_lengths(column.lengths(behavior));
    }
    // The type is set even where nothing is left, so that the column keeps it.
    if (column.has_ints()) {
      CopyValues(column.ints().values(), column.lengths(), behaviors, *copy.mutable_ints()->mutable_values());
    } else if (column.has_strings()) {
      CopyValues(column.strings().values(), column.lengths(), behaviors,
                 *copy.mutable_strings()->mutable_values());
    } else if (column.has_floats()) {
      CopyValues(column.floats().values(), column.lengths(), behaviors,
                 *copy.mutable_floats()->mutable_values());
    }
  }
}

}  // namespace dinghy
