#include "server/scorer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/explain.h"
#include "server/workers/run_model.h"

namespace dinghy {
namespace {

// What Resolve found on the way.
struct Resolved {
  std::vector<v1::DegradationReason> degradations;
  std::vector<std::string> warnings;
  std::vector<v1::HistorySource> sources;  // by manifest sequence
};

// Sums up how long each stage takes.
class Stopwatch {
 public:
  // The time since the last call, or since construction.
  absl::Duration Lap() {
    const auto now = std::chrono::steady_clock::now();
    const absl::Duration lap = absl::FromChrono(now - last_);
    last_ = now;
    return lap;
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

int FindSequence(const v1::ScoreRequest& request, const std::string& name) {
  for (int i = 0; i < request.sequences_size(); ++i) {
    if (request.sequences(i).sequence() == name) return i;
  }
  return -1;
}

// One sequence from the store, in the form that a request carries.
absl::Status FetchSequence(const BehaviorReader* store, const LoadedModel& loaded, int index,
                           const v1::ScoreRequest& request, EventList& events, v1::SequenceData& data) {
  if (store == nullptr) return absl::UnavailableError("the server has no behavior store");
  const v1::Sequence& sequence = loaded.bundle->manifest.sequences(index);
  v1::HistoryQuery query;
  query.set_before_ms(request.request_time_ms());
  *query.mutable_actions() = sequence.actions();
  query.set_limit(sequence.max_length());
  query.set_oldest(sequence.keep() == v1::Sequence::OLDEST);
  if (absl::Status status = store->Fetch(request.user_id(), query, events); !status.ok()) return status;
  return loaded.encoder->FromEvents(index, events, data);
}

// Fills in what the request leaves to the server: model, version, time, histories.
absl::StatusOr<Resolved> Resolve(const LoadedModel& loaded, const BehaviorReader* store, absl::Time now,
                                 EventList& events, v1::ScoreRequest& request) {
  const v1::BundleManifest& manifest = loaded.bundle->manifest;
  if (!request.model().empty() && request.model() != manifest.name()) {
    return absl::NotFoundError(
        absl::StrCat("model: expected \"", manifest.name(), "\", got \"", request.model(), "\""));
  }
  Resolved resolved;
  request.set_model(manifest.name());
  request.set_version(loaded.bundle->version);
  if (!request.has_request_time_ms()) request.set_request_time_ms(absl::ToUnixMillis(now));
  if (request.request_time_ms() < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("request_time_ms: expected 0 or more, got ", request.request_time_ms()));
  }
  for (int i = 0; i < manifest.sequences_size(); ++i) {
    const std::string& name = manifest.sequences(i).name();
    if (const int inline_index = FindSequence(request, name); inline_index >= 0) {
      request.mutable_sequences(inline_index)->set_source(v1::INLINE);
      resolved.sources.push_back(v1::INLINE);
      continue;
    }
    if (request.user_id().empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("user_id is empty and sequence \"", name, "\" is not inline"));
    }
    v1::SequenceData* data = request.add_sequences();
    if (absl::Status fetched = FetchSequence(store, loaded, i, request, events, *data); !fetched.ok()) {
      // An event that does not fit the model counts like a failed store: the history cannot be used, and the
      // response says so.
      resolved.degradations = {v1::HISTORY_UNAVAILABLE};
      resolved.warnings.push_back(
          absl::StrCat("sequence \"", name, "\": scored as empty: ", fetched.message()));
      data->Clear();
    }
    data->set_sequence(name);
    data->set_source(v1::STORE);
    resolved.sources.push_back(v1::STORE);
  }
  return resolved;
}

// Indices in manifest.outputs() of what the request asks for.
absl::StatusOr<std::vector<int>> PickOutputs(const v1::BundleManifest& manifest,
                                             const v1::ScoreRequest& request) {
  std::vector<int> picked(manifest.outputs_size());
  std::iota(picked.begin(), picked.end(), 0);
  if (request.outputs_size() == 0) return picked;
  picked.clear();
  for (const std::string& name : request.outputs()) {
    const auto found = std::find_if(manifest.outputs().begin(), manifest.outputs().end(),
                                    [&](const v1::Output& output) { return output.name() == name; });
    if (found == manifest.outputs().end()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "outputs: expected one of ",
          absl::StrJoin(manifest.outputs(), ", ",
                        [](std::string* out, const v1::Output& o) { absl::StrAppend(out, o.name()); }),
          ", got \"", name, "\""));
    }
    const int index = static_cast<int>(found - manifest.outputs().begin());
    if (std::find(picked.begin(), picked.end(), index) != picked.end()) {
      return absl::InvalidArgumentError(absl::StrCat("outputs: \"", name, "\" is named twice"));
    }
    picked.push_back(index);
  }
  return picked;
}

