#include "server/scoring_service.h"

#include <google/protobuf/arena.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "model/ops/cpu.h"
#include "server/diagnostics.h"
#include "server/grpc_status.h"

namespace dinghy {
namespace {

// One scores, one frees what was answered, and one waits for what comes: as long as a thread of this queue
// waits, gRPC (1.51, epoll) lets it read the sockets, and none of another queue's has to hand it what it
// read.
constexpr int kThreads = 3;

template <typename Request>
ModelChoice ChoiceOf(const Request& request) {
  ModelChoice choice;
  choice.model = request.model();
  choice.by_version = request.version_choice_case() == Request::kVersion;
  if (choice.by_version) {
    choice.version = request.version();
  } else {
    choice.label = request.label();
  }
  return choice;
}

// A request of some hundred candidates in one block.
google::protobuf::ArenaOptions RequestArena() {
  google::protobuf::ArenaOptions options;
  options.start_block_size = 16384;
  options.max_block_size = 65536;
  return options;
}

}  // namespace

// Score is asynchronous, GetModelMetadata is not.
class ScoringService::Service
    : public v1::ScoringService::WithAsyncMethod_Score<v1::ScoringService::Service> {
 public:
  Service(ModelRegistry& registry, uint32_t max_candidates)
      : registry_(registry), max_candidates_(max_candidates) {}

  grpc::Status GetModelMetadata(grpc::ServerContext*, const v1::GetModelMetadataRequest* request,
                                v1::ModelMetadata* response) override {
    const auto loaded = registry_.Acquire(ChoiceOf(*request));
    if (!loaded.ok()) return ToGrpc(loaded.status());
    const v1::BundleManifest& manifest = (*loaded)->bundle->manifest;
    response->set_model(manifest.name());
    response->set_version((*loaded)->bundle->version);
    response->set_bundle_digest((*loaded)->bundle->digest);
    response->set_numerics_id((*loaded)->model->numerics_id());
    *response->mutable_sequences() = manifest.sequences();
    *response->mutable_features() = manifest.features();
    response->set_item_feature(manifest.item_feature());
    for (const v1::Output& output : manifest.outputs()) response->add_outputs(output.name());
    response->set_max_candidates(max_candidates_);
    const auto versions = registry_.Status(manifest.name());
    if (!versions.ok()) return ToGrpc(versions.status());
    for (const v1::ModelVersionStatus& status : *versions) {
      if (status.state() != v1::ModelVersionStatus::LOADED) continue;
      v1::ModelVersionInfo* info = response->add_versions();
      info->set_version(status.version());
      info->set_bundle_digest(status.bundle_digest());
      *info->mutable_labels() = status.labels();
    }
    return grpc::Status::OK;
  }

 private:
  ModelRegistry& registry_;
  const uint32_t max_candidates_;
};

// One Score call. What the queue says of it comes as the address of one of its tags.
class ScoringService::Call {
 public:
  enum class Event { kArrived, kDone, kFinished };
  struct Tag {
    Call* call;
    Event event;
  };

  grpc::ServerContext context;
  google::protobuf::Arena arena{RequestArena()};
  v1::ScoreRequest* const request = google::protobuf::Arena::CreateMessage<v1::ScoreRequest>(&arena);
  grpc::ServerAsyncResponseWriter<v1::ScoreResponse> responder{&context};
  std::chrono::steady_clock::time_point arrived_at;
  std::atomic<bool> cancelled = false;
  std::atomic<int> open = 2;  // events still to come once arrived: done and finished

  Tag arrived{this, Event::kArrived};
  Tag done{this, Event::kDone};
  Tag finished{this, Event::kFinished};

