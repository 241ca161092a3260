#include "server/replay/metrics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <random>

namespace dinghy {
namespace {

// AUC by its meaning: all pairs.
std::optional<double> PairAuc(const std::vector<float>& scores, const std::vector<uint8_t>& labels) {
  double wins = 0, pairs = 0;
  for (size_t i = 0; i < scores.size(); ++i) {
    for (size_t j = 0; j < scores.size(); ++j) {
      if (labels[i] == 0 || labels[j] != 0) continue;
      ++pairs;
      wins += scores[i] > scores[j] ? 1 : scores[i] == scores[j] ? 0.5 : 0;
    }
  }
  if (pairs == 0) return std::nullopt;
  return wins / pairs;
}

struct Samples {
  std::vector<float> scores;
  std::vector<uint8_t> labels;
  std::vector<int64_t> users;
};

Samples Draw(std::mt19937& random, int count, int levels) {
  Samples samples;
  for (int i = 0; i < count; ++i) {
    samples.scores.push_back(static_cast<float>(random() % levels) / static_cast<float>(levels) - 0.3f);
    samples.labels.push_back(random() % 3 == 0);
    samples.users.push_back(random() % 9);
  }
  return samples;
}

TEST(AucTest, AgreesWithAllPairsWithAndWithoutTies) {
  std::mt19937 random(11);
  for (const int count : {1, 2, 3, 7, 63, 64, 65, 300}) {
    for (const int levels : {1, 2, 5, 100, 1000000}) {
      const Samples samples = Draw(random, count, levels);
      const auto expected = PairAuc(samples.scores, samples.labels);
      const auto got = Auc(samples.scores, samples.labels);
      ASSERT_EQ(got.has_value(), expected.has_value());
      if (!got.has_value()) continue;
      EXPECT_EQ(*got, *expected) << count << " " << levels;  // exactly: both count in whole halves
    }
  }
}

TEST(AucTest, KnowsItsEnds) {
  EXPECT_EQ(*Auc({0.1f, 0.2f, 0.9f}, {0, 0, 1}), 1.0);
  EXPECT_EQ(*Auc({0.9f, 0.2f, 0.1f}, {0, 0, 1}), 0.0);
  EXPECT_EQ(*Auc({0.5f, 0.5f, 0.5f, 0.5f}, {0, 1, 1, 0}), 0.5);
  EXPECT_EQ(*Auc({-0.0f, 0.0f}, {0, 1}), 0.5);
  EXPECT_FALSE(Auc({0.5f, 0.6f}, {1, 1}).has_value());
  EXPECT_FALSE(Auc({0.5f}, {0}).has_value());
  EXPECT_FALSE(Auc({}, {}).has_value());
}

TEST(LogLossTest, IsTheMeanOfTheLogarithms) {
  EXPECT_NEAR(*LogLoss({0.25f, 0.5f, 0.75f}, {0, 1, 1}),
              -(std::log(0.75) + std::log(0.5) + std::log(0.75)) / 3, 1e-12);
}

TEST(LogLossTest, ClampsCertainty) {
  EXPECT_NEAR(*LogLoss({0.0f}, {1}), -std::log(1e-7), 1e-9);
  EXPECT_NEAR(*LogLoss({1.0f}, {0}), -std::log(1e-7), 1e-6);
  EXPECT_NEAR(*LogLoss({1.0f}, {1}), 1e-7, 1e-9);
}

TEST(LogLossTest, HasNoValueForOtherThanProbabilities) {
  EXPECT_FALSE(LogLoss({}, {}).has_value());
  EXPECT_FALSE(LogLoss({0.5f, 1.5f}, {1, 1}).has_value());
  EXPECT_FALSE(LogLoss({-0.1f}, {1}).has_value());
}

TEST(UserAucTest, WeighsUsersBySamplesAndSkipsThoseOfOneClass) {
  // User 5: AUC 1 over 2 samples; user 6: AUC 0.5 over 4; user 7: clicks only; user 8: none.
  const GroupedAuc got = UserAuc({0.1f, 0.5f, 0.9f, 0.5f, 0.5f, 0.5f, 0.3f, 0.3f}, {0, 0, 1, 1, 1, 0, 1, 0},
                                 {5, 6, 5, 6, 6, 6, 7, 8});
  EXPECT_EQ(got.users, 2);
  EXPECT_EQ(got.skipped_users, 2);
  EXPECT_DOUBLE_EQ(*got.value, (1.0 * 2 + 0.5 * 4) / 6);
}

TEST(UserAucTest, AgreesWithUsersOneByOne) {
  std::mt19937 random(5);
  for (const int count : {1, 5, 20, 200}) {
    const Samples samples = Draw(random, count, 7);
    std::map<int64_t, Samples> by_user;
    for (int i = 0; i < count; ++i) {
      Samples& own = by_user[samples.users[i]];
      own.scores.push_back(samples.scores[i]);
      own.labels.push_back(samples.labels[i]);
    }
    double sum = 0, weight = 0;
    int64_t users = 0;
    for (const auto& [user, own] : by_user) {
      const auto auc = PairAuc(own.scores, own.labels);
      if (!auc.has_value()) continue;
      ++users;
      sum += *auc * static_cast<double>(own.scores.size());
      weight += static_cast<double>(own.scores.size());
    }
    const GroupedAuc got = UserAuc(samples.scores, samples.labels, samples.users);
    EXPECT_EQ(got.users, users);
    EXPECT_EQ(got.skipped_users, static_cast<int64_t>(by_user.size()) - users);
    ASSERT_EQ(got.value.has_value(), weight > 0);
    if (weight == 0) continue;
    EXPECT_NEAR(*got.value, sum / weight, 1e-12);
  }
}

TEST(PercentileTest, InterpolatesBetweenNeighbors) {
  const std::vector<double> sorted = {1, 2, 4, 8, 16};
  EXPECT_EQ(Percentile(sorted, 0), 1);
  EXPECT_EQ(Percentile(sorted, 0.5), 4);
  EXPECT_EQ(Percentile(sorted, 1), 16);
  EXPECT_DOUBLE_EQ(Percentile(sorted, 0.9), 8 + 0.6 * 8);
  EXPECT_EQ(Percentile({3.0}, 0.99), 3);
}

}  // namespace
}  // namespace dinghy
