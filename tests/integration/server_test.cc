// The server as clients see it: a real one in this process, with RocksDB, over gRPC and HTTP.
#include "server/server.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "server/replay/replay.h"
#include "server/replay/score_log_file.h"
#include "tests/integration/server_fixture.h"
#include "tests/testing/test_bundle.h"

namespace dinghy {
namespace {

namespace fs = std::filesystem;
using ::grpc::health::v1::HealthCheckResponse;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::string FreshFolder(const std::string& name) {
  const fs::path folder = fs::path(::testing::TempDir()) / ("server_test_" + name);
  fs::remove_all(folder);
  return folder.string();
}

// What a GET answers, headers included.
std::string HttpGet(int port, const std::string& path) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::string text;
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) {
    const std::string request =
        absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
    EXPECT_EQ(send(fd, request.data(), request.size(), 0), static_cast<ssize_t>(request.size()));
    char buffer[4096];
    for (ssize_t n; (n = recv(fd, buffer, sizeof(buffer), 0)) > 0;) text.append(buffer, n);
  }
  close(fd);
  return text;
}

class ServerTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    models_ = new std::string(FreshFolder("models"));
    ASSERT_TRUE(WriteTestBundle(*models_, {.version = 1}).ok());
    ASSERT_TRUE(WriteTestBundle(*models_, {.version = 2, .self_attention = true}).ok());
  }
  static void TearDownTestSuite() { delete models_; }

  // civetweb takes up to two seconds to stop, so only few tests have HTTP.
  static v1::ServerConfig WithHttp() {
    v1::ServerConfig config = TestConfig(*models_);
    config.set_metrics_listen("127.0.0.1:0");
    return config;
  }

  static v1::ServerConfig WithRocksDb(const std::string& name) {
    v1::ServerConfig config = TestConfig(*models_);
    config.mutable_store()->mutable_rocksdb()->set_path(FreshFolder(name));
    return config;
  }

  static std::vector<v1::Event> EventsOf(const v1::ScoreRequest& request) {
    std::vector<v1::Event> events;
    const v1::SequenceData& clicks = request.sequences(0);
    for (int i = 0; i < clicks.event_time_ms_size(); ++i) {
      v1::Event& event = events.emplace_back();
      event.set_user_id(request.user_id());
      event.set_event_time_ms(clicks.event_time_ms(i));
      event.set_event_id(i);
      event.set_item_id(clicks.columns(0).ints().values(i));
      event.set_action("click");
    }
    return events;
  }

  static std::string* models_;
};

std::string* ServerTest::models_ = nullptr;

std::string ScoresOf(const v1::ScoreResponse& response) {
  std::string bits;
  for (const v1::OutputScores& output : response.outputs()) bits += output.SerializeAsString();
  return bits;
}

TEST_F(ServerTest, ScoresWithTheHistoryThatWasAppended) {
  auto server = Server::Create(WithRocksDb("append"));
  ASSERT_TRUE(server.ok()) << server.status();
  const Client client((*server)->port());
  const v1::ScoreRequest with_history = MakeTestRequest({.candidates = 9, .behaviors = 6});
  v1::ScoreRequest request = with_history;
  request.clear_sequences();

  const v1::ScoreResponse empty = client.Score(request);
  EXPECT_EQ(empty.history(0).length(), 0);
  EXPECT_THAT(empty.degradations(), IsEmpty());
  v1::AppendResponse appended;
  ASSERT_TRUE(client.Append(EventsOf(with_history), appended).ok());
  EXPECT_EQ(appended.appended(), 6);
  const v1::ScoreResponse fetched = client.Score(request);
  EXPECT_EQ(fetched.history(0).length(), 6);
  EXPECT_EQ(fetched.version(), 2);
  EXPECT_EQ(ScoresOf(fetched), ScoresOf(client.Score(with_history)));
  EXPECT_NE(ScoresOf(fetched), ScoresOf(empty));

  // Again changes nothing; get and delete.
  ASSERT_TRUE(client.Append(EventsOf(with_history), appended).ok());
  EXPECT_EQ(appended.duplicates(), 6);
  {
    grpc::ClientContext context;
    v1::GetRequest get;
    get.set_user_id(request.user_id());
    get.mutable_query()->set_limit(2);
    v1::GetResponse events;
    ASSERT_TRUE(client.behavior->Get(&context, get, &events).ok());
    ASSERT_THAT(events.events(), SizeIs(2));
    EXPECT_EQ(events.events(1).event_id(), 5);
  }
  {
    grpc::ClientContext context;
    v1::DeleteUserRequest erase;
    erase.set_user_id(request.user_id());
    v1::DeleteUserResponse erased;
    ASSERT_TRUE(client.behavior->DeleteUser(&context, erase, &erased).ok());
    EXPECT_EQ(erased.deleted(), 6);
  }
  EXPECT_EQ(ScoresOf(client.Score(request)), ScoresOf(empty));
}

