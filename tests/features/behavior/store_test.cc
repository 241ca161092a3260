// One suite that every store has to pass.
#include "features/behavior/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <random>
#include <set>
#include <thread>

#include "features/behavior/memory_store.h"
#include "features/behavior/rocksdb_store.h"

// The thread sanitizer does not see the atomics inside a RocksDB built without it, only its copies of memory.
extern "C" const char* __tsan_default_suppressions();
extern "C" const char* __tsan_default_suppressions() { return "called_from_lib:librocksdb.so\n"; }

namespace dinghy {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kNowMs = 1700000000000;

struct Backend {
  std::string name;
  std::function<std::unique_ptr<BehaviorStore>(const std::string& folder)> make;
};

absl::Time Now() { return absl::FromUnixMillis(kNowMs); }

v1::Event MakeEvent(const std::string& user, int64_t time_ms, uint64_t id,
                    const std::string& action = "click", int64_t item = 7) {
  v1::Event event;
  event.set_user_id(user);
  event.set_event_time_ms(time_ms);
  event.set_event_id(id);
  event.set_item_id(item);
  event.set_action(action);
  event.set_ingest_time_ms(1);
  return event;
}

v1::HistoryQuery Before(int64_t before_ms, uint32_t limit = 0, std::vector<std::string> actions = {},
                        bool oldest = false) {
  v1::HistoryQuery query;
  query.set_before_ms(before_ms);
  query.set_limit(limit);
  query.set_oldest(oldest);
  for (const std::string& action : actions) query.add_actions(action);
  return query;
}

class StoreTest : public ::testing::TestWithParam<Backend> {
 protected:
  StoreTest() {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    std::string name = std::string("store_") + info->name();
    std::replace(name.begin(), name.end(), '/', '_');
    folder_ = ::testing::TempDir() + name;
    std::filesystem::remove_all(folder_);
    store_ = GetParam().make(folder_);
  }
  ~StoreTest() override {
    store_.reset();
    std::filesystem::remove_all(folder_);
  }

  AppendResult Append(const std::vector<v1::Event>& events) {
    const auto result = store_->Append(events);
    EXPECT_TRUE(result.ok()) << result.status();
    return result.value_or(AppendResult{-1, -1});
  }

  std::vector<v1::Event> Fetch(const std::string& user, const v1::HistoryQuery& query = {}) {
    const absl::Status status = store_->Fetch(user, query, fetched_);
    EXPECT_TRUE(status.ok()) << status;
    return {fetched_.begin(), fetched_.end()};
  }

  std::vector<std::pair<int64_t, uint64_t>> Keys(const std::string& user,
                                                 const v1::HistoryQuery& query = {}) {
    std::vector<std::pair<int64_t, uint64_t>> keys;
    for (const v1::Event& event : Fetch(user, query))
      keys.emplace_back(event.event_time_ms(), event.event_id());
    return keys;
  }

  EventList fetched_;  // one list for all fetches, as a worker has
  std::string folder_;
  std::unique_ptr<BehaviorStore> store_;
};

TEST_P(StoreTest, AnUnknownUserHasNoEvents) {
  EXPECT_THAT(Fetch("nobody"), IsEmpty());
  EXPECT_THAT(Fetch(""), IsEmpty());
  EXPECT_THAT(Fetch(std::string(5000, 'x')), IsEmpty());
  EXPECT_EQ(*store_->DeleteUser("nobody"), 0);
  EXPECT_EQ(*store_->DeleteUser(""), 0);
}

TEST_P(StoreTest, ReturnsWhatWasAppended) {
  v1::Event event = MakeEvent("alice", 5, 6, "purchase");
  event.set_item_key("shoe");
  v1::EventValue* value = event.add_values();
  value->set_name("price");
  value->set_number(1.5f);
  Append({event});
  const auto events = Fetch("alice");
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].SerializeAsString(), event.SerializeAsString());
}

TEST_P(StoreTest, OrdersByTimeThenIdHoweverAppended) {
  Append({MakeEvent("u", 300, 1), MakeEvent("u", 100, 256), MakeEvent("u", 100, 255)});
  Append({MakeEvent("u", 200, 0), MakeEvent("u", 100, 1)});
  EXPECT_THAT(Keys("u"), ElementsAre(std::pair(100, 1), std::pair(100, 255), std::pair(100, 256),
                                     std::pair(200, 0), std::pair(300, 1)));
}

