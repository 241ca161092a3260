// States of users between requests: found by all that they are computed from, within their bytes; and
// requests run with them, and with help, to the bits of those run without.
#include "server/workers/user_cache.h"

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/scorer.h"
#include "server/workers/run_model.h"
#include "server/workers/worker_pool.h"
#include "tests/testing/test_bundle.h"

namespace dinghy {
namespace {

constexpr int kLength = 400;  // long enough for a state to be worth keeping
constexpr int kCandidates = 100;

class UserCacheTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    const auto folder = WriteTestBundle(::testing::TempDir() + "user_cache_models",
                                        {.version = 1, .self_attention = true, .max_length = kLength});
    ASSERT_TRUE(folder.ok()) << folder.status();
    auto loaded = LoadModel(*folder, {.max_candidates = 1000});
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    loaded_ = loaded->release();
  }
  static void TearDownTestSuite() { delete loaded_; }

  static FeatureBatch Encoded(const v1::ScoreRequest& request) {
    FeatureBatch batch;
    EncodeNotes notes;
    const absl::Status status = loaded_->encoder->Encode(request, batch, notes);
    EXPECT_TRUE(status.ok()) << status;
    return batch;
  }

  static FeatureBatch Batch(uint32_t seed, int behaviors = kLength) {
    return Encoded(MakeTestRequest({.candidates = kCandidates, .behaviors = behaviors, .seed = seed}));
  }

  // The candidates of `other` for the user of `batch`.
  static FeatureBatch WithCandidatesOf(const FeatureBatch& other, FeatureBatch batch) {
    const v1::BundleManifest& manifest = loaded_->bundle->manifest;
    batch.candidates = other.candidates;
    for (int f = 0; f < manifest.features_size(); ++f) {
      if (manifest.features(f).level() == v1::CANDIDATE) batch.columns[f] = other.columns[f];
    }
    return batch;
  }

  static std::string Key(const FeatureBatch& batch) {
    std::string key = "what was here before";
    MakeUserKey(*loaded_, batch, key);
    return key;
  }

  static UserState State(const FeatureBatch& batch) {
    ops::Scratch scratch;
    ops::Scratch::Scope scope(scratch);
    return loaded_->model->Keep(loaded_->model->ScoreUser(batch, {}, scratch));
  }

  static std::vector<std::vector<float>> Scores(const FeatureBatch& batch) {
    ops::Scratch scratch;
    ModelOutputs outputs;
    loaded_->model->Score(batch, {}, scratch, outputs);
    return outputs.scores;
  }

  static inline LoadedModel* loaded_ = nullptr;
};

TEST_F(UserCacheTest, TheKeyIsAllThatTheStateIsComputedFromAndNoMore) {
  const FeatureBatch batch = Batch(1);
  EXPECT_EQ(Key(batch), Key(WithCandidatesOf(Batch(2, 3), batch)));
  std::set<std::string> keys = {Key(batch)};
  const auto expect_new = [&](const FeatureBatch& other, const std::string& what) {
    EXPECT_TRUE(keys.insert(Key(other)).second) << what;
  };
  const v1::BundleManifest& manifest = loaded_->bundle->manifest;
  for (int f = 0; f < manifest.features_size(); ++f) {
    if (manifest.features(f).level() == v1::CANDIDATE) continue;
    FeatureBatch other = batch;
    FeatureColumn& column = other.columns[f];
    if (!column.rows.empty()) column.rows.back() ^= 1;
    if (!column.values.empty()) column.values.back() += 1;
    expect_new(other, manifest.features(f).name());
  }
  FeatureBatch other = batch;
  other.full_lengths[0] += 1;
  expect_new(other, "full length");
  expect_new(Batch(1, kLength - 1), "length");
  expect_new(Batch(1, 0), "no history");
  const std::string digest = std::exchange(loaded_->bundle->digest, "another");
  expect_new(batch, "digest");
  loaded_->bundle->digest = digest;
}

TEST_F(UserCacheTest, WhatWasUsedLongestAgoGoesFirstAndTheBytesHold) {
  const FeatureBatch batches[] = {Batch(1), Batch(2), Batch(3), Batch(4)};
  const auto insert = [&](UserCache& cache, int i) {
    return cache.Insert(Key(batches[i]), State(batches[i]));
  };
  size_t one = 0;
  {
    UserCache cache(1 << 30);
    one = insert(cache, 0).bytes;
    EXPECT_GE(one, Key(batches[0]).size() + State(batches[0]).bytes());
    EXPECT_EQ(insert(cache, 0).bytes, one);  // it is there already
    EXPECT_EQ(cache.bytes(), one);
  }
  UserCache cache(3 * one + one / 2);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(insert(cache, i).evicted, 0);
  const auto oldest = cache.Find(Key(batches[0]));  // now it is the newest
  ASSERT_NE(oldest, nullptr);
  EXPECT_EQ(insert(cache, 3).evicted, 1);
  EXPECT_EQ(cache.Find(Key(batches[1])), nullptr);
  for (const int i : {0, 2, 3}) EXPECT_NE(cache.Find(Key(batches[i])), nullptr) << i;
  EXPECT_LE(cache.bytes(), 3 * one + one / 2);

  UserCache small(one / 2);
  const UserCache::Inserted refused = insert(small, 0);
  EXPECT_EQ(refused.bytes, 0u);
  EXPECT_EQ(refused.evicted, 0);
  EXPECT_EQ(small.Find(Key(batches[0])), nullptr);
}

