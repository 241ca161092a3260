// What the server counts, for Prometheus: seconds and base units, prefix `dinghy_`.
//
//   Metrics metrics;
//   metrics.CountRequest("shop", 3, absl::StatusCode::kOk, duration);
//   std::string text = metrics.Text();   // what /metrics answers
//
// Thread-safe.
#ifndef DINGHY_SERVER_METRICS_H_
#define DINGHY_SERVER_METRICS_H_

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "model/loaded_model.h"
#include "proto/scoring.pb.h"
#include "server/scorer.h"

namespace dinghy {

class Metrics {
 public:
  Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  // requests_total and request_duration_seconds. Where no model was found `model` is empty and `version` 0,
  // so that callers cannot make label values.
  void CountRequest(const std::string& model, int64_t version, absl::StatusCode code,
                    absl::Duration duration);

  // All that a scored request tells beside that: stages, candidates, history, user cache, degradations,
  // scores, OOV ids, unknown columns. `state` is as Scorer::Score left it.
  void CountScored(const LoadedModel& loaded, const v1::ScoreResponse& response, const WorkerState& state);

  void CountLogged() { log_records_.Increment(); }
  void CountLogDropped() { log_dropped_.Increment(); }
  // A request begins or ends its wait for a worker.
  void CountQueued() { queued_.Increment(); }
  void CountTaken() { queued_.Decrement(); }

  // model_version{model}: the version that `stable` points at.
  void SetModelVersions(const std::map<std::string, int64_t>& versions);

  // The text format of Prometheus, version 0.0.4.
  std::string Text() const;

 private:
  prometheus::Registry registry_;
  prometheus::Family<prometheus::Counter>& requests_;
  prometheus::Family<prometheus::Counter>& degraded_;
  prometheus::Family<prometheus::Counter>& oov_;
  prometheus::Family<prometheus::Counter>& unknown_columns_;
  prometheus::Family<prometheus::Counter>& score_sum_;
  prometheus::Family<prometheus::Counter>& score_count_;
  prometheus::Family<prometheus::Gauge>& model_version_;
  prometheus::Family<prometheus::Histogram>& stages_;
  prometheus::Histogram& duration_;
  prometheus::Histogram& queue_seconds_;
  prometheus::Histogram& history_seconds_;
  prometheus::Histogram& encode_seconds_;
  prometheus::Histogram& model_seconds_;
  prometheus::Histogram& candidates_;
  prometheus::Histogram& history_length_;
  prometheus::Family<prometheus::Counter>& user_cache_;
  prometheus::Counter& user_cache_hits_;
  prometheus::Counter& user_cache_misses_;
  prometheus::Counter& user_cache_evicted_;
  prometheus::Gauge& user_cache_bytes_;
  prometheus::Counter& log_records_;
  prometheus::Counter& log_dropped_;
  prometheus::Gauge& queued_;
};

}  // namespace dinghy

#endif  // DINGHY_SERVER_METRICS_H_