absl::Status CheckDebug(const LoadedModel& loaded, const v1::ScoreRequest& request) {
  for (const std::string& name : request.debug().layers()) {
    if (!loaded.model->HasName(name)) {
      return absl::InvalidArgumentError(absl::StrCat("debug.layers: expected a layer or feature of model \"",
                                                     loaded.bundle->manifest.name(), "\", got \"", name,
                                                     "\""));
    }
  }
  return absl::OkStatus();
}

// A score that is not a number never leaves the server.
absl::Status FillScores(const v1::BundleManifest& manifest, absl::Span<const int> picked,
                        const ModelOutputs& outputs, v1::ScoreResponse& response) {
  for (const int o : picked) {
    const std::vector<float>& scores = outputs.scores[o];
    for (size_t c = 0; c < scores.size(); ++c) {
      if (!std::isfinite(scores[c])) {
        return absl::InternalError(absl::StrCat("output \"", manifest.outputs(o).name(), "\", candidate ", c,
                                                ": expected a finite score, got ", scores[c]));
      }
    }
    v1::OutputScores* out = response.add_outputs();
    out->set_output(manifest.outputs(o).name());
    out->mutable_scores()->Add(scores.begin(), scores.end());
  }
  return absl::OkStatus();
}

// Rows of the level that feature `f` lives on.
int RowsOf(const v1::BundleManifest& manifest, const v1::Feature& feature, const FeatureBatch& batch) {
  if (feature.level() == v1::CANDIDATE) return batch.candidates;
  if (feature.level() != v1::SEQUENCE) return 1;
  for (int i = 0; i < manifest.sequences_size(); ++i) {
    if (manifest.sequences(i).name() == feature.sequence()) return batch.sequence_lengths[i];
  }
  return 0;
}

void FillEncoded(const v1::BundleManifest& manifest, const FeatureBatch& batch, v1::ScoreResponse& response) {
  for (int f = 0; f < manifest.features_size(); ++f) {
    const FeatureColumn& column = batch.columns[f];
    v1::DebugValues* debug = response.add_debug();
    debug->set_name(manifest.features(f).name());
    const int rows = RowsOf(manifest, manifest.features(f), batch);
    debug->set_rows(rows);
    debug->mutable_ids()->Add(column.rows.begin(), column.rows.end());
    debug->mutable_values()->Add(column.values.begin(), column.values.end());
    if (!column.offsets.empty()) {
      for (int r = 0; r < rows; ++r) debug->add_lengths(column.offsets[r + 1] - column.offsets[r]);
    } else if (rows > 0) {
      debug->set_width((debug->ids_size() + debug->values_size()) / rows);
    }
  }
}

void FillDebugLayers(const ModelOutputs& outputs, v1::ScoreResponse& response) {
  for (const NamedValues& named : outputs.debug) {
    v1::DebugValues* debug = response.add_debug();
    debug->set_name(named.name);
    debug->set_rows(named.rows);
    debug->set_width(named.width);
    debug->mutable_values()->Add(named.values.begin(), named.values.end());
  }
}

void AddTiming(const char* stage, absl::Duration duration,
               google::protobuf::RepeatedPtrField<v1::StageTiming>& timings) {
  v1::StageTiming* timing = timings.Add();
  timing->set_stage(stage);
  timing->set_seconds(absl::ToDoubleSeconds(duration));
}

void FillTimings(const WorkerState& state, google::protobuf::RepeatedPtrField<v1::StageTiming>& timings) {
  AddTiming("queue", state.queue, timings);
  AddTiming("history", state.history, timings);
  AddTiming("encode", state.encode, timings);
  AddTiming("model", state.model, timings);
}

// Cuts the sequences of an encoded request to the behaviors that were used.
void KeepUsedBehaviors(const v1::BundleManifest& manifest, const EncodeNotes& notes,
                       v1::ScoreRequest& request) {
  for (int i = 0; i < manifest.sequences_size(); ++i) {
    v1::SequenceData* data = request.mutable_sequences(FindSequence(request, manifest.sequences(i).name()));
    v1::SequenceData used;
    CopyBehaviors(*data, notes.used_behaviors[i], used);
    data->Swap(&used);
  }
}

absl::Status NoteUnknownColumns(const v1::BundleManifest& manifest, bool reject, const EncodeNotes& notes,
                                v1::ScoreResponse& response) {
  for (const std::string& column : notes.unknown_columns) {
    if (reject) {
      return absl::InvalidArgumentError(absl::StrCat("column \"", column,
                                                     "\": expected a feature of model \"", manifest.name(),
                                                     "\"; unknown features are rejected"));
    }
    response.add_warnings(
        absl::StrCat("column \"", column, "\" is no feature of model \"", manifest.name(), "\": ignored"));
  }
  return absl::OkStatus();
}

}  // namespace

