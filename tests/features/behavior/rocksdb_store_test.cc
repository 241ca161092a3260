// What a store on disk owes beyond store_test.cc: it keeps, locks and notices damage.
#include "features/behavior/rocksdb_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rocksdb/db.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace dinghy {
namespace {

using ::testing::HasSubstr;

v1::Event MakeEvent(const std::string& user, int64_t time_ms) {
  v1::Event event;
  event.set_user_id(user);
  event.set_event_time_ms(time_ms);
  event.set_item_id(time_ms);
  event.set_action("click");
  return event;
}

int CountEvents(const BehaviorStore& store, const std::string& user, const v1::HistoryQuery& query) {
  EventList events;
  const absl::Status status = store.Fetch(user, query, events);
  EXPECT_TRUE(status.ok()) << status;
  return events.size();
}

// Tests with a second process are death tests of the "threadsafe" style: the process starts anew and runs the
// same test up to the statement that is to end it. (A mere fork would inherit RocksDB's thread pools without
// their threads.) It finds the folder of the first process in this variable.
constexpr char kFolderVariable[] = "DINGHY_ROCKSDB_STORE_TEST_FOLDER";

class RocksDbStoreTest : public ::testing::Test {
 protected:
  RocksDbStoreTest() {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    const char* const given = ::getenv(kFolderVariable);
    first_process_ = given == nullptr;
    if (!first_process_) {
      folder_ = given;
      return;
    }
    folder_ =
        ::testing::TempDir() + "rocksdb_" + ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(folder_);
    ::setenv(kFolderVariable, folder_.c_str(), 1);
  }
  ~RocksDbStoreTest() override {
    ::unsetenv(kFolderVariable);
    std::filesystem::remove_all(folder_);
  }

  std::unique_ptr<BehaviorStore> Open(bool sync = true) {
    auto store = OpenRocksDbStore({.path = folder_, .sync = sync});
    EXPECT_TRUE(store.ok()) << store.status();
    return store.ok() ? *std::move(store) : nullptr;
  }

  // Appends `count` events of each user, one call after the other, and ends the process at once: nothing is
  // closed.
  void AppendAndDie(const std::vector<std::string>& users, int count) {
    const auto store = OpenRocksDbStore({.path = folder_});
    bool ok = store.ok();
    for (int i = 0; ok && i < count; ++i) {
      for (const std::string& user : users) ok = ok && (*store)->Append({MakeEvent(user, i)}).ok();
    }
    ::_exit(ok ? 0 : 1);
  }

  bool first_process_ = true;
  std::string folder_;
};

TEST_F(RocksDbStoreTest, KeepsEventsAndDeletionsOverReopening) {
  {
    auto store = Open();
    ASSERT_TRUE(store->Append({MakeEvent("a", 1), MakeEvent("a", 2), MakeEvent("b", 3)}).ok());
    ASSERT_EQ(*store->DeleteUser("b"), 1);
  }
  auto store = Open(false);
  EXPECT_EQ(CountEvents(*store, "a", {}), 2);
  EXPECT_EQ(CountEvents(*store, "b", {}), 0);
  EXPECT_EQ(store->Append({MakeEvent("a", 2)})->duplicates, 1);
}

TEST_F(RocksDbStoreTest, AcknowledgedAppendsSurviveADyingProcess) {
  EXPECT_EXIT(AppendAndDie({"a", "b"}, 20), ::testing::ExitedWithCode(0), "");
  auto store = Open();
  EXPECT_EQ(CountEvents(*store, "a", {}), 20);
  EXPECT_EQ(CountEvents(*store, "b", {}), 20);
}

TEST_F(RocksDbStoreTest, SaysThatAnotherProcessHasTheFolder) {
  const auto first = first_process_ ? Open() : nullptr;
  const auto open_and_exit = [&] {
    const auto second = OpenRocksDbStore({.path = folder_});
    std::fprintf(stderr, "%s\n", second.status().ToString().c_str());
    ::_exit(second.ok() ? 1 : 0);
  };
  EXPECT_EXIT(open_and_exit(), ::testing::ExitedWithCode(0),
              "FAILED_PRECONDITION: store " + folder_ + ": the folder is locked");
  EXPECT_TRUE(first->Append({MakeEvent("a", 1)}).ok());
}

TEST_F(RocksDbStoreTest, SaysThatThisProcessHasTheFolder) {
  auto first = Open();
  const auto second = OpenRocksDbStore({.path = folder_});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition) << second.status();
  EXPECT_THAT(std::string(second.status().message()),
              HasSubstr("store " + folder_ + ": the folder is locked"));
  EXPECT_TRUE(first->Append({MakeEvent("a", 1)}).ok());
}

