// The test bundles, loaded, and a scorer of them, for tests of the path of a request.
#ifndef DINGHY_TESTS_SERVER_SCORER_FIXTURE_H_
#define DINGHY_TESTS_SERVER_SCORER_FIXTURE_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "server/scorer.h"
#include "tests/testing/test_bundle.h"

namespace dinghy {

inline constexpr int64_t kScorerNow = kTestRequestTimeMs;  // the scorer's clock

class ScorerFixture : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    const std::string root = ::testing::TempDir() + "scorer_models";
    for (const bool self_attention : {false, true}) {
      const auto folder =
          WriteTestBundle(root, {.version = 1 + self_attention, .self_attention = self_attention});
      ASSERT_TRUE(folder.ok()) << folder.status();
      auto loaded = LoadModel(*folder, {.max_candidates = 100});
      ASSERT_TRUE(loaded.ok()) << loaded.status();
      (self_attention ? sasrec_ : din_) = loaded->release();
    }
  }
  static void TearDownTestSuite() {
    delete din_;
    delete sasrec_;
  }

  absl::StatusOr<v1::ScoreResponse> Score(const v1::ScoreRequest& request,
                                          const BehaviorReader* store = nullptr,
                                          v1::ScoreLog* log = nullptr) {
    return Scorer(store, {.now = [] { return absl::FromUnixMillis(kScorerNow); }})
        .Score(*sasrec_, request, state_, log);
  }

  // The response; a failure is the test's.
  v1::ScoreResponse MustScore(const v1::ScoreRequest& request, const BehaviorReader* store = nullptr,
                              v1::ScoreLog* log = nullptr) {
    auto response = Score(request, store, log);
    EXPECT_TRUE(response.ok()) << response.status();
    return response.ok() ? *response : v1::ScoreResponse();
  }

  static inline LoadedModel* din_ = nullptr;
  static inline LoadedModel* sasrec_ = nullptr;
  WorkerState state_;
};

inline std::vector<float> Scores(const v1::ScoreResponse& response, int output = 0) {
  return {response.outputs(output).scores().begin(), response.outputs(output).scores().end()};
}

// The bundle of `from` after `change`, without its golden requests' check; null and a failure where it does
// not load.
inline std::unique_ptr<LoadedModel> LoadChanged(const LoadedModel& from,
                                                const std::function<void(Bundle&)>& change) {
  auto out = std::make_unique<LoadedModel>();
  auto bundle = OpenBundle(from.bundle->directory);
  EXPECT_TRUE(bundle.ok()) << bundle.status();
  if (!bundle.ok()) return nullptr;
  out->bundle = *std::move(bundle);
  change(*out->bundle);
  std::vector<int64_t> table_rows;
  for (const v1::Table& table : out->bundle->manifest.tables()) {
    table_rows.push_back(out->bundle->tensors.at(table.tensor()).shape[0]);
  }
  auto encoder = RequestEncoder::Create(out->bundle->manifest, out->bundle->files, table_rows, {});
  auto model = Model::Create(out->bundle->manifest, out->bundle->tensors);
  EXPECT_TRUE(encoder.ok() && model.ok()) << encoder.status() << model.status();
  if (!encoder.ok() || !model.ok()) return nullptr;
  out->encoder = *std::move(encoder);
  out->model = *std::move(model);
  return out;
}

}  // namespace dinghy

#endif  // DINGHY_TESTS_SERVER_SCORER_FIXTURE_H_