TEST_F(ServerTest, AFaultyAppendStoresNothing) {
  auto server = Server::Create(WithRocksDb("faulty_append"));
  ASSERT_TRUE(server.ok()) << server.status();
  const Client client((*server)->port());
  std::vector<v1::Event> events = EventsOf(MakeTestRequest({.behaviors = 2}));
  events[1].clear_action();
  v1::AppendResponse appended;
  const grpc::Status status = client.Append(events, appended);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("action"));
  grpc::ClientContext context;
  v1::GetRequest get;
  get.set_user_id(events[0].user_id());
  v1::GetResponse stored;
  ASSERT_TRUE(client.behavior->Get(&context, get, &stored).ok());
  EXPECT_THAT(stored.events(), IsEmpty());
}

TEST_F(ServerTest, WithoutAStoreHistoriesAreFlaggedAndBehaviorsRefused) {
  auto server = Server::Create(TestConfig(*models_));
  ASSERT_TRUE(server.ok()) << server.status();
  const Client client((*server)->port());
  v1::ScoreRequest request = MakeTestRequest({});
  request.clear_sequences();
  EXPECT_THAT(client.Score(request).degradations(), ::testing::ElementsAre(v1::HISTORY_UNAVAILABLE));
  v1::AppendResponse appended;
  const grpc::Status status = client.Append(EventsOf(MakeTestRequest({})), appended);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
}

