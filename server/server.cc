#include "server/server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>

#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/address.h"
#include "server/config.h"
#include "server/diagnostics.h"

namespace dinghy {
namespace {

// Threads of the synchronous services: behaviors, admin, metadata. Beyond this, calls are RESOURCE_EXHAUSTED.
constexpr int kMaxSyncThreads = 64;

std::string HostOf(const std::string& address) { return address.substr(0, address.rfind(':')); }

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> Server::Create(const v1::ServerConfig& config) {
  absl::StatusOr<v1::ServerConfig> complete = CompleteConfig(config);
  if (!complete.ok()) return complete.status();
  std::unique_ptr<Server> server(new Server(*std::move(complete)));
  if (absl::Status status = server->OpenParts(); !status.ok()) return status;
  if (absl::Status status = server->Listen(); !status.ok()) return status;
  return server;
}

Server::~Server() { Shutdown(); }

int Server::metrics_port() const { return http_ == nullptr ? 0 : http_->port(); }

absl::Status Server::OpenParts() {
  // A port in use should not cost the loading of models.
  if (absl::Status status = CheckListen(config_.listen()); !status.ok()) return status;
  if (config_.metrics_listen() != "off") {
    auto http = MetricsHttp::Create(config_.metrics_listen(), {.metrics = [this] { return metrics_.Text(); },
                                                               .ready = [this] { return ready_.load(); }});
    if (!http.ok()) return http.status();
    http_ = *std::move(http);
  }

  auto store = OpenStore(config_.store());
  if (!store.ok()) return store.status();
  store_ = *std::move(store);
  LogInfo("behavior store", {{"store", store_ == nullptr ? "none" : store_->Describe()}});

  ModelRegistry::Options registry_options;
  registry_options.root = config_.model_root();
  // The scorer limits requests; a bundle's golden requests may be larger.
  registry_options.encoder.max_candidates = std::numeric_limits<int>::max();
  registry_options.model.allow_emulation = config_.allow_emulation();
  auto registry = ModelRegistry::Create(std::move(registry_options));
  if (!registry.ok()) return registry.status();
  registry_ = *std::move(registry);

  if (!config_.score_log().directory().empty()) {
    auto log =
        RequestLog::Create({.directory = config_.score_log().directory(),
                            .sample_rate = config_.score_log().sample_rate(),
                            .max_file_bytes = static_cast<int64_t>(config_.score_log().max_file_bytes()),
                            .on_written = [this] { metrics_.CountLogged(); },
                            .on_dropped = [this] { metrics_.CountLogDropped(); }});
    if (!log.ok()) return log.status();
    log_ = *std::move(log);
  }

  scorer_ = std::make_unique<Scorer>(
      store_.get(), ScorerOptions{.max_candidates = static_cast<int>(config_.max_candidates()),
                                  .reject_unknown_features = config_.unknown_features() == v1::REJECT,
                                  .user_cache_bytes = size_t{config_.user_cache_mb()} << 20});
  auto pool = WorkerPool::Create(
      {.workers = static_cast<int>(config_.workers()), .queue = static_cast<int>(config_.queue())});
  if (!pool.ok()) return pool.status();
  pool_ = *std::move(pool);
  return absl::OkStatus();
}

absl::Status Server::Listen() {
  scoring_ =
      std::make_unique<ScoringService>(ScoringService::Parts{.registry = *registry_,
                                                             .scorer = *scorer_,
                                                             .pool = *pool_,
                                                             .metrics = metrics_,
                                                             .log = log_.get(),
                                                             .max_candidates = config_.max_candidates()});
  behavior_ = std::make_unique<BehaviorService>(store_.get());
  admin_ = std::make_unique<AdminService>(*registry_, [this] { ReportModels(); });

  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  // Without this a second server would share the port silently.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.SetMaxReceiveMessageSize(static_cast<int>(config_.max_request_bytes()));
  builder.SetResourceQuota(grpc::ResourceQuota("sync").SetMaxThreads(kMaxSyncThreads));
  builder.SetSyncServerOption(grpc::ServerBuilder::NUM_CQS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::MIN_POLLERS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::MAX_POLLERS, 2);
  builder.AddListeningPort(config_.listen(), grpc::InsecureServerCredentials(), &port_);
  scoring_->AddTo(builder);
  builder.RegisterService(behavior_.get());
  builder.RegisterService(admin_.get());
  grpc_ = builder.BuildAndStart();
  if (grpc_ == nullptr || port_ == 0) {
    const absl::Status why = CheckListen(config_.listen());
    return why.ok() ? absl::UnavailableError(absl::StrCat("cannot listen on ", config_.listen())) : why;
  }
  scoring_->Start();
  ReportModels();
  ready_ = true;
  LogInfo("listening", {{"address", absl::StrCat(HostOf(config_.listen()), ":", port_)},
                        {"port", port_},
                        {"metrics_port", metrics_port()},
                        {"workers", static_cast<int64_t>(config_.workers())},
                        {"queue", static_cast<int64_t>(config_.queue())}});
  return absl::OkStatus();
}

void Server::ReportModels() {
  const auto versions = registry_->Status("");
  if (!versions.ok()) return;
  std::map<std::string, int64_t> stable;
  for (const v1::ModelVersionStatus& status : *versions) {
    if (status.state() == v1::ModelVersionStatus::FAILED) {
      LogWarning("a model version failed to load",
                 {{"model", status.model()}, {"version", status.version()}, {"error", status.error()}});
      continue;
    }
    LogInfo(
        "model version",
        {{"model", status.model()},
         {"version", status.version()},
         {"digest", status.bundle_digest()},
         {"stable", std::string(status.labels_size() > 0 && status.labels(0) == "stable" ? "yes" : "no")}});
    if (status.labels_size() > 0 && status.labels(0) == "stable") stable[status.model()] = status.version();
  }
  metrics_.SetModelVersions(stable);
  std::lock_guard<std::mutex> lock(mutex_);
  grpc::HealthCheckServiceInterface* health = grpc_->GetHealthCheckService();
  for (const std::string& model : reported_) {
    if (stable.count(model) == 0) health->SetServingStatus(model, false);
  }
  for (const auto& [model, version] : stable) {
    health->SetServingStatus(model, true);
    reported_.insert(model);
  }
}

void Server::Shutdown(absl::Duration grace) {
  if (!ready_.exchange(false)) {
    // Never listened, or shut down already. A server object that was built without its port is dropped as it
    // is.
    return;
  }
  LogInfo("shutting down");
  grpc_->GetHealthCheckService()->SetServingStatus(false);
  grpc_->Shutdown(absl::ToChronoTime(absl::Now() + grace));
  pool_->Shutdown();
  scoring_->Stop();
  log_.reset();
  store_.reset();
  LogInfo("stopped");
}

}  // namespace dinghy