TEST_P(StoreTest, BeforeIsStrict) {
  Append({MakeEvent("u", 100, 0), MakeEvent("u", 200, 0), MakeEvent("u", 200, 5)});
  EXPECT_THAT(Keys("u", Before(201)), ElementsAre(std::pair(100, 0), std::pair(200, 0), std::pair(200, 5)));
  EXPECT_THAT(Keys("u", Before(200)), ElementsAre(std::pair(100, 0)));
  EXPECT_THAT(Keys("u", Before(100)), IsEmpty());
  EXPECT_THAT(Keys("u", Before(0)), IsEmpty());
  EXPECT_THAT(Keys("u", Before(-1)), IsEmpty());
}

TEST_P(StoreTest, KeepsTheNewestOrTheOldestOfTheActionsAskedFor) {
  Append({MakeEvent("u", 1, 0, "click"), MakeEvent("u", 2, 0, "view"), MakeEvent("u", 3, 0, "click"),
          MakeEvent("u", 4, 0, "buy"), MakeEvent("u", 5, 0, "view")});
  EXPECT_THAT(Keys("u", Before(9, 2)), ElementsAre(std::pair(4, 0), std::pair(5, 0)));
  EXPECT_THAT(Keys("u", Before(9, 2, {}, true)), ElementsAre(std::pair(1, 0), std::pair(2, 0)));
  EXPECT_THAT(Keys("u", Before(9, 2, {"click", "buy"})), ElementsAre(std::pair(3, 0), std::pair(4, 0)));
  EXPECT_THAT(Keys("u", Before(9, 1, {"view"}, true)), ElementsAre(std::pair(2, 0)));
  EXPECT_THAT(Keys("u", Before(9, 9, {"view"})), ElementsAre(std::pair(2, 0), std::pair(5, 0)));
  EXPECT_THAT(Keys("u", Before(9, 0, {"nothing"})), IsEmpty());
}

TEST_P(StoreTest, TakesTheEndsOfTheRanges) {
  constexpr int64_t kLast = std::numeric_limits<int64_t>::max();
  constexpr uint64_t kLastId = std::numeric_limits<uint64_t>::max();
  Append({MakeEvent("u", kLast, kLastId), MakeEvent("u", 0, 0), MakeEvent("u", 0, kLastId)});
  EXPECT_THAT(Keys("u"), ElementsAre(std::pair(0, 0), std::pair(0, kLastId), std::pair(kLast, kLastId)));
  EXPECT_THAT(Keys("u", Before(kLast)), ElementsAre(std::pair(0, 0), std::pair(0, kLastId)));
}

TEST_P(StoreTest, CountsDuplicatesAndLeavesTheFirstAsItWas) {
  AppendResult result = Append({MakeEvent("u", 1, 1, "click", 10), MakeEvent("u", 1, 1, "click", 11)});
  EXPECT_EQ(result.appended, 1);
  EXPECT_EQ(result.duplicates, 1);
  result = Append({MakeEvent("u", 1, 1, "buy", 12), MakeEvent("u", 1, 2), MakeEvent("v", 1, 1)});
  EXPECT_EQ(result.appended, 2);
  EXPECT_EQ(result.duplicates, 1);
  const auto events = Fetch("u");
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].item_id(), 10);
  EXPECT_EQ(events[0].action(), "click");
  result = Append({});
  EXPECT_EQ(result.appended + result.duplicates, 0);
}

TEST_P(StoreTest, SetsTheIngestTimeWhereThereIsNone) {
  v1::Event without = MakeEvent("u", 1, 0), with = MakeEvent("u", 2, 0);
  without.clear_ingest_time_ms();
  with.set_ingest_time_ms(42);
  Append({without, with});
  const auto events = Fetch("u");
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].ingest_time_ms(), kNowMs);
  EXPECT_EQ(events[1].ingest_time_ms(), 42);
}

