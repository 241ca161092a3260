// ScoringService: Score through a completion queue and the worker pool, GetModelMetadata directly.
//
//   ScoringService scoring({.registry = ..., .scorer = ..., .pool = ..., .metrics = ..., .log = ...});
//   scoring.AddTo(builder);
//   auto server = builder.BuildAndStart();
//   scoring.Start();
//   ...
//   server->Shutdown(deadline);
//   pool.Shutdown();
//   scoring.Stop();
//
// The life of a call: it arrives on one of the queue's threads. Where a worker is free that thread scores and
// answers it itself, so that no other has to wake up; else it waits in the pool for a worker. It is freed on
// a thread of the queue. Thread-safe.
#ifndef DINGHY_SERVER_SCORING_SERVICE_H_
#define DINGHY_SERVER_SCORING_SERVICE_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "proto/scoring.grpc.pb.h"
#include "server/metrics.h"
#include "server/model_registry.h"
#include "server/request_log.h"
#include "server/scorer.h"
#include "server/workers/worker_pool.h"

namespace dinghy {

class ScoringService {
 public:
  // All must outlive the service.
  struct Parts {
    ModelRegistry& registry;
    const Scorer& scorer;
    WorkerPool& pool;
    Metrics& metrics;
    RequestLog* log = nullptr;    // null: no score log
    uint32_t max_candidates = 0;  // told by GetModelMetadata
  };

  explicit ScoringService(Parts parts);
  // Stop must have been called, if Start was.
  ~ScoringService();
  ScoringService(const ScoringService&) = delete;
  ScoringService& operator=(const ScoringService&) = delete;

  // Registers service and queue. Once, before the server is built.
  void AddTo(grpc::ServerBuilder& builder);

  // Begins to take calls. Once, after the server is built.
  void Start();

  // Ends the queue's threads. After the server's and the pool's Shutdown.
  void Stop();

 private:
  class Call;
  class Service;

  void RunQueue();
  void TakeNextCall();
  void Enqueue(Call* call);
  void ScoreOnWorker(Call* call, WorkerState& state);
  void Refuse(Call* call, const absl::Status& status, const std::string& model, int64_t version);

  const Parts parts_;
  const std::unique_ptr<Service> service_;
  std::unique_ptr<grpc::ServerCompletionQueue> queue_;
  std::mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::atomic<int> polling_ = 0;  // threads that wait for the queue
  std::vector<std::thread> threads_;
};

}  // namespace dinghy

#endif  // DINGHY_SERVER_SCORING_SERVICE_H_
