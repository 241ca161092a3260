#include "server/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace dinghy {
namespace {

using ::testing::HasSubstr;

TEST(MetricsTest, TellsWhatTheUserCacheDoes) {
  LoadedModel loaded;
  loaded.bundle = std::make_unique<Bundle>();
  Metrics metrics;
  for (const UserCacheUse& use :
       {UserCacheUse{.asked = true, .bytes = 3000}, UserCacheUse{.asked = true, .evicted = 2, .bytes = 2000},
        UserCacheUse{.asked = true, .hit = true, .bytes = 2000}, UserCacheUse{}}) {
    WorkerState state;
    state.user_cache = use;
    metrics.CountScored(loaded, {}, state);
  }
  const std::string text = metrics.Text();
  EXPECT_THAT(text, HasSubstr("dinghy_user_cache_total{result=\"hit\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("dinghy_user_cache_total{result=\"miss\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("dinghy_user_cache_evicted_total 2\n"));
  EXPECT_THAT(text, HasSubstr("dinghy_user_cache_bytes 2000\n"));
}

}  // namespace
}  // namespace dinghy