TEST_F(RocksDbStoreTest, MakesFoldersAndRefusesFiles) {
  const auto deep = OpenRocksDbStore({.path = folder_ + "/a/b"});
  EXPECT_TRUE(deep.ok()) << deep.status();
  std::ofstream(folder_ + "/file") << "x";
  const auto file = OpenRocksDbStore({.path = folder_ + "/file"});
  EXPECT_EQ(file.status().code(), absl::StatusCode::kFailedPrecondition) << file.status();
  EXPECT_THAT(std::string(file.status().message()), HasSubstr(folder_ + "/file"));
  EXPECT_EQ(OpenRocksDbStore({}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(RocksDbStoreTest, ADamagedRecordIsDataLossAndNamesItsKey) {
  for (const bool other_event : {false, true}) {
    std::filesystem::remove_all(folder_);
    ASSERT_TRUE(Open()->Append({MakeEvent("a", 1), MakeEvent("a", 2), MakeEvent("b", 1)}).ok());
    {
      rocksdb::DB* raw = nullptr;
      ASSERT_TRUE(rocksdb::DB::Open(rocksdb::Options(), folder_, &raw).ok());
      const std::unique_ptr<rocksdb::DB> db(raw);
      const std::string key = std::string(
                                  "\x01\x00\x01"
                                  "a",
                                  4) +
                              std::string("\0\0\0\0\0\0\0\x02", 8) + std::string(8, '\0');
      std::string value;
      ASSERT_TRUE(db->Get(rocksdb::ReadOptions(), key, &value).ok());
      value = other_event ? MakeEvent("c", 2).SerializeAsString() : value.substr(0, value.size() - 1);
      ASSERT_TRUE(db->Put(rocksdb::WriteOptions(), key, value).ok());
    }
    auto store = Open();
    EventList events;
    const absl::Status status = store->Fetch("a", {}, events);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(status.message()), HasSubstr("0100016100000000000000020000000000000000"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("user \"a\""));
    EXPECT_EQ(CountEvents(*store, "b", {}), 1);
    v1::HistoryQuery before;  // what is not read is not missed
    before.set_before_ms(2);
    EXPECT_EQ(CountEvents(*store, "a", before), 1);
  }
}

TEST_F(RocksDbStoreTest, DamageInsideTheWriteAheadLogIsSeen) {
  EXPECT_EXIT(AppendAndDie({"somebody with a name"}, 200), ::testing::ExitedWithCode(0), "");
  std::string log;
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
    if (entry.path().extension() == ".log") log = entry.path().string();
  }
  ASSERT_FALSE(log.empty());
  {
    std::fstream file(log, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(std::filesystem::file_size(log) / 2));
    file << "\xFF\x00\xFF";
  }
  const auto store = OpenRocksDbStore({.path = folder_});
  EXPECT_EQ(store.status().code(), absl::StatusCode::kDataLoss) << store.status();
  EXPECT_THAT(std::string(store.status().message()), HasSubstr(folder_));
}

TEST_F(RocksDbStoreTest, LimitsTheEnginesOwnLogs) {
  for (int i = 0; i < 6; ++i) Open();
  int logs = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
    logs += entry.path().filename().string().starts_with("LOG");
  }
  EXPECT_LE(logs, 3);
}

TEST_F(RocksDbStoreTest, DescribesPlaceAndDurability) {
  EXPECT_THAT(Open(true)->Describe(), HasSubstr(folder_ + ", write-ahead log synced on every append"));
  EXPECT_THAT(Open(false)->Describe(), HasSubstr("not synced"));
}

}  // namespace
}  // namespace dinghy
