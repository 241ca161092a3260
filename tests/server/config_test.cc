#include "server/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

namespace dinghy {
namespace {

using ::testing::HasSubstr;

TEST(ConfigTest, ReadsTextAndNamesTheLineOfAFault) {
  const std::string path = ::testing::TempDir() + "server_config.txtpb";
  std::ofstream(path) << "model_root: \"models\"\nstore { rocksdb { path: \"data\" no_sync: true } }\n";
  const auto config = ReadServerConfig(path);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->model_root(), "models");
  EXPECT_TRUE(config->store().rocksdb().no_sync());
  std::ofstream(path) << "model_root: \"models\"\nworkres: 3\n";
  const absl::Status bad = ReadServerConfig(path).status();
  EXPECT_EQ(bad.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(bad.message(), HasSubstr("server_config.txtpb:2:"));
  EXPECT_THAT(bad.message(), HasSubstr("workres"));
  EXPECT_EQ(ReadServerConfig(path + ".absent").status().code(), absl::StatusCode::kNotFound);
}

TEST(ConfigTest, FillsInDefaultsAndChecksRanges) {
  EXPECT_THAT(CompleteConfig({}).status().message(), HasSubstr("model_root"));
  v1::ServerConfig config;
  config.set_model_root("models");
  const auto complete = CompleteConfig(config);
  ASSERT_TRUE(complete.ok()) << complete.status();
  EXPECT_EQ(complete->listen(), "127.0.0.1:8500");
  EXPECT_GE(complete->workers(), 1);
  EXPECT_EQ(complete->queue(), 64 * complete->workers());
  EXPECT_EQ(complete->max_candidates(), 1000);
  EXPECT_EQ(complete->score_log().sample_rate(), 1);
  EXPECT_EQ(complete->user_cache_mb(), 64);
  config.set_user_cache_mb(0);
  EXPECT_EQ(CompleteConfig(config)->user_cache_mb(), 0);
  config.set_user_cache_mb(2'000'000);
  EXPECT_THAT(CompleteConfig(config).status().message(), HasSubstr("user_cache_mb"));
  config.clear_user_cache_mb();
  config.set_max_candidates(2'000'000);
  EXPECT_THAT(CompleteConfig(config).status().message(), HasSubstr("max_candidates"));
}

TEST(ConfigTest, ParsesStores) {
  EXPECT_TRUE(ParseStore("memory")->has_memory());
  EXPECT_EQ(ParseStore("rocksdb:/data/a:b")->rocksdb().path(), "/data/a:b");
  for (const char* bad : {"", "rocksdb:", "redis:x", "memory2"}) {
    EXPECT_EQ(ParseStore(bad).status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
}

}  // namespace
}  // namespace dinghy