Scorer::Scorer(const BehaviorReader* store, ScorerOptions options)
    : store_(store),
      options_(std::move(options)),
      user_cache_(options_.user_cache_bytes > 0 ? std::make_unique<UserCache>(options_.user_cache_bytes)
                                                : nullptr) {}

absl::StatusOr<v1::ScoreResponse> Scorer::Score(const LoadedModel& loaded, const v1::ScoreRequest& request,
                                                WorkerState& state, v1::ScoreLog* log) const {
  return Score(loaded, v1::ScoreRequest(request), state, log);
}

absl::StatusOr<v1::ScoreResponse> Scorer::Score(const LoadedModel& loaded, v1::ScoreRequest&& request,
                                                WorkerState& state, v1::ScoreLog* log) const {
  const v1::BundleManifest& manifest = loaded.bundle->manifest;
  const absl::Time received = options_.now();
  Stopwatch watch;

  // What needs no history first, so that a bad request does not cost a fetch.
  const absl::StatusOr<int> candidates = loaded.encoder->CountCandidates(request);
  if (!candidates.ok()) return candidates.status();
  if (*candidates > options_.max_candidates) {
    return absl::InvalidArgumentError(
        absl::StrCat("candidates: expected at most ", options_.max_candidates, ", got ", *candidates));
  }
  const absl::StatusOr<std::vector<int>> picked = PickOutputs(manifest, request);
  if (!picked.ok()) return picked.status();
  if (absl::Status status = CheckDebug(loaded, request); !status.ok()) return status;
  if (absl::Status status = CheckExplain(request.explain(), manifest, *candidates); !status.ok())
    return status;

  absl::StatusOr<Resolved> resolved = Resolve(loaded, store_, received, state.events, request);
  if (!resolved.ok()) return resolved.status();
  state.history = watch.Lap();

  if (absl::Status status = loaded.encoder->Encode(request, state.batch, state.notes); !status.ok()) {
    return status;
  }
  v1::ScoreResponse response;
  if (absl::Status status =
          NoteUnknownColumns(manifest, options_.reject_unknown_features, state.notes, response);
      !status.ok()) {
    return status;
  }
  state.encode = watch.Lap();

  const bool explain = request.explain().top_k() > 0;
  const ModelScoreOptions model_options{
      .attention = explain,
      .debug_names = {request.debug().layers().begin(), request.debug().layers().end()}};
  RunModel(loaded, state.batch, model_options, user_cache_.get(), state);
  state.model = watch.Lap();
  if (absl::Status status = FillScores(manifest, *picked, state.outputs, response); !status.ok())
    return status;

  response.set_request_id(request.request_id());
  response.set_model(manifest.name());
  response.set_version(loaded.bundle->version);
  response.set_bundle_digest(loaded.bundle->digest);
  response.set_numerics_id(loaded.model->numerics_id());
  const std::vector<uint32_t>& flags = state.notes.candidate_flags;
  if (std::any_of(flags.begin(), flags.end(), [](uint32_t f) { return f != 0; })) {
    response.mutable_candidate_flags()->Add(flags.begin(), flags.end());
  }
  for (int i = 0; i < manifest.sequences_size(); ++i) {
    v1::HistoryUse* use = response.add_history();
    use->set_sequence(manifest.sequences(i).name());
    use->set_length(state.batch.sequence_lengths[i]);
    use->set_source(resolved->sources[i]);
  }
  for (const v1::DegradationReason reason : resolved->degradations) response.add_degradations(reason);
  for (std::string& warning : resolved->warnings) response.add_warnings(std::move(warning));
  if (request.debug().timings()) FillTimings(state, *response.mutable_timings());
  if (request.debug().encoded()) FillEncoded(manifest, state.batch, response);
  FillDebugLayers(state.outputs, response);

  if (explain || log != nullptr) KeepUsedBehaviors(manifest, state.notes, request);
  if (explain) {
    const std::vector<AttentionWeights> attention = std::move(state.outputs.attention);
    if (absl::Status status = Explain(loaded, request, attention, *picked, state, response); !status.ok()) {
      return status;
    }
  }
  if (log != nullptr) {
    log->Clear();
    // Explanations and debug output do not belong to what was scored.
    request.clear_explain();
    request.clear_debug();
    *log->mutable_request() = std::move(request);
    log->set_received_time_ms(absl::ToUnixMillis(received));
    log->set_bundle_digest(response.bundle_digest());
    log->set_numerics_id(response.numerics_id());
    *log->mutable_outputs() = response.outputs();
    *log->mutable_candidate_flags() = response.candidate_flags();
    *log->mutable_degradations() = response.degradations();
    FillTimings(state, *log->mutable_timings());
  }
  return response;
}

}  // namespace dinghy
