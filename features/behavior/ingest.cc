#include "features/behavior/ingest.h"

#include <farmhash.h>
#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iostream>
#include <set>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "features/behavior/line_reader.h"

namespace dinghy {
namespace {

// The event_id of an event of row `row` that has none. Rows come first, so that events of one millisecond
// keep their order; the content behind them tells equal rows of two files apart.
uint64_t EventIdOf(const v1::Event& event, uint64_t row) {
  constexpr int kContentBits = 28;
  v1::Event content = event;
  content.clear_event_id();
  const std::string bytes = content.SerializeAsString();
  return row << kContentBits | (util::Fingerprint64(bytes.data(), bytes.size()) >> (64 - kContentBits));
}

// `has_id`: whether the line says an event_id.
absl::Status ParseJson(const std::string& line, v1::Event& event, bool& has_id) {
  const auto status = google::protobuf::util::JsonStringToMessage(line, &event);
  if (!status.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected the protobuf JSON of an Event: ", std::string(status.message())));
  }
  // The message does not tell an absent number from 0, its text does.
  const auto has = [&line](absl::string_view name, absl::string_view json_name) {
    return absl::StrContains(line, absl::StrCat("\"", name, "\"")) ||
           absl::StrContains(line, absl::StrCat("\"", json_name, "\""));
  };
  if (event.event_time_ms() == 0 && !has("event_time_ms", "eventTimeMs")) {
    return absl::InvalidArgumentError("event_time_ms: expected milliseconds since the epoch, got none");
  }
  has_id = event.event_id() != 0 || has("event_id", "eventId");
  return absl::OkStatus();
}

// The columns that a TSV header names, and the rows under it.
class TsvParser {
 public:
  absl::Status ReadHeader(absl::string_view line);
  // `has_id`: whether the row has an event_id.
  absl::Status ParseRow(absl::string_view line, v1::Event& event, bool& has_id) const;

 private:
  enum class Kind {
    kUserId,
    kTime,
    kEventId,
    kItemId,
    kItemKey,
    kAction,
    kIngestTime,
    kInt,
    kFloat,
    kString
  };
  struct Column {
    Kind kind;
    std::string name;  // as in the header, without the suffix of a value
  };
  static absl::Status SetCell(const Column& column, absl::string_view cell, v1::Event& event);