TEST_F(ServerTest, VersionsLabelsAndMetadata) {
  auto server = Server::Create(TestConfig(*models_));
  ASSERT_TRUE(server.ok()) << server.status();
  const Client client((*server)->port());
  v1::ScoreRequest request = MakeTestRequest({});
  request.set_version(1);
  EXPECT_EQ(client.Score(request).version(), 1);
  request.set_version(3);
  v1::ScoreResponse response;
  EXPECT_EQ(client.TryScore(request, response).error_code(), grpc::StatusCode::NOT_FOUND);
  request.set_label("canary");
  EXPECT_EQ(client.TryScore(request, response).error_code(), grpc::StatusCode::NOT_FOUND);
  request.set_model("shoe");
  const grpc::Status unknown = client.TryScore(request, response);
  EXPECT_EQ(unknown.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_THAT(unknown.error_message(), HasSubstr("\"shoe\""));

  {
    grpc::ClientContext context;
    v1::PinRequest pin;
    pin.set_model("shop");
    pin.set_label("canary");
    pin.set_version(1);
    v1::GetModelStatusResponse status;
    ASSERT_TRUE(client.admin->Pin(&context, pin, &status).ok());
    EXPECT_THAT(status.versions(), SizeIs(2));
  }
  request.set_model("shop");
  EXPECT_EQ(client.Score(request).version(), 1);  // by the label

  grpc::ClientContext context;
  v1::GetModelMetadataRequest about;
  about.set_model("shop");
  v1::ModelMetadata metadata;
  ASSERT_TRUE(client.scoring->GetModelMetadata(&context, about, &metadata).ok());
  EXPECT_EQ(metadata.version(), 2);
  EXPECT_EQ(metadata.item_feature(), "item");
  EXPECT_THAT(metadata.outputs(), ::testing::ElementsAre("click", "purchase"));
  EXPECT_THAT(metadata.sequences(), SizeIs(1));
  EXPECT_GT(metadata.features_size(), 3);
  EXPECT_EQ(metadata.max_candidates(), 1000);
  ASSERT_THAT(metadata.versions(), SizeIs(2));
  EXPECT_THAT(metadata.versions(0).labels(), ::testing::ElementsAre("canary"));
  EXPECT_THAT(metadata.versions(1).labels(), ::testing::ElementsAre("stable"));
}

TEST_F(ServerTest, ReloadAndRollback) {
  const std::string root = FreshFolder("reload_models");
  ASSERT_TRUE(WriteTestBundle(root, {.version = 1}).ok());
  auto server = Server::Create(TestConfig(root));
  ASSERT_TRUE(server.ok()) << server.status();
  const Client client((*server)->port());
  ASSERT_TRUE(WriteTestBundle(root, {.version = 2, .seed = 7}).ok());
  v1::GetModelStatusResponse status;
  {
    grpc::ClientContext context;
    ASSERT_TRUE(client.admin->Reload(&context, {}, &status).ok());
  }
  EXPECT_EQ(client.Score(MakeTestRequest({})).version(), 2);
  v1::RollbackRequest rollback;
  rollback.set_model("shop");
  {
    grpc::ClientContext context;
    ASSERT_TRUE(client.admin->Rollback(&context, rollback, &status).ok());
  }
  EXPECT_EQ(client.Score(MakeTestRequest({})).version(), 1);
  grpc::ClientContext context;
  EXPECT_EQ(client.admin->Rollback(&context, rollback, &status).error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);
}

TEST_F(ServerTest, FaultsOfRequestsAreInvalidArgument) {
  v1::ServerConfig config = TestConfig(*models_);
  config.set_max_candidates(10);
  config.set_unknown_features(v1::REJECT);
  auto server = Server::Create(config);
  ASSERT_TRUE(server.ok()) << server.status();
  const Client client((*server)->port());
  v1::ScoreResponse response;
  const auto expect = [&](const v1::ScoreRequest& request, const std::string& text) {
    const grpc::Status status = client.TryScore(request, response);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
    EXPECT_THAT(status.error_message(), HasSubstr(text));
  };
  expect(MakeTestRequest({.candidates = 11}), "10");
  v1::ScoreRequest request = MakeTestRequest({});
  request.add_context()->set_feature("weather");
  request.mutable_context(0)->mutable_ints()->add_values(1);
  expect(request, "\"weather\"");
  request = MakeTestRequest({});
  request.mutable_candidates()->Add()->set_feature("category");
  request.mutable_candidates(1)->mutable_ints()->add_values(1);
  expect(request, "category");
  EXPECT_EQ(client.Score(MakeTestRequest({.candidates = 10})).outputs(0).scores_size(), 10);
}

TEST_F(ServerTest, Health) {
  auto server = Server::Create(WithHttp());
  ASSERT_TRUE(server.ok()) << server.status();
  const Client client((*server)->port());
  EXPECT_EQ(client.Health(""), HealthCheckResponse::SERVING);
  EXPECT_EQ(client.Health("shop"), HealthCheckResponse::SERVING);
  EXPECT_EQ(client.Health("shoe"), HealthCheckResponse::SERVICE_UNKNOWN);
  EXPECT_THAT(HttpGet((*server)->metrics_port(), "/ready"), HasSubstr("200 OK"));
  EXPECT_THAT(HttpGet((*server)->metrics_port(), "/live"), HasSubstr("200 OK"));
  (*server)->Shutdown();
  EXPECT_THAT(HttpGet((*server)->metrics_port(), "/ready"), HasSubstr("503"));
}

TEST_F(ServerTest, ReflectionListsTheServices) {
  auto server = Server::Create(TestConfig(*models_));
  ASSERT_TRUE(server.ok()) << server.status();
  const Client client((*server)->port());
  grpc::GenericStub stub(client.channel);
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  const auto wait = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  auto call =
      stub.PrepareCall(&context, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", &queue);
  call->StartCall(nullptr);
  ASSERT_TRUE(wait());
  const grpc::Slice list_services("\x3a\x00", 2);  // ServerReflectionRequest{list_services: ""}
  call->Write(grpc::ByteBuffer(&list_services, 1), nullptr);
  ASSERT_TRUE(wait());
  grpc::ByteBuffer answer;
  call->Read(&answer, nullptr);
  ASSERT_TRUE(wait());
  std::vector<grpc::Slice> slices;
  ASSERT_TRUE(answer.Dump(&slices).ok());
  std::string text;
  for (const grpc::Slice& slice : slices)
    text.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  for (const char* service : {"dinghy.v1.ScoringService", "dinghy.v1.BehaviorService",
                              "dinghy.v1.AdminService", "grpc.health.v1.Health"}) {
    EXPECT_THAT(text, HasSubstr(service));
  }
  call->WritesDone(nullptr);
  ASSERT_TRUE(wait());
  grpc::Status status;
  call->Finish(&status, nullptr);
  ASSERT_TRUE(wait());
  EXPECT_TRUE(status.ok());
}

TEST_F(ServerTest, MetricsCount) {
  auto server = Server::Create(WithHttp());
  ASSERT_TRUE(server.ok()) << server.status();
  const Client client((*server)->port());
  client.Score(MakeTestRequest({.candidates = 3}));
  v1::ScoreRequest request = MakeTestRequest({.candidates = 3});
  request.clear_sequences();
  request.mutable_candidates(0)->mutable_ints()->set_values(0, 999'999);
  client.Score(request);
  request.set_model("shoe");
  v1::ScoreResponse response;
  EXPECT_FALSE(client.TryScore(request, response).ok());
  const std::string text = HttpGet((*server)->metrics_port(), "/metrics");
  for (const char* line : {
           "dinghy_requests_total{code=\"OK\",model=\"shop\",version=\"2\"} 2",
           "dinghy_requests_total{code=\"NOT_FOUND\",model=\"\",version=\"0\"} 1",
           "dinghy_request_duration_seconds_count 3",
           "dinghy_stage_duration_seconds_count{stage=\"model\"} 2",
           "dinghy_candidates_sum 6",
           "dinghy_degraded_total{reason=\"history_unavailable\"} 1",
           "dinghy_oov_total{feature=\"item\"} 1",
           "dinghy_score_count{model=\"shop\",output=\"click\",version=\"2\"} 6",
           "dinghy_model_version{model=\"shop\"} 2",
           "dinghy_user_cache_total{result=\"miss\"} 0",
           "dinghy_request_log_dropped_total 0",
       }) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

TEST_F(ServerTest, APortInUseIsRefused) {
  auto first = Server::Create(WithHttp());
  ASSERT_TRUE(first.ok()) << first.status();
  v1::ServerConfig config = TestConfig(*models_);
  config.set_listen(absl::StrCat("127.0.0.1:", (*first)->port()));
  auto second = Server::Create(config);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(second.status().message(),
            absl::StrCat("cannot listen on 127.0.0.1:", (*first)->port(), ": Address already in use"));
  config = TestConfig(*models_);
  config.set_metrics_listen(absl::StrCat("127.0.0.1:", (*first)->metrics_port()));
  auto third = Server::Create(config);
  EXPECT_EQ(third.status().message(), absl::StrCat("cannot listen on 127.0.0.1:", (*first)->metrics_port(),
                                                   ": Address already in use"));
  config.set_metrics_listen("nowhere");
  EXPECT_EQ(Server::Create(config).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(ServerTest, AStoreInUseIsRefused) {
  v1::ServerConfig config = WithRocksDb("locked");
  auto first = Server::Create(config);
  ASSERT_TRUE(first.ok()) << first.status();
  auto second = Server::Create(config);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(second.status().message(), HasSubstr(config.store().rocksdb().path()));
  (*first)->Shutdown();  // closes it
  auto third = Server::Create(config);
  EXPECT_TRUE(third.ok()) << third.status();
}

TEST_F(ServerTest, NoModelIsAnError) {
  const std::string root = FreshFolder("no_models");
  EXPECT_EQ(Server::Create(TestConfig(root)).status().code(), absl::StatusCode::kNotFound);
  fs::create_directories(root);
  EXPECT_EQ(Server::Create(TestConfig(root)).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(ServerTest, TheLogReplaysToTheSameBits) {
  v1::ServerConfig config = WithRocksDb("replay_store");
  config.mutable_score_log()->set_directory(FreshFolder("replay_log"));
  auto server = Server::Create(config);
  ASSERT_TRUE(server.ok()) << server.status();
  {
    const Client client((*server)->port());
    v1::AppendResponse appended;
    for (uint32_t seed = 1; seed <= 5; ++seed) {
      v1::ScoreRequest request =
          MakeTestRequest({.candidates = 7, .behaviors = static_cast<int>(4 * seed), .seed = seed});
      ASSERT_TRUE(client.Append(EventsOf(request), appended).ok());
      request.clear_sequences();
      if (seed == 4) request.clear_request_time_ms();
      client.Score(request);
    }
  }
  (*server)->Shutdown();
  ScoreLogStats stats;
  const auto logs = LoadScoreLogs({config.score_log().directory()}, stats);
  ASSERT_TRUE(logs.ok()) << logs.status();
  ASSERT_THAT(*logs, SizeIs(5));

  // Against a server whose store is empty: all that is needed is in the log.
  auto other = Server::Create(WithRocksDb("replay_empty_store"));
  ASSERT_TRUE(other.ok()) << other.status();
  const Client client((*other)->port());
  const auto score = [&](const v1::ScoreRequest& request) -> absl::StatusOr<v1::ScoreResponse> {
    v1::ScoreResponse response;
    const grpc::Status status = client.TryScore(request, response);
    if (!status.ok()) return absl::InternalError(status.error_message());
    return response;
  };
  ReplayOptions options;
  options.concurrency = 3;
  const auto replayed = Replay(*logs, score, options);
  ASSERT_TRUE(replayed.ok()) << replayed.status();
  EXPECT_FALSE(Failed(replayed->report, options)) << ToText(replayed->report, options);
  ASSERT_THAT(replayed->report.comparisons, SizeIs(1));
  EXPECT_EQ(replayed->report.comparisons[0].exact_requests, 5);
  EXPECT_EQ(replayed->report.comparisons[0].bit_equal, replayed->report.comparisons[0].scores);
  EXPECT_EQ(replayed->report.comparisons[0].scores, 5 * 7 * 2);
}

TEST_F(ServerTest, ConcurrentCallersGetWhatTheyGetAlone) {
  auto server = Server::Create(TestConfig(*models_));
  ASSERT_TRUE(server.ok()) << server.status();
  const Client client((*server)->port());
  std::vector<v1::ScoreRequest> requests;
  std::vector<std::string> alone;
  for (uint32_t seed = 1; seed <= 8; ++seed) {
    requests.push_back(MakeTestRequest(
        {.candidates = static_cast<int>(13 * seed), .behaviors = static_cast<int>(seed), .seed = seed}));
    alone.push_back(ScoresOf(client.Score(requests.back())));
  }
  std::vector<std::thread> callers;
  for (int t = 0; t < 4; ++t) {
    callers.emplace_back([&] {
      for (size_t i = 0; i < requests.size(); ++i) EXPECT_EQ(ScoresOf(client.Score(requests[i])), alone[i]);
    });
  }
  for (std::thread& caller : callers) caller.join();
}

}  // namespace
}  // namespace dinghy
