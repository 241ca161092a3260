// What the path of a request allocates does not grow with the number of candidates.
#include <google/protobuf/arena.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "features/behavior/memory_store.h"
#include "server/scorer.h"
#include "tests/server/scorer_fixture.h"
#include "tests/testing/allocation_counter.h"
#include "tests/testing/test_bundle.h"

namespace dinghy {
namespace {

constexpr int kBehaviors = 6;

class ScorerAllocationTest : public ScorerFixture {
 protected:
  void SetUp() override {
    const v1::ScoreRequest request = MakeTestRequest({.candidates = 1, .behaviors = kBehaviors});
    for (int i = 0; i < kBehaviors; ++i) {
      v1::Event event;
      event.set_user_id(request.user_id());
      event.set_event_time_ms(request.sequences(0).event_time_ms(i));
      event.set_event_id(i);
      event.set_item_id(request.sequences(0).columns(0).ints().values(i));
      event.set_action("click");
      ASSERT_TRUE(store_->Append({&event, 1}).ok());
    }
  }

  // Of a request as the service takes it: parsed onto an arena, its history in the store, answered in bytes.
  int64_t Allocations(const LoadedModel& loaded, int candidates) {
    v1::ScoreRequest request = MakeTestRequest({.candidates = candidates, .behaviors = 0});
    request.clear_sequences();
    const std::string bytes = request.SerializeAsString();
    const Scorer scorer(store_.get(), {.now = [] { return absl::FromUnixMillis(kScorerNow); }});
    std::string answer;
    int64_t count = 0;
    for (int turn = 0; turn < 3; ++turn) {  // the first ones fill what is kept
      google::protobuf::ArenaOptions options;
      options.start_block_size = 1 << 16;  // all of the request in one block
      google::protobuf::Arena arena(options);
      const AllocationScope scope;
      auto* parsed = google::protobuf::Arena::CreateMessage<v1::ScoreRequest>(&arena);
      EXPECT_TRUE(parsed->ParseFromString(bytes));
      const auto response = scorer.Score(loaded, std::move(*parsed), state_, nullptr);
      EXPECT_TRUE(response.ok()) << response.status();
      if (!response.ok()) return -1;
      answer.clear();
      EXPECT_TRUE(response->AppendToString(&answer));
      count = scope.count();
      EXPECT_EQ(response->outputs(0).scores_size(), candidates);
      EXPECT_EQ(response->history(0).length(), kBehaviors);
    }
    return count;
  }

  const std::unique_ptr<BehaviorStore> store_ = NewMemoryStore();
};

TEST_F(ScorerAllocationTest, DoNotGrowWithTheCandidates) {
  for (const LoadedModel* loaded : {din_, sasrec_}) {
    const int64_t few = Allocations(*loaded, 5);
    EXPECT_GT(few, 0);
    for (const int candidates : {17, 64, 100}) EXPECT_EQ(Allocations(*loaded, candidates), few) << candidates;
  }
}

}  // namespace
}  // namespace dinghy
