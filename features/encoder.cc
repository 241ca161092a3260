#include "features/encoder.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory_resource>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "features/located_columns.h"
#include "features/schema.h"

namespace dinghy {
namespace {

absl::Status Invalid(std::string message) { return absl::InvalidArgumentError(std::move(message)); }

std::string SequencePlace(absl::string_view sequence) { return absl::StrCat("sequence \"", sequence, "\""); }

// One sequence of a request, after truncation.
struct History {
  const v1::SequenceData* data = nullptr;
  const v1::Column* items = nullptr;  // the column of item ids, if there is one
  int begin = 0;
  int rows = 0;
};

// One call of Encode. What it needs beside the batch lies in a buffer on the stack, as a rule.
class EncodeCall {
 public:
  EncodeCall(const Schema& schema, int max_candidates, const v1::ScoreRequest& request)
      : schema_(schema),
        max_candidates_(max_candidates),
        request_(request),
        memory_(buffer_.data(), buffer_.size()),
        columns_(schema.encoders.size(), nullptr, &memory_),
        histories_(schema.sequences.size(), History{}, &memory_),
        candidate_items_(&memory_),
        behavior_items_(schema.sequences.size(), &memory_) {}

  absl::StatusOr<int> LocateCandidates();
  absl::Status Encode(FeatureBatch& batch, EncodeNotes& notes);

 private:
  absl::Status LocateUser();
  absl::Status LocateSequences();
  absl::Status LocateSequence(const v1::SequenceData& data, const SequenceSchema& sequence, History& history);
  absl::Status CheckTimes(const v1::SequenceData& data, const SequenceSchema& sequence, int rows) const;
  absl::Status FindItems(const v1::Column& items, int begin, int rows, std::pmr::vector<int>& found) const;

  absl::Status EncodeFeature(int index, FeatureBatch& batch, EncodeNotes& notes);
  absl::Status EncodeFromCatalog(int index, int begin, int rows, FeatureColumn& out, OovCounter& oov);
  void LeaveOutPads(int index, FeatureBatch& batch, std::vector<int>& used) const;
  absl::Status MissingColumn(int index) const;
  std::string Place(int index) const;

  // Where candidates' or behaviors' items are in the catalog; empty until they are looked up.
  std::pmr::vector<int>& CatalogRows(int index) {
    const int sequence = schema_.sequence_of[index];
    return sequence < 0 ? candidate_items_ : behavior_items_[sequence];
  }