TEST_F(UserCacheTest, AStateOutlivesItsPlace) {
  const FeatureBatch batch = Batch(1);
  UserCache cache(Key(batch).size() + State(batch).bytes() + 4096);  // for one
  cache.Insert(Key(batch), State(batch));
  const auto held = cache.Find(Key(batch));
  EXPECT_EQ(cache.Insert(Key(Batch(2)), State(Batch(2))).evicted, 1);
  ops::Scratch scratch;
  ModelOutputs outputs;
  loaded_->model->StartOutputs(batch, *held, {}, outputs);
  loaded_->model->ScoreRange(batch, *held, 0, batch.candidates, {}, scratch, outputs);
  EXPECT_EQ(outputs.scores, Scores(batch));
}

TEST_F(UserCacheTest, AHitHasTheBitsOfAMiss) {
  UserCache cache(1 << 30);
  WorkerState state;
  const FeatureBatch page = Batch(1);
  const FeatureBatch next_page = WithCandidatesOf(Batch(2), page);
  const FeatureBatch other_user = Batch(3);
  const auto run = [&](const FeatureBatch& batch, bool hit) {
    ModelScoreOptions options;
    options.attention = true;
    RunModel(*loaded_, batch, options, &cache, state);
    EXPECT_TRUE(state.user_cache.asked);
    EXPECT_EQ(state.user_cache.hit, hit);
    EXPECT_EQ(state.user_cache.bytes, cache.bytes());
    EXPECT_EQ(state.outputs.scores, Scores(batch));
    ModelOutputs whole;
    ops::Scratch scratch;
    loaded_->model->Score(batch, options, scratch, whole);
    ASSERT_EQ(state.outputs.attention.size(), whole.attention.size());
    for (size_t a = 0; a < whole.attention.size(); ++a) {
      EXPECT_EQ(state.outputs.attention[a].weights, whole.attention[a].weights);
    }
  };
  run(page, false);
  run(page, true);
  run(other_user, false);
  run(next_page, true);
  run(other_user, true);
}

TEST_F(UserCacheTest, LeavesOutWhatItHasNot) {
  UserCache cache(1 << 30);
  WorkerState state;
  RunModel(*loaded_, Batch(1, 2), {}, &cache, state);  // computed as fast as it is looked up
  EXPECT_FALSE(state.user_cache.asked);
  const FeatureBatch batch = Batch(1);
  RunModel(*loaded_, batch, {}, &cache, state);
  ModelScoreOptions options;
  options.debug_names = {"history"};  // of which nothing is kept
  RunModel(*loaded_, batch, options, &cache, state);
  EXPECT_FALSE(state.user_cache.asked);
  ASSERT_EQ(state.outputs.debug.size(), 1u);
  EXPECT_EQ(state.outputs.debug[0].rows, kLength);
  RunModel(*loaded_, batch, {}, nullptr, state);
  EXPECT_FALSE(state.user_cache.asked);
}

TEST_F(UserCacheTest, CandidatesAreSharedToTheSameBits) {
  const auto pool = *WorkerPool::Create({.workers = 2});
  UserCache cache(1 << 30);
  WorkerState state;
  int shared = 0;
  state.share = [&](int blocks, WorkerState::BlockTask task) {
    ++shared;
    EXPECT_GE(blocks, 2);
    pool->Share(blocks, state.scratch, task);
  };
  v1::ScoreRequest request = MakeTestRequest({.candidates = 1000, .behaviors = kLength});
  for (const bool hit : {false, true}) {
    const FeatureBatch batch = Encoded(request);
    RunModel(*loaded_, batch, {}, &cache, state);
    EXPECT_EQ(state.user_cache.hit, hit);
    EXPECT_EQ(state.outputs.scores, Scores(batch));
  }
  EXPECT_EQ(shared, 2);
  RunModel(*loaded_, Batch(1, 1), {}, &cache, state);  // not worth a second thread
  RunModel(*loaded_, Encoded(MakeTestRequest({.candidates = 16, .behaviors = kLength})), {}, &cache, state);
  EXPECT_EQ(shared, 2);
}

TEST_F(UserCacheTest, ThreadsShareIt) {
  std::vector<FeatureBatch> batches;
  for (uint32_t seed = 0; seed < 6; ++seed) batches.push_back(Batch(seed));
  std::vector<std::vector<std::vector<float>>> expected;
  for (const FeatureBatch& batch : batches) expected.push_back(Scores(batch));
  UserCache cache(4 * (Key(batches[0]).size() + State(batches[0]).bytes()));  // too few for all
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 3; ++thread) {
    threads.emplace_back([&, thread] {
      WorkerState state;
      for (int i = 0; i < 60; ++i) {
        const size_t b = (i * (thread + 1)) % batches.size();
        RunModel(*loaded_, batches[b], {}, &cache, state);
        EXPECT_EQ(state.outputs.scores, expected[b]);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(UserCacheTest, AScorerKeepsAsManyBytesAsItIsTold) {
  const v1::ScoreRequest request = MakeTestRequest({.candidates = 5, .behaviors = kLength});
  for (const size_t bytes : {size_t{0}, size_t{1} << 30}) {
    const Scorer scorer(nullptr, {.user_cache_bytes = bytes});
    WorkerState state;
    for (const bool again : {false, true}) {
      ASSERT_TRUE(scorer.Score(*loaded_, request, state, nullptr).ok());
      EXPECT_EQ(state.user_cache.asked, bytes > 0);
      EXPECT_EQ(state.user_cache.hit, bytes > 0 && again);
    }
  }
}

}  // namespace
}  // namespace dinghy