TEST_P(StoreTest, ABadEventKeepsTheWholeCallOut) {
  v1::Event bad = MakeEvent("bob", 77, 3);
  bad.clear_action();
  const auto result = store_->Append({MakeEvent("alice", 1, 0), bad});
  EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(result.status().message()),
              HasSubstr("event of user \"bob\" at 77 ms, id 3: action: expected a name, got an empty one"));
  EXPECT_THAT(Fetch("alice"), IsEmpty());
}

TEST_P(StoreTest, UsersWhoseIdsBeginAlikeDoNotMix) {
  const std::vector<std::string> users = {
      "a",    "ab",   std::string("a\0", 2), std::string("a\0\0", 3), std::string("\0", 1), "b",
      "\x01", "\x7f", std::string(1024, 'a')};
  for (size_t i = 0; i < users.size(); ++i) {
    Append({MakeEvent(users[i], 10 + i, i), MakeEvent(users[i], 1000 + i, i)});
  }
  for (size_t i = 0; i < users.size(); ++i) {
    EXPECT_THAT(Keys(users[i]), ElementsAre(std::pair(10 + i, i), std::pair(1000 + i, i)));
  }
  EXPECT_EQ(*store_->DeleteUser("a"), 2);
  EXPECT_THAT(Keys("a"), IsEmpty());
  for (size_t i = 1; i < users.size(); ++i) EXPECT_EQ(Keys(users[i]).size(), 2u);
  EXPECT_EQ(*store_->DeleteUser("a"), 0);
  const AppendResult again = Append({MakeEvent("a", 10, 0)});
  EXPECT_EQ(again.appended, 1);
  EXPECT_THAT(Keys("a"), ElementsAre(std::pair(10, 0)));
}

TEST_P(StoreTest, AgreesWithAListThatIsSortedAndFiltered) {
  std::mt19937 random(7);
  const auto draw = [&](int n) { return static_cast<int>(random() % n); };
  const std::vector<std::string> users = {"a", "ab", "abc"}, actions = {"click", "buy", "view"};
  std::vector<v1::Event> all;
  std::set<std::tuple<std::string, int64_t, uint64_t>> seen;
  for (int call = 0; call < 60; ++call) {
    std::vector<v1::Event> events;
    AppendResult expected;
    for (int i = draw(8); i >= 0; --i) {
      events.push_back(MakeEvent(users[draw(3)], draw(40), draw(3), actions[draw(3)], draw(1000)));
      const v1::Event& event = events.back();
      const bool is_new = seen.emplace(event.user_id(), event.event_time_ms(), event.event_id()).second;
      ++(is_new ? expected.appended : expected.duplicates);
      if (is_new) all.push_back(event);
    }
    const AppendResult result = Append(events);
    EXPECT_EQ(result.appended, expected.appended);
    EXPECT_EQ(result.duplicates, expected.duplicates);
  }
  std::sort(all.begin(), all.end(), [](const v1::Event& a, const v1::Event& b) {
    return std::pair(a.event_time_ms(), a.event_id()) < std::pair(b.event_time_ms(), b.event_id());
  });
  for (int i = 0; i < 300; ++i) {
    v1::HistoryQuery query;
    if (draw(4) > 0) query.set_before_ms(draw(45) - 2);
    for (int a = draw(3); a > 0; --a) query.add_actions(actions[draw(3)]);
    query.set_limit(draw(6));
    query.set_oldest(draw(2) == 1);
    const std::string& user = users[draw(3)];
    std::vector<std::string> expected;
    for (const v1::Event& event : all) {
      const auto& wanted = query.actions();
      if (event.user_id() == user && (!query.has_before_ms() || event.event_time_ms() < query.before_ms()) &&
          (wanted.empty() || std::count(wanted.begin(), wanted.end(), event.action()) > 0)) {
        expected.push_back(event.SerializeAsString());
      }
    }
    if (query.limit() > 0 && expected.size() > query.limit()) {
      if (query.oldest()) {
        expected.resize(query.limit());
      } else {
        expected.erase(expected.begin(), expected.end() - query.limit());
      }
    }
    std::vector<std::string> got;
    for (const v1::Event& event : Fetch(user, query)) got.push_back(event.SerializeAsString());
    EXPECT_EQ(got, expected) << user << " " << query.ShortDebugString();
  }
}

