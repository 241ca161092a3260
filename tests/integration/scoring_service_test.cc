// ScoringService when it cannot score: a full queue, a passed deadline, a caller that went away. The one
// worker is held by work that the test lets go.
#include "server/scoring_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <future>

#include "tests/integration/server_fixture.h"
#include "tests/testing/test_bundle.h"

namespace dinghy {
namespace {

using ::testing::HasSubstr;

class ScoringServiceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string root = ::testing::TempDir() + "scoring_service_models";
    std::filesystem::remove_all(root);
    ASSERT_TRUE(WriteTestBundle(root, {}).ok());
    ModelRegistry::Options options;
    options.root = root;
    auto registry = ModelRegistry::Create(std::move(options));
    ASSERT_TRUE(registry.ok()) << registry.status();
    registry_ = *std::move(registry);
    pool_ = *WorkerPool::Create({.workers = 1, .queue = 1});
    service_ = std::make_unique<ScoringService>(ScoringService::Parts{
        .registry = *registry_, .scorer = scorer_, .pool = *pool_, .metrics = metrics_, .log = nullptr});
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    service_->AddTo(builder);
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
    service_->Start();
    client_ = std::make_unique<Client>(port);
  }

  void TearDown() override {
    server_->Shutdown();
    pool_->Shutdown();
    service_->Stop();
  }

  // Occupies the worker until Release. Once a test.
  void Hold() {
    Work work;
    work.run = [this](WorkerState&) {
      started_.set_value();
      released_.get_future().wait();
    };
    work.drop = [](const absl::Status&) {};
    ASSERT_TRUE(pool_->Submit(std::move(work)).ok());
    started_.get_future().wait();
  }
  void Release() { released_.set_value(); }

  Metrics metrics_;
  const Scorer scorer_{nullptr, {}};
  std::unique_ptr<ModelRegistry> registry_;
  std::unique_ptr<WorkerPool> pool_;
  std::unique_ptr<ScoringService> service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<Client> client_;
  std::promise<void> started_;
  std::promise<void> released_;
};

TEST_F(ScoringServiceTest, AFullQueueIsResourceExhaustedWithAHint) {
  Hold();
  Work filler;
  std::promise<void> filled;
  filler.run = [&](WorkerState&) { filled.set_value(); };
  filler.drop = [](const absl::Status&) {};
  ASSERT_TRUE(pool_->Submit(std::move(filler)).ok());
  grpc::ClientContext context;
  v1::ScoreResponse response;
  const grpc::Status status = client_->scoring->Score(&context, MakeTestRequest({}), &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  const auto& metadata = context.GetServerTrailingMetadata();
  const auto hint = metadata.find("retry-after-ms");
  ASSERT_NE(hint, metadata.end());
  EXPECT_GE(std::stoi(std::string(hint->second.data(), hint->second.size())), 1);
  Release();
  filled.get_future().wait();
  EXPECT_EQ(client_->Score(MakeTestRequest({})).outputs_size(), 2);
  EXPECT_THAT(metrics_.Text(), HasSubstr("dinghy_requests_total{code=\"RESOURCE_EXHAUSTED\""));
}

TEST_F(ScoringServiceTest, APassedDeadlineIsDeadlineExceeded) {
  Hold();
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(50));
  v1::ScoreResponse response;
  const grpc::Status status = client_->scoring->Score(&context, MakeTestRequest({}), &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  Release();
}

TEST_F(ScoringServiceTest, ACancelledCallIsSkipped) {
  Hold();
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  v1::ScoreResponse response;
  grpc::Status status;
  const auto call = client_->scoring->AsyncScore(&context, MakeTestRequest({}), &queue);
  call->Finish(&response, &status, nullptr);
  while (pool_->Queued() == 0) std::this_thread::yield();  // it has arrived
  context.TryCancel();
  void* tag = nullptr;
  bool ok = false;
  ASSERT_TRUE(queue.Next(&tag, &ok));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::CANCELLED);
  Release();
  while (pool_->Queued() > 0) std::this_thread::yield();
  // The service goes on, whether or not the server heard of the cancellation before the worker got to the
  // call.
  EXPECT_EQ(client_->Score(MakeTestRequest({})).outputs_size(), 2);
}

TEST_F(ScoringServiceTest, TheGaugeOfWaitingRequestsFallsBackToZero) {
  Hold();
  grpc::CompletionQueue queue;
  grpc::ClientContext waiting;
  v1::ScoreResponse response;
  grpc::Status status;
  const auto call = client_->scoring->AsyncScore(&waiting, MakeTestRequest({}), &queue);
  call->Finish(&response, &status, nullptr);
  while (pool_->Queued() == 0) std::this_thread::yield();
  EXPECT_THAT(metrics_.Text(), HasSubstr("dinghy_queued_requests 1\n"));
  grpc::ClientContext refused;
  v1::ScoreResponse none;
  EXPECT_EQ(client_->scoring->Score(&refused, MakeTestRequest({}), &none).error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(metrics_.Text(), HasSubstr("dinghy_queued_requests 1\n"));
  Release();
  void* tag = nullptr;
  bool ok = false;
  ASSERT_TRUE(queue.Next(&tag, &ok));
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_THAT(metrics_.Text(), HasSubstr("dinghy_queued_requests 0\n"));
}

TEST_F(ScoringServiceTest, ShutdownAnswersWhatWasTaken) {
  Hold();
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  v1::ScoreResponse response;
  grpc::Status status;
  const auto call = client_->scoring->AsyncScore(&context, MakeTestRequest({}), &queue);
  call->Finish(&response, &status, nullptr);
  while (pool_->Queued() == 0) std::this_thread::yield();
  std::thread shutdown([this] { server_->Shutdown(); });  // waits for the call
  Release();
  void* tag = nullptr;
  bool ok = false;
  ASSERT_TRUE(queue.Next(&tag, &ok));
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response.outputs_size(), 2);
  shutdown.join();
}

}  // namespace
}  // namespace dinghy