  const Schema& schema_;
  const int max_candidates_;
  const v1::ScoreRequest& request_;
  std::array<std::byte, 16384> buffer_;
  std::pmr::monotonic_buffer_resource memory_;
  std::pmr::vector<const v1::Column*> columns_;  // by feature; null where the request has none
  std::pmr::vector<History> histories_;          // by sequence
  std::pmr::vector<int> candidate_items_;
  std::pmr::vector<std::pmr::vector<int>> behavior_items_;  // by sequence
  UnknownColumns unknown_user_{&memory_};
  UnknownColumns unknown_candidates_{&memory_};
  std::pmr::vector<std::string> unknown_behaviors_{&memory_};
};

absl::Status EncodeCall::LocateUser() {
  LocatedColumns located{.rows = 1, .unknown = &unknown_user_, .by_feature = columns_.data()};
  for (const Columns* columns : {&request_.user(), &request_.context()}) {
    if (absl::Status status = Locate(schema_, *columns, schema_.user_features, "user or context",
                                     /*bare_vectors=*/true, located);
        !status.ok()) {
      return status;
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<int> EncodeCall::LocateCandidates() {
  LocatedColumns located{.unknown = &unknown_candidates_, .by_feature = columns_.data()};
  if (absl::Status status = Locate(schema_, request_.candidates(), schema_.candidate_features, "candidates",
                                   /*bare_vectors=*/true, located);
      !status.ok()) {
    return status;
  }
  if (located.rows > max_candidates_) {
    return Invalid(absl::StrCat("candidates: expected at most ", max_candidates_, ", got ", located.rows));
  }
  return std::max(located.rows, 0);
}

absl::Status EncodeCall::LocateSequences() {
  for (const v1::SequenceData& data : request_.sequences()) {
    const auto found = schema_.sequence_index.find(data.sequence());
    if (found == schema_.sequence_index.end()) {
      const auto name = [](std::string* out, const v1::Sequence& sequence) {
        absl::StrAppend(out, "\"", sequence.name(), "\"");
      };
      return Invalid(absl::StrCat("sequences: expected one of [",
                                  absl::StrJoin(schema_.manifest->sequences(), ", ", name), "], got \"",
                                  data.sequence(), "\""));
    }
    History& history = histories_[found->second];
    if (history.data != nullptr) {
      return Invalid(absl::StrCat(SequencePlace(data.sequence()), ": expected once, got it again"));
    }
    history.data = &data;
    if (absl::Status status = LocateSequence(data, schema_.sequences[found->second], history); !status.ok()) {
      return status;
    }
  }
  return absl::OkStatus();
}

absl::Status EncodeCall::LocateSequence(const v1::SequenceData& data, const SequenceSchema& sequence,
                                        History& history) {
  UnknownColumns unknown(&memory_);
  LocatedColumns located{.unknown = &unknown, .by_feature = columns_.data()};
  // The place in messages is made where there is something to say.
  absl::Status status =
      Locate(schema_, data.columns(), sequence.features, "", /*bare_vectors=*/false, located);
  if (!status.ok()) return Invalid(absl::StrCat(SequencePlace(data.sequence()), status.message()));
  if (status = CheckTimes(data, sequence, located.rows); !status.ok()) return status;

  const std::string& item_name = schema_.manifest->item_feature();
  for (const v1::Column& column : data.columns()) {
    if (!item_name.empty() && column.feature() == item_name) {
      history.items = &column;
    } else if (unknown.contains(column.feature())) {
      unknown_behaviors_.push_back(absl::StrCat(data.sequence(), ".", column.feature()));
    }
  }
  const int behaviors = located.rows >= 0 ? located.rows : data.event_time_ms_size();
  history.rows = std::min(behaviors, static_cast<int>(sequence.sequence->max_length()));
  history.begin = sequence.sequence->keep() == v1::Sequence::NEWEST ? behaviors - history.rows : 0;
  return absl::OkStatus();
}

// `rows`: those of the columns, or -1 where there are none.
absl::Status EncodeCall::CheckTimes(const v1::SequenceData& data, const SequenceSchema& sequence,
                                    int rows) const {
  const auto error = [&data](absl::string_view message) {
    return Invalid(absl::StrCat(SequencePlace(data.sequence()), " event_time_ms: ", message));
  };
  const auto& times = data.event_time_ms();
  if (times.empty()) {
    if (rows <= 0 || sequence.time_feature < 0) return absl::OkStatus();
    return error(absl::StrCat("expected ", rows, " values, as feature \"",
                              schema_.feature(sequence.time_feature).name(), "\" reads the time, got none"));
  }
  if (rows >= 0 && times.size() != rows) {
    return error(absl::StrCat("expected ", rows, " values, got ", times.size()));
  }
  if (!request_.has_request_time_ms()) return Invalid("request_time_ms: expected a value, got none");
  int64_t previous = 0;
  for (int i = 0; i < times.size(); ++i) {
    const int64_t time = times.Get(i);
    if (time < previous) {
      return error(absl::StrCat("behavior ", i, ": expected at least ",
                                i == 0 ? "0" : absl::StrCat(previous, ", the one before"), ", got ", time));
    }
    previous = time;
  }
  if (previous >= request_.request_time_ms()) {
    return error(absl::StrCat("behavior ", times.size() - 1, ": expected a time before request_time_ms ",
                              request_.request_time_ms(), ", got ", previous));
  }
  return absl::OkStatus();
}

// Looks `rows` items up in the catalog, from row `begin` on. -1: not there, or no item in that row.
absl::Status EncodeCall::FindItems(const v1::Column& items, int begin, int rows,
                                   std::pmr::vector<int>& found) const {
  const bool integers = schema_.item().id().type() == v1::IdFeature::INT64;
  if (integers ? !items.has_ints() : !items.has_strings()) {
    return Invalid(absl::StrCat("expected ", integers ? "ints" : "strings", ", got ",
                                ValueTypeName(items.values_case())));
  }
  int next = 0;
  for (int row = 0; row < begin + rows; ++row) {
    const uint32_t length = items.lengths().empty() ? 1 : items.lengths(row);
    if (length > 1) return Invalid(absl::StrCat("row ", row, ": expected 1 value, got ", length));
    if (row >= begin) {
      int catalog_row = -1;
      if (length == 1) {
        catalog_row = integers ? schema_.catalog->Find(items.ints().values(next))
                               : schema_.catalog->Find(items.strings().values(next));
      }
      found.push_back(catalog_row);
    }
    next += static_cast<int>(length);
  }
  return absl::OkStatus();
}

std::string EncodeCall::Place(int index) const {
  switch (schema_.feature(index).level()) {
    case v1::USER:
      return "user or context";
    case v1::CANDIDATE:
      return "candidates";
    default:
      return SequencePlace(schema_.feature(index).sequence());
  }
}

absl::Status EncodeCall::MissingColumn(int index) const {
  return Invalid(absl::StrCat("feature \"", schema_.feature(index).name(), "\": expected ", Place(index),
                              " column \"", schema_.fields[index],
                              "\", got none, and the feature has no missing value"));
}

absl::Status EncodeCall::EncodeFromCatalog(int index, int begin, int rows, FeatureColumn& out,
                                           OovCounter& oov) {
  const ColumnEncoder& encoder = *schema_.encoders[index];
  const int sequence = schema_.sequence_of[index];
  const v1::Column* items = sequence < 0 ? columns_[schema_.item_feature] : histories_[sequence].items;
  if (items == nullptr) {
    return Invalid(absl::StrCat("feature \"", encoder.feature().name(), "\": expected ", Place(index),
                                " column \"", schema_.fields[index], "\", or \"", schema_.item().name(),
                                "\" to look it up in the catalog, got neither"));
  }
  std::pmr::vector<int>& found = CatalogRows(index);
  if (found.empty()) {
    found.reserve(static_cast<size_t>(rows));
    if (absl::Status status = FindItems(*items, begin, rows, found); !status.ok()) {
      return ColumnError(Place(index), schema_.item().name(), status.message());
    }
  }
  for (int row = 0; row < rows; ++row) {
    if (found[row] >= 0) {
      schema_.catalog->Append(index, found[row], row, out, oov);
      continue;
    }
    if (!encoder.has_missing()) {
      std::string item = "none";
      if (items->lengths().empty()) {
        item = items->has_ints() ? absl::StrCat(items->ints().values(begin + row))
                                 : absl::StrCat("\"", items->strings().values(begin + row), "\"");
      }
      return Invalid(absl::StrCat("feature \"", encoder.feature().name(), "\": row ", begin + row,
                                  ": expected an item of the catalog, got ", item,
                                  ", and the feature has no missing value"));
    }
    encoder.AppendMissing(out);
    if (oov.flags != nullptr) oov.flags[row] |= v1::UNKNOWN_ITEM;
  }
  return absl::OkStatus();
}

absl::Status EncodeCall::EncodeFeature(int index, FeatureBatch& batch, EncodeNotes& notes) {
  const ColumnEncoder& encoder = *schema_.encoders[index];
  FeatureColumn& out = batch.columns[index];
  encoder.Clear(out);
  const int sequence = schema_.sequence_of[index];
  int begin = 0;
  int rows = 1;
  OovCounter oov;
  if (sequence >= 0) {
    begin = histories_[sequence].begin;
    rows = histories_[sequence].rows;
  } else if (encoder.feature().level() == v1::CANDIDATE) {
    rows = batch.candidates;
    oov.flags = notes.candidate_flags.data();
  }
  if (rows == 0) return absl::OkStatus();

  if (encoder.feature().has_time_since()) {
    for (int row = begin; row < begin + rows; ++row) {
      encoder.AppendAge(request_.request_time_ms() - histories_[sequence].data->event_time_ms(row), out);
    }
    return absl::OkStatus();
  }
  absl::Status status;
  if (columns_[index] != nullptr) {
    status = encoder.Append(*columns_[index], begin, rows, out, oov);
    if (!status.ok()) return ColumnError(Place(index), schema_.fields[index], status.message());
  } else if (encoder.feature().from() == v1::CATALOG) {
    status = EncodeFromCatalog(index, begin, rows, out, oov);
  } else if (encoder.has_missing()) {
    for (int row = 0; row < rows; ++row) encoder.AppendMissing(out);
  } else {
    return MissingColumn(index);
  }
  notes.oov_ids[index] = oov.total;
  return status;
}

// Leaves behaviors that take the pad row out of the encoded columns of sequence `index`, and finds those
// used.
void EncodeCall::LeaveOutPads(int index, FeatureBatch& batch, std::vector<int>& used) const {
  const History& history = histories_[index];
  const SequenceSchema& sequence = schema_.sequences[index];
  used.resize(static_cast<size_t>(history.rows));
  std::iota(used.begin(), used.end(), history.begin);
  if (sequence.skip_feature < 0) return;
  const auto pad_row = static_cast<int32_t>(schema_.feature(sequence.skip_feature).id().pad_row());
  const std::vector<int32_t>& rows = batch.columns[sequence.skip_feature].rows;
  std::erase_if(used, [&](int behavior) { return rows[behavior - history.begin] == pad_row; });
  if (static_cast<int>(used.size()) == history.rows) return;
  for (int i = 0; i < static_cast<int>(schema_.encoders.size()); ++i) {
    if (schema_.sequence_of[i] == index) schema_.encoders[i]->Keep(used, history.begin, batch.columns[i]);
  }
}

absl::Status EncodeCall::Encode(FeatureBatch& batch, EncodeNotes& notes) {
  if (absl::Status status = LocateUser(); !status.ok()) return status;
  const absl::StatusOr<int> candidates = LocateCandidates();
  if (!candidates.ok()) return candidates.status();
  if (absl::Status status = LocateSequences(); !status.ok()) return status;

  batch.candidates = *candidates;
  batch.columns.resize(schema_.encoders.size());
  notes.candidate_flags.assign(static_cast<size_t>(*candidates), v1::CANDIDATE_FLAG_NONE);
  notes.oov_ids.assign(schema_.encoders.size(), 0);
  for (int i = 0; i < static_cast<int>(schema_.encoders.size()); ++i) {
    if (absl::Status status = EncodeFeature(i, batch, notes); !status.ok()) return status;
  }
  batch.sequence_lengths.clear();
  notes.used_behaviors.resize(histories_.size());
  for (int i = 0; i < static_cast<int>(histories_.size()); ++i) {
    LeaveOutPads(i, batch, notes.used_behaviors[i]);
    batch.sequence_lengths.push_back(static_cast<int>(notes.used_behaviors[i].size()));
  }
  batch.full_lengths = batch.sequence_lengths;

  notes.unknown_columns.assign(unknown_behaviors_.begin(), unknown_behaviors_.end());
  notes.unknown_columns.insert(notes.unknown_columns.end(), unknown_user_.begin(), unknown_user_.end());
  notes.unknown_columns.insert(notes.unknown_columns.end(), unknown_candidates_.begin(),
                               unknown_candidates_.end());
  std::sort(notes.unknown_columns.begin(), notes.unknown_columns.end());
  notes.unknown_columns.erase(std::unique(notes.unknown_columns.begin(), notes.unknown_columns.end()),
                              notes.unknown_columns.end());
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<RequestEncoder>> RequestEncoder::Create(const v1::BundleManifest& manifest,
                                                                       const FileContents& files,
                                                                       absl::Span<const int64_t> table_rows,
                                                                       const EncoderOptions& options) {
  if (options.max_candidates < 1) {
    return Invalid(absl::StrCat("max_candidates: expected at least 1, got ", options.max_candidates));
  }
  absl::StatusOr<std::unique_ptr<Schema>> schema = Schema::Create(manifest, files, table_rows);
  if (!schema.ok()) return schema.status();
  return std::unique_ptr<RequestEncoder>(new RequestEncoder(*std::move(schema), options));
}

RequestEncoder::RequestEncoder(std::unique_ptr<const Schema> schema, const EncoderOptions& options)
    : schema_(std::move(schema)), options_(options) {}

RequestEncoder::~RequestEncoder() = default;

absl::Status RequestEncoder::Encode(const v1::ScoreRequest& request, FeatureBatch& batch,
                                    EncodeNotes& notes) const {
  return EncodeCall(*schema_, options_.max_candidates, request).Encode(batch, notes);
}

absl::StatusOr<int> RequestEncoder::CountCandidates(const v1::ScoreRequest& request) const {
  return EncodeCall(*schema_, options_.max_candidates, request).LocateCandidates();
}

}  // namespace dinghy
