#include "server/metrics.h"

#include <prometheus/text_serializer.h>

#include <numeric>
#include <sstream>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace dinghy {
namespace {

using prometheus::BuildCounter;
using prometheus::BuildGauge;
using prometheus::BuildHistogram;
using Buckets = prometheus::Histogram::BucketBoundaries;

Buckets SecondBuckets() {
  return {0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5};
}

Buckets SizeBuckets() { return {0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000}; }

}  // namespace

Metrics::Metrics()
    : requests_(BuildCounter()
                    .Name("dinghy_requests_total")
                    .Help("Score requests, by model, version and status code")
                    .Register(registry_)),
      degraded_(BuildCounter()
                    .Name("dinghy_degraded_total")
                    .Help("Requests scored with less than there should be, by reason")
                    .Register(registry_)),
      oov_(BuildCounter()
               .Name("dinghy_oov_total")
               .Help("Ids that took an OOV or pad row, by feature")
               .Register(registry_)),
      unknown_columns_(BuildCounter()
                           .Name("dinghy_unknown_columns_total")
                           .Help("Columns of requests that the model does not know, by model")
                           .Register(registry_)),
      score_sum_(BuildCounter()
                     .Name("dinghy_score_sum")
                     .Help("Sum of the probabilities returned, by model, version and output")
                     .Register(registry_)),
      score_count_(BuildCounter()
                       .Name("dinghy_score_count")
                       .Help("Number of probabilities returned, by model, version and output")
                       .Register(registry_)),
      model_version_(BuildGauge()
                         .Name("dinghy_model_version")
                         .Help("The version that label stable points at, by model")
                         .Register(registry_)),
      stages_(BuildHistogram()
                  .Name("dinghy_stage_duration_seconds")
                  .Help("Time in each stage of a scored request")
                  .Register(registry_)),
      duration_(BuildHistogram()
                    .Name("dinghy_request_duration_seconds")
                    .Help("Time from the arrival of a Score request to its answer")
                    .Register(registry_)
                    .Add({}, SecondBuckets())),
      queue_seconds_(stages_.Add({{"stage", "queue"}}, SecondBuckets())),
      history_seconds_(stages_.Add({{"stage", "history"}}, SecondBuckets())),
      encode_seconds_(stages_.Add({{"stage", "encode"}}, SecondBuckets())),
      model_seconds_(stages_.Add({{"stage", "model"}}, SecondBuckets())),
      candidates_(BuildHistogram()
                      .Name("dinghy_candidates")
                      .Help("Candidates per scored request")
                      .Register(registry_)
                      .Add({}, SizeBuckets())),
      history_length_(BuildHistogram()
                          .Name("dinghy_history_length")
                          .Help("Behaviors used per sequence of a scored request")
                          .Register(registry_)
                          .Add({}, SizeBuckets())),
      user_cache_(BuildCounter()
                      .Name("dinghy_user_cache_total")
                      .Help("Scored requests whose encoded history was kept from an earlier one, or was not")
                      .Register(registry_)),
      user_cache_hits_(user_cache_.Add({{"result", "hit"}})),
      user_cache_misses_(user_cache_.Add({{"result", "miss"}})),
      user_cache_evicted_(BuildCounter()
                              .Name("dinghy_user_cache_evicted_total")
                              .Help("Encoded histories that went to make room for others")
                              .Register(registry_)
                              .Add({})),
      user_cache_bytes_(BuildGauge()
                            .Name("dinghy_user_cache_bytes")
                            .Help("Memory that encoded histories take between requests")
                            .Register(registry_)
                            .Add({})),
      log_records_(BuildCounter()
                       .Name("dinghy_request_log_records_total")
                       .Help("Records handed to the score log")
                       .Register(registry_)
                       .Add({})),
      log_dropped_(BuildCounter()
                       .Name("dinghy_request_log_dropped_total")
                       .Help("Records that the score log lost: its queue was full or a write failed")
                       .Register(registry_)
                       .Add({})),
      queued_(BuildGauge()
                  .Name("dinghy_queued_requests")
                  .Help("Requests that wait for a worker")
                  .Register(registry_)
                  .Add({})) {}

void Metrics::CountRequest(const std::string& model, int64_t version, absl::StatusCode code,
                           absl::Duration duration) {
  requests_
      .Add({{"model", model}, {"version", absl::StrCat(version)}, {"code", absl::StatusCodeToString(code)}})
      .Increment();
  duration_.Observe(absl::ToDoubleSeconds(duration));
}

void Metrics::CountScored(const LoadedModel& loaded, const v1::ScoreResponse& response,
                          const WorkerState& state) {
  queue_seconds_.Observe(absl::ToDoubleSeconds(state.queue));
  history_seconds_.Observe(absl::ToDoubleSeconds(state.history));
  encode_seconds_.Observe(absl::ToDoubleSeconds(state.encode));
  model_seconds_.Observe(absl::ToDoubleSeconds(state.model));
  candidates_.Observe(response.outputs_size() > 0 ? response.outputs(0).scores_size() : 0);
  for (const v1::HistoryUse& use : response.history()) history_length_.Observe(use.length());
  if (state.user_cache.asked) {
    (state.user_cache.hit ? user_cache_hits_ : user_cache_misses_).Increment();
    user_cache_evicted_.Increment(state.user_cache.evicted);
    user_cache_bytes_.Set(static_cast<double>(state.user_cache.bytes));
  }
  for (const int reason : response.degradations()) {
    degraded_
        .Add({{"reason", absl::AsciiStrToLower(
                             v1::DegradationReason_Name(static_cast<v1::DegradationReason>(reason)))}})
        .Increment();
  }
  const v1::BundleManifest& manifest = loaded.bundle->manifest;
  for (size_t f = 0; f < state.notes.oov_ids.size(); ++f) {
    if (state.notes.oov_ids[f] == 0) continue;
    oov_.Add({{"feature", manifest.features(static_cast<int>(f)).name()}})
        .Increment(static_cast<double>(state.notes.oov_ids[f]));
  }
  if (!state.notes.unknown_columns.empty()) {
    unknown_columns_.Add({{"model", response.model()}})
        .Increment(static_cast<double>(state.notes.unknown_columns.size()));
  }
  for (const v1::OutputScores& output : response.outputs()) {
    for (const v1::Output& declared : manifest.outputs()) {
      // A raw output may be negative, which a counter cannot add up.
      if (declared.name() != output.output() || declared.link() != v1::Output::SIGMOID) continue;
      const prometheus::Labels labels{{"model", response.model()},
                                      {"version", absl::StrCat(response.version())},
                                      {"output", output.output()}};
      score_sum_.Add(labels).Increment(std::accumulate(output.scores().begin(), output.scores().end(), 0.0));
      score_count_.Add(labels).Increment(output.scores_size());
    }
  }
}

void Metrics::SetModelVersions(const std::map<std::string, int64_t>& versions) {
  for (const auto& [model, version] : versions) {
    model_version_.Add({{"model", model}}).Set(static_cast<double>(version));
  }
}

std::string Metrics::Text() const {
  std::ostringstream out;
  prometheus::TextSerializer().Serialize(out, registry_.Collect());
  return out.str();
}

}  // namespace dinghy