  absl::Duration Age() const { return absl::FromChrono(std::chrono::steady_clock::now() - arrived_at); }
};

ScoringService::ScoringService(Parts parts)
    : parts_(parts), service_(std::make_unique<Service>(parts.registry, parts.max_candidates)) {}

ScoringService::~ScoringService() = default;

void ScoringService::AddTo(grpc::ServerBuilder& builder) {
  builder.RegisterService(service_.get());
  queue_ = builder.AddCompletionQueue();
}

void ScoringService::Start() {
  polling_ = kThreads;
  for (int i = 0; i < kThreads; ++i) {
    TakeNextCall();
    threads_.emplace_back([this] { RunQueue(); });
  }
}

void ScoringService::Stop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
    queue_->Shutdown();
  }
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void ScoringService::TakeNextCall() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (stopping_) return;  // a queue that is shut down takes no new tags
  auto* call = new Call;  // freed by RunQueue
  call->context.AsyncNotifyWhenDone(&call->done);
  service_->RequestScore(&call->context, call->request, &call->responder, queue_.get(), queue_.get(),
                         &call->arrived);
}

void ScoringService::RunQueue() {
  ops::PrepareThread();
  void* raw = nullptr;
  bool ok = false;
  for (; queue_->Next(&raw, &ok); ++polling_) {
    --polling_;
    const Call::Tag tag = *static_cast<Call::Tag*>(raw);
    Call* call = tag.call;
    if (tag.event == Call::Event::kArrived) {
      if (!ok) {  // the server shuts down; `done` never comes for a call that did not begin
        delete call;
        continue;
      }
      Enqueue(call);
      TakeNextCall();
      continue;
    }
    if (tag.event == Call::Event::kDone && call->context.IsCancelled()) call->cancelled = true;
    if (--call->open == 0) delete call;
  }
}

void ScoringService::Enqueue(Call* call) {
  call->arrived_at = std::chrono::steady_clock::now();
  Work work{
      .deadline = absl::FromChrono(call->context.deadline()),
      .cancelled = [call] { return call->cancelled.load(); },
      .run =
          [this, call](WorkerState& state) {
            parts_.metrics.CountTaken();
            ScoreOnWorker(call, state);
          },
      .drop =
          [this, call](const absl::Status& status) {
            parts_.metrics.CountTaken();
            Refuse(call, status, "", 0);
          },
  };
  parts_.metrics.CountQueued();  // before a worker can take it
  // The last thread that waits for the queue has to go on doing so.
  const absl::Status taken =
      polling_ > 0 ? parts_.pool.RunOrSubmit(std::move(work)) : parts_.pool.Submit(std::move(work));
  if (taken.ok()) return;
  parts_.metrics.CountTaken();
  const int64_t retry = std::max<int64_t>(1, absl::ToInt64Milliseconds(parts_.pool.RetryAfter()));
  call->context.AddTrailingMetadata("retry-after-ms", absl::StrCat(retry));
  Refuse(call, taken, "", 0);
}

void ScoringService::ScoreOnWorker(Call* call, WorkerState& state) {
  // Held until the answer is out: the version stays loaded, and its last holder is the registry's loader
  // thread.
  const auto loaded = parts_.registry.Acquire(ChoiceOf(*call->request));
  if (!loaded.ok()) return Refuse(call, loaded.status(), "", 0);
  const std::string& model = (*loaded)->bundle->manifest.name();
  const int64_t version = (*loaded)->bundle->version;
  const bool logged = parts_.log != nullptr && parts_.log->Wants(*call->request);
  v1::ScoreLog record;
  const absl::StatusOr<v1::ScoreResponse> response =
      parts_.scorer.Score(**loaded, std::move(*call->request), state, logged ? &record : nullptr);
  if (!response.ok()) {
    if (response.status().code() == absl::StatusCode::kInternal) {
      LogError("scoring failed", {{"model", model}, {"version", version}});
    }
    return Refuse(call, response.status(), model, version);
  }
  parts_.metrics.CountScored(**loaded, *response, state);
  parts_.metrics.CountRequest(model, version, absl::StatusCode::kOk, call->Age());
  if (logged) parts_.log->Write(std::move(record));
  call->responder.Finish(*response, grpc::Status::OK, &call->finished);  // `call` may be gone after this
}

void ScoringService::Refuse(Call* call, const absl::Status& status, const std::string& model,
                            int64_t version) {
  parts_.metrics.CountRequest(model, version, status.code(), call->Age());
  call->responder.FinishWithError(ToGrpc(status), &call->finished);
}

}  // namespace dinghy