TEST_P(StoreTest, ConcurrentAppendsOfTheSameEventsCountOnce) {
  constexpr int kThreads = 4, kEvents = 60;
  std::atomic<int64_t> appended = 0, duplicates = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kEvents; ++i) {
        // Two users in both orders, so that locks by user could deadlock if they were taken in that order.
        std::vector<v1::Event> events = {MakeEvent("u" + std::to_string(i % 5), i, 0),
                                         MakeEvent("v" + std::to_string(i % 7), i, 0)};
        if (t % 2 == 1) std::swap(events[0], events[1]);
        const auto result = store_->Append(events);
        if (!result.ok()) continue;
        appended += result->appended;
        duplicates += result->duplicates;
        // An acknowledged append is seen at once.
        EventList fetched;
        const absl::Status status = store_->Fetch(events[0].user_id(), Before(i + 1, 1), fetched);
        if (!status.ok() || fetched.size() != 1 || fetched[0].event_time_ms() != i) appended += 1000000;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(appended, 2 * kEvents);
  EXPECT_EQ(duplicates, 2 * kEvents * (kThreads - 1));
}

TEST_P(StoreTest, SaysWhatItIs) { EXPECT_THAT(store_->Describe(), HasSubstr(GetParam().name)); }

INSTANTIATE_TEST_SUITE_P(
    All, StoreTest,
    ::testing::Values(Backend{"memory", [](const std::string&) { return NewMemoryStore(Now); }},
                      Backend{"rocksdb",
                              [](const std::string& folder) {
                                auto store = OpenRocksDbStore({.path = folder, .sync = false, .now = Now});
                                return store.ok() ? *std::move(store) : nullptr;
                              }}),
    [](const auto& info) { return info.param.name; });

TEST(CheckEventTest, NamesWhatIsWrong) {
  const v1::Event good = MakeEvent("alice", 1, 2);
  EXPECT_TRUE(CheckEvent(good).ok());
  const auto message = [&](const std::function<void(v1::Event&)>& change) {
    v1::Event event = good;
    change(event);
    const absl::Status status = CheckEvent(event);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(message([](auto& e) { e.clear_user_id(); }),
              HasSubstr("user_id: expected 1 to 1024 bytes, got 0"));
  EXPECT_THAT(message([](auto& e) { e.set_user_id(std::string(1025, 'x')); }), HasSubstr("got 1025"));
  EXPECT_THAT(message([](auto& e) { e.set_user_id("\xC3("); }), HasSubstr("user_id: expected UTF-8"));
  EXPECT_THAT(message([](auto& e) { e.set_user_id("\xED\xA0\x80"); }), HasSubstr("UTF-8"));  // a surrogate
  EXPECT_THAT(message([](auto& e) { e.set_user_id("\xC0\x80"); }), HasSubstr("UTF-8"));      // overlong
  EXPECT_THAT(message([](auto& e) { e.set_user_id("abc\xE2\x82"); }), HasSubstr("UTF-8"));   // cut short
  EXPECT_THAT(message([](auto& e) { e.set_event_time_ms(-5); }),
              HasSubstr("event_time_ms: expected 0 or more, got -5"));
  EXPECT_THAT(message([](auto& e) { e.clear_item(); }),
              HasSubstr("item: expected item_id or item_key, got neither"));
  EXPECT_THAT(message([](auto& e) { e.set_item_key(""); }), HasSubstr("item_key: expected a key"));
  EXPECT_THAT(message([](auto& e) { e.clear_action(); }), HasSubstr("action: expected a name"));
  EXPECT_THAT(message([](auto& e) { e.add_values()->set_integer(1); }), HasSubstr("value: expected a name"));
  EXPECT_THAT(message([](auto& e) { e.add_values()->set_name("x"); }),
              HasSubstr("value \"x\": expected integer"));
  EXPECT_THAT(message([](auto& e) {
                v1::EventValue* value = e.add_values();
                value->set_name("x");
                value->set_number(std::nanf(""));
              }),
              HasSubstr("value \"x\": expected a finite number, got nan"));
  v1::Event unicode = good;
  unicode.set_user_id("z\xC3\xBC\xE2\x82\xAC\xF0\x9F\x98\x80");
  EXPECT_TRUE(CheckEvent(unicode).ok());
}

}  // namespace
}  // namespace dinghy
