// The demo shop, end to end: events ingested through gRPC into RocksDB, requests replayed with the histories
// from the store, scores compared with PyTorch's and with themselves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <numeric>
#include <random>
#include <thread>

#include "features/behavior/ingest.h"
#include "server/replay/eval.h"
#include "server/replay/replay.h"
#include "server/replay/score_log_file.h"
#include "server/server.h"
#include "tests/integration/server_fixture.h"

namespace dinghy {
namespace {

namespace fs = std::filesystem;

class DemoTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    const char* source = std::getenv("DINGHY_SOURCE");
    ASSERT_NE(source, nullptr);
    const fs::path demo = fs::path(source) / "deploy/demo";
    const fs::path data = fs::path(::testing::TempDir()) / "demo_test_store";
    fs::remove_all(data);
    v1::ServerConfig config = TestConfig((demo / "models").string());
    config.mutable_store()->mutable_rocksdb()->set_path(data.string());
    auto server = Server::Create(config);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = server->release();
    client_ = new Client(server_->port());
    IngestCounts counts;
    const auto append = [](absl::Span<const v1::Event> events) -> absl::StatusOr<AppendResult> {
      v1::AppendResponse response;
      const grpc::Status status = client_->Append({events.begin(), events.end()}, response);
      if (!status.ok()) return absl::UnavailableError(status.error_message());
      AppendResult result;
      result.appended = static_cast<int64_t>(response.appended());
      return result;
    };
    const absl::Status ingested = IngestFile((demo / "events.jsonl").string(), {}, append, counts);
    ASSERT_TRUE(ingested.ok()) << ingested;
    ASSERT_GT(counts.appended, 10'000);
    ScoreLogStats stats;
    auto logs = LoadScoreLogs({(demo / "requests.jsonl").string()}, stats);
    ASSERT_TRUE(logs.ok()) << logs.status();
    logs_ = new std::vector<v1::ScoreLog>(*std::move(logs));
    ASSERT_GT(logs_->size(), 100u);
  }
  static void TearDownTestSuite() {
    delete logs_;
    delete client_;
    delete server_;
  }

  static absl::StatusOr<v1::ScoreResponse> Score(const v1::ScoreRequest& request) {
    v1::ScoreResponse response;
    const grpc::Status status = client_->TryScore(request, response);
    if (!status.ok()) return absl::InternalError(status.error_message());
    return response;
  }

  static Server* server_;
  static Client* client_;
  static std::vector<v1::ScoreLog>* logs_;
};

Server* DemoTest::server_ = nullptr;
Client* DemoTest::client_ = nullptr;
std::vector<v1::ScoreLog>* DemoTest::logs_ = nullptr;

TEST_F(DemoTest, EveryScoreIsPyTorchsAndTheBestPossibleAucIsBetter) {
  ReplayOptions options;
  options.concurrency = 2;
  options.histories_from_store = true;
  const auto result = Replay(*logs_, Score, options);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_FALSE(Failed(result->report, options)) << ToText(result->report, options);
  bool compared = false;
  for (const ComparisonReport& comparison : result->report.comparisons) {
    if (comparison.source != "pytorch") continue;
    compared = true;
    EXPECT_EQ(comparison.requests, static_cast<int64_t>(logs_->size()));
    EXPECT_LE(comparison.max_abs_difference, 1e-5);
  }
  EXPECT_TRUE(compared);

  const auto quality = Evaluate(result->logs);
  ASSERT_TRUE(quality.ok()) << quality.status();
  double served = 0, pytorch = 0, truth = 0;
  for (const SeriesReport& series : quality->series) {
    if (series.output != "click") continue;
    ASSERT_TRUE(series.auc.has_value());
    (series.source == kServed ? served : series.source == "pytorch" ? pytorch : truth) = *series.auc;
  }
  EXPECT_NEAR(served, pytorch, 1e-4);
  EXPECT_GT(served, 0.6);
  EXPECT_GT(truth, served);
}

// One column with its rows in the order of `rows`.
v1::Column Rearranged(const v1::Column& column, const std::vector<int>& rows) {
  v1::Column out;
  out.set_feature(column.feature());
  EXPECT_TRUE(column.has_ints());
  for (const int row : rows) out.mutable_ints()->add_values(column.ints().values(row));
  return out;
}

TEST_F(DemoTest, AnyOrderSubsetAndThreadGivesTheSameBits) {
  std::vector<std::thread> callers;
  for (unsigned t = 0; t < 4; ++t) {
    callers.emplace_back([t] {
      std::mt19937 random(t);
      for (size_t i = 0; i < logs_->size(); i += 40) {
        const v1::ScoreRequest& request = (*logs_)[i].request();
        const auto all = Score(request);
        ASSERT_TRUE(all.ok()) << all.status();
        std::vector<int> rows(request.candidates(0).ints().values_size());
        std::iota(rows.begin(), rows.end(), 0);
        std::shuffle(rows.begin(), rows.end(), random);
        rows.resize(1 + random() % rows.size());
        v1::ScoreRequest some = request;
        for (v1::Column& column : *some.mutable_candidates()) column = Rearranged(column, rows);
        const auto part = Score(some);
        ASSERT_TRUE(part.ok()) << part.status();
        for (int o = 0; o < all->outputs_size(); ++o) {
          for (size_t r = 0; r < rows.size(); ++r) {
            EXPECT_EQ(part->outputs(o).scores(static_cast<int>(r)), all->outputs(o).scores(rows[r]));
          }
        }
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
}

}  // namespace
}  // namespace dinghy
