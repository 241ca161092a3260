// The server: all services on one port, metrics on another, and what is behind them.
//
//   ASSIGN_OR_RETURN(auto server, Server::Create(config));
//   ... server->port() ...
//   server->Shutdown();
//
// Thread-safe, apart from its destruction.
#ifndef DINGHY_SERVER_SERVER_H_
#define DINGHY_SERVER_SERVER_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "features/behavior/store.h"
#include "proto/server_config.pb.h"
#include "server/admin_service.h"
#include "server/behavior_service.h"
#include "server/metrics.h"
#include "server/metrics_http.h"
#include "server/model_registry.h"
#include "server/request_log.h"
#include "server/scorer.h"
#include "server/scoring_service.h"
#include "server/workers/worker_pool.h"

namespace dinghy {

class Server {
 public:
  // Starts all of it: loads the models, opens store and score log, listens. Errors name what could not be
  // had: a field of `config`, the model root, the store folder, `cannot listen on 127.0.0.1:8500: Address
  // already in use`.
  static absl::StatusOr<std::unique_ptr<Server>> Create(const v1::ServerConfig& config);
  // Shuts down.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  int port() const { return port_; }                          // of gRPC, as bound
  int metrics_port() const;                                   // of HTTP; 0: off
  const v1::ServerConfig& config() const { return config_; }  // with defaults filled in

  // Takes no more calls, finishes those that run (those that take longer than `grace` are cancelled), writes
  // out the score log and closes the store. May be called again. With the default all of it ends before
  // container runtimes kill, 10 s after SIGTERM: gRPC 1.51 at times holds a call that arrived in the moment
  // of the shutdown, unanswered, until the end of `grace`.
  void Shutdown(absl::Duration grace = absl::Seconds(5));

 private:
  explicit Server(v1::ServerConfig config) : config_(std::move(config)) {}
  absl::Status OpenParts();
  absl::Status Listen();
  // Tells the health service and the metrics which models there are.
  void ReportModels();

  const v1::ServerConfig config_;
  std::atomic<bool> ready_ = false;
  int port_ = 0;

  // In the order in which they are needed: the last is destroyed first.
  Metrics metrics_;
  std::unique_ptr<MetricsHttp> http_;
  std::unique_ptr<BehaviorStore> store_;
  std::unique_ptr<ModelRegistry> registry_;
  std::unique_ptr<RequestLog> log_;
  std::unique_ptr<Scorer> scorer_;
  std::unique_ptr<WorkerPool> pool_;
  std::unique_ptr<ScoringService> scoring_;
  std::unique_ptr<BehaviorService> behavior_;
  std::unique_ptr<AdminService> admin_;
  std::unique_ptr<grpc::Server> grpc_;

  std::mutex mutex_;
  std::set<std::string> reported_ ABSL_GUARDED_BY(mutex_);  // models that the health service knows
};

}  // namespace dinghy

#endif  // DINGHY_SERVER_SERVER_H_