  std::vector<Column> columns_;
};

absl::Status TsvParser::ReadHeader(absl::string_view line) {
  static constexpr struct {
    absl::string_view name;
    Kind kind;
  } kFixed[] = {{"user_id", Kind::kUserId},           {"event_time_ms", Kind::kTime},
                {"event_id", Kind::kEventId},         {"item_id", Kind::kItemId},
                {"item_key", Kind::kItemKey},         {"action", Kind::kAction},
                {"ingest_time_ms", Kind::kIngestTime}};
  std::set<std::string> names;
  for (const absl::string_view text : absl::StrSplit(line, '\t')) {
    absl::string_view name = text;
    const auto fixed = std::find_if(std::begin(kFixed), std::end(kFixed),
                                    [&](const auto& known) { return known.name == name; });
    Kind kind;
    if (fixed != std::end(kFixed)) {
      kind = fixed->kind;
    } else if (absl::ConsumeSuffix(&name, ":int")) {
      kind = Kind::kInt;
    } else if (absl::ConsumeSuffix(&name, ":float")) {
      kind = Kind::kFloat;
    } else if (absl::ConsumeSuffix(&name, ":string")) {
      kind = Kind::kString;
    } else {
      return absl::InvalidArgumentError(absl::StrCat(
          "header: expected user_id, event_time_ms, event_id, item_id, item_key, action, ingest_time_ms or "
          "<name>:int|float|string, got column \"",
          absl::CHexEscape(text), "\""));
    }
    if (name.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("header: column \"", text, "\" has no name"));
    }
    if (!names.emplace(name).second) {
      return absl::InvalidArgumentError(absl::StrCat("header: column \"", name, "\" stands there twice"));
    }
    columns_.push_back({kind, std::string(name)});
  }
  for (const std::string needed : {"user_id", "event_time_ms", "action"}) {
    if (!names.contains(needed)) {
      return absl::InvalidArgumentError(
          absl::StrCat("header: column \"", needed, "\" is missing, got ", absl::StrJoin(names, ", ")));
    }
  }
  if (!names.contains("item_id") && !names.contains("item_key")) {
    return absl::InvalidArgumentError(absl::StrCat(
        "header: expected a column \"item_id\" or \"item_key\", got ", absl::StrJoin(names, ", ")));
  }
  return absl::OkStatus();
}

absl::Status TsvParser::ParseRow(absl::string_view line, v1::Event& event, bool& has_id) const {
  const std::vector<absl::string_view> cells = absl::StrSplit(line, '\t');
  if (cells.size() != columns_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected ", columns_.size(), " columns, got ", cells.size()));
  }
  for (size_t i = 0; i < cells.size(); ++i) {
    has_id = has_id || (columns_[i].kind == Kind::kEventId && !cells[i].empty());
    if (absl::Status status = SetCell(columns_[i], cells[i], event); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status TsvParser::SetCell(const Column& column, absl::string_view cell, v1::Event& event) {
  const auto wrong = [&](absl::string_view expected) {
    return absl::InvalidArgumentError(absl::StrCat("column \"", column.name, "\": expected ", expected,
                                                   ", got \"", absl::CHexEscape(cell.substr(0, 64)), "\""));
  };
  int64_t integer = 0;
  uint64_t natural = 0;
  float number = 0;
  switch (column.kind) {
    case Kind::kUserId:
      event.set_user_id(std::string(cell));
      return absl::OkStatus();
    case Kind::kAction:
      event.set_action(std::string(cell));
      return absl::OkStatus();
    case Kind::kTime:
      if (!absl::SimpleAtoi(cell, &integer)) return wrong("milliseconds since the epoch");
      event.set_event_time_ms(integer);
      return absl::OkStatus();
    default:
      break;
  }
  if (cell.empty()) return absl::OkStatus();  // all others may be absent
  switch (column.kind) {
    case Kind::kEventId:
      if (!absl::SimpleAtoi(cell, &natural)) return wrong("an integer of 0 to 2^64 - 1");
      event.set_event_id(natural);
      break;
    case Kind::kIngestTime:
      if (!absl::SimpleAtoi(cell, &integer)) return wrong("milliseconds since the epoch");
      event.set_ingest_time_ms(integer);
      break;
    case Kind::kItemId:
      if (event.item_case() != v1::Event::ITEM_NOT_SET) return wrong("nothing beside an item_key");
      if (!absl::SimpleAtoi(cell, &integer)) return wrong("an integer");
      event.set_item_id(integer);
      break;
    case Kind::kItemKey:
      if (event.item_case() != v1::Event::ITEM_NOT_SET) return wrong("nothing beside an item_id");
      event.set_item_key(std::string(cell));
      break;
    case Kind::kInt: {
      if (!absl::SimpleAtoi(cell, &integer)) return wrong("an integer");
      v1::EventValue* const value = event.add_values();
      value->set_name(column.name);
      value->set_integer(integer);
      break;
    }
    case Kind::kFloat: {
      if (!absl::SimpleAtof(cell, &number) || !std::isfinite(number)) return wrong("a finite number");
      v1::EventValue* const value = event.add_values();
      value->set_name(column.name);
      value->set_number(number);
      break;
    }
    case Kind::kString: {
      v1::EventValue* const value = event.add_values();
      value->set_name(column.name);
      value->set_text(std::string(cell));
      break;
    }
    default:
      break;
  }
  return absl::OkStatus();
}

// kAuto where the name does not say.
EventFormat FormatOf(absl::string_view name) {
  if (absl::EndsWith(name, ".jsonl") || absl::EndsWith(name, ".json")) return EventFormat::kJsonl;
  if (absl::EndsWith(name, ".tsv")) return EventFormat::kTsv;
  return EventFormat::kAuto;
}

// Collects events and appends them by batches.
class Batch {
 public:
  Batch(const std::string& name, const IngestOptions& options, const AppendFunction& append,
        IngestCounts& counts)
      : name_(name), options_(options), append_(append), counts_(counts) {}

  absl::Status Add(v1::Event event, int64_t line) {
    if (events_.empty()) first_line_ = line;
    last_line_ = line;
    events_.push_back(std::move(event));
    ++counts_.read;
    return static_cast<int>(events_.size()) >= options_.batch_size ? Append() : absl::OkStatus();
  }

  absl::Status Append() {
    if (events_.empty()) return absl::OkStatus();
    const absl::StatusOr<AppendResult> result = append_(events_);
    if (!result.ok()) {
      return absl::Status(result.status().code(),
                          absl::StrCat(name_, ":", first_line_, ": the events of lines ", first_line_, " to ",
                                       last_line_, " were not stored: ", result.status().message()));
    }
    counts_.appended += result->appended;
    counts_.duplicates += result->duplicates;
    events_.clear();
    if (options_.on_progress) options_.on_progress(counts_);
    return absl::OkStatus();
  }

 private:
  const std::string& name_;
  const IngestOptions& options_;
  const AppendFunction& append_;
  IngestCounts& counts_;
  std::vector<v1::Event> events_;
  int64_t first_line_ = 0;
  int64_t last_line_ = 0;
};

}  // namespace

absl::Status IngestFile(const std::string& path, const IngestOptions& options, const AppendFunction& append,
                        IngestCounts& counts) {
  if (path == "-") return IngestStream(std::cin, "standard input", options, append, counts);
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat(path, ": cannot be opened: ", std::strerror(errno)));
  return IngestStream(file, path, options, append, counts);
}

absl::Status IngestStream(std::istream& stream, const std::string& name, const IngestOptions& options,
                          const AppendFunction& append, IngestCounts& counts) {
  EventFormat format = options.format;
  if (format == EventFormat::kAuto) format = FormatOf(name);
  LineReader reader(stream, options.max_line_bytes);
  Batch batch(name, options, append, counts);
  TsvParser tsv;
  bool header = format == EventFormat::kTsv;
  uint64_t row = 0;
  std::string line;
  for (;;) {
    const LineReader::Result read = reader.Next(line);
    if (read == LineReader::kEnd) return batch.Append();
    if (format == EventFormat::kAuto && !line.empty()) {
      const bool json = absl::StartsWith(absl::StripLeadingAsciiWhitespace(line), "{");
      format = json ? EventFormat::kJsonl : EventFormat::kTsv;
      header = !json;
    }
    absl::Status status;
    v1::Event event;
    bool has_id = false;
    const bool was_header = header;
    if (read == LineReader::kFailed) {
      status = absl::DataLossError("reading failed after this line");
    } else if (read == LineReader::kTooLong) {
      ++row;
      status = absl::InvalidArgumentError(
          absl::StrCat("expected a line of at most ", options.max_line_bytes, " bytes, got a longer one"));
    } else if (line.empty()) {
      continue;
    } else if (header) {
      status = tsv.ReadHeader(line);
      header = false;
      if (status.ok()) continue;
    } else {
      status =
          format == EventFormat::kTsv ? tsv.ParseRow(line, event, has_id) : ParseJson(line, event, has_id);
      if (!has_id) event.set_event_id(row);  // what faults name
      if (status.ok()) status = CheckEvent(event);
      if (status.ok() && !has_id) event.set_event_id(EventIdOf(event, row));
      ++row;
    }
    if (status.ok()) {
      status = batch.Add(std::move(event), reader.number());
      if (!status.ok()) return status;
      continue;
    }
    status = absl::Status(status.code(), absl::StrCat(name, ":", reader.number(), ": ", status.message()));
    // Nothing can be read below a bad header or after a failed read.
    if (options.skip_bad && !was_header && read != LineReader::kFailed) {
      ++counts.bad_lines;
      if (options.on_bad_line) options.on_bad_line(status);
      continue;
    }
    const absl::Status appended = batch.Append();
    return appended.ok() ? status : appended;
  }
}

}  // namespace dinghy
