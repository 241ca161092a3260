// A server in this process, on free ports, and what asks it: for the integration tests.
//
//   auto server = Server::Create(TestConfig(root));
//   Client client((*server)->port());
//   v1::ScoreResponse response = client.Score(request);
//
// Thread-safe as far as gRPC's stubs are.
#ifndef DINGHY_TESTS_INTEGRATION_SERVER_FIXTURE_H_
#define DINGHY_TESTS_INTEGRATION_SERVER_FIXTURE_H_

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/admin.grpc.pb.h"
#include "proto/behavior.grpc.pb.h"
#include "proto/health.grpc.pb.h"
#include "proto/scoring.grpc.pb.h"
#include "proto/server_config.pb.h"

namespace dinghy {

// A free port, no HTTP, two workers, no store, no log.
inline v1::ServerConfig TestConfig(const std::string& model_root) {
  v1::ServerConfig config;
  config.set_model_root(model_root);
  config.set_listen("127.0.0.1:0");
  config.set_metrics_listen("off");
  config.set_workers(2);
  return config;
}

struct Client {
  explicit Client(int port)
      : channel(grpc::CreateChannel(absl::StrCat("127.0.0.1:", port), grpc::InsecureChannelCredentials())),
        scoring(v1::ScoringService::NewStub(channel)),
        behavior(v1::BehaviorService::NewStub(channel)),
        admin(v1::AdminService::NewStub(channel)),
        health(grpc::health::v1::Health::NewStub(channel)) {}

  grpc::Status TryScore(const v1::ScoreRequest& request, v1::ScoreResponse& response) const {
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    return scoring->Score(&context, request, &response);
  }

  // The response; an error is the test's failure.
  v1::ScoreResponse Score(const v1::ScoreRequest& request) const {
    v1::ScoreResponse response;
    const grpc::Status status = TryScore(request, response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }

  grpc::Status Append(const std::vector<v1::Event>& events, v1::AppendResponse& response) const {
    grpc::ClientContext context;
    v1::AppendRequest request;
    request.mutable_events()->Add(events.begin(), events.end());
    return behavior->Append(&context, request, &response);
  }

  grpc::health::v1::HealthCheckResponse::ServingStatus Health(const std::string& service) const {
    grpc::ClientContext context;
    grpc::health::v1::HealthCheckRequest request;
    request.set_service(service);
    grpc::health::v1::HealthCheckResponse response;
    const grpc::Status status = health->Check(&context, request, &response);
    return status.ok() ? response.status() : grpc::health::v1::HealthCheckResponse::SERVICE_UNKNOWN;
  }

  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::ScoringService::Stub> scoring;
  std::unique_ptr<v1::BehaviorService::Stub> behavior;
  std::unique_ptr<v1::AdminService::Stub> admin;
  std::unique_ptr<grpc::health::v1::Health::Stub> health;
};

}  // namespace dinghy

#endif  // DINGHY_TESTS_INTEGRATION_SERVER_FIXTURE_H_
