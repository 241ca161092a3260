// The log of scored requests: what is written, sampled, rotated and dropped.
#include "server/request_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "server/replay/score_log_file.h"

namespace dinghy {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::SizeIs;

std::string FreshFolder(const std::string& name) {
  const fs::path folder = fs::path(::testing::TempDir()) / ("request_log_" + name);
  fs::remove_all(folder);
  return folder.string();
}

v1::ScoreLog Record(int number) {
  v1::ScoreLog record;
  record.mutable_request()->set_request_id(absl::StrCat("request ", number));
  record.mutable_request()->set_user_id(std::string(100, 'u'));
  return record;
}

std::vector<std::string> FilesIn(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

TEST(RequestLogTest, WritesAllRecordsInOrderAndFlushesAtTheEnd) {
  const std::string folder = FreshFolder("order");
  std::atomic<int> written = 0;
  {
    auto log = RequestLog::Create({.directory = folder,
                                   .on_written = [&] { ++written; },
                                   .now = [] { return absl::FromUnixMillis(1'700'000'000'123); }});
    ASSERT_TRUE(log.ok()) << log.status();
    for (int i = 0; i < 100; ++i) (*log)->Write(Record(i));
  }
  EXPECT_EQ(written, 100);
  EXPECT_THAT(FilesIn(folder), ::testing::ElementsAre("score-20231114T221320.123Z-0000.tfrecord"));
  ScoreLogStats stats;
  const auto read = LoadScoreLogs({folder}, stats);
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_THAT(*read, SizeIs(100));
  for (int i = 0; i < 100; ++i) EXPECT_EQ((*read)[i].SerializeAsString(), Record(i).SerializeAsString());
  EXPECT_THAT(stats.torn, SizeIs(0));
}

TEST(RequestLogTest, StartsANewFileBeyondTheLargestSize) {
  const std::string folder = FreshFolder("rotation");
  {
    auto log = *RequestLog::Create({.directory = folder,
                                    .max_file_bytes = 300,  // the third record goes beyond
                                    .now = [] { return absl::FromUnixMillis(0); }});
    for (int i = 0; i < 7; ++i) log->Write(Record(i));
  }
  EXPECT_THAT(FilesIn(folder), SizeIs(3));
  ScoreLogStats stats;
  const auto read = LoadScoreLogs({folder}, stats);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_THAT(*read, SizeIs(7));
  // Another log in the same folder at the same time does not touch these files.
  {
    auto log = *RequestLog::Create({.directory = folder, .now = [] { return absl::FromUnixMillis(0); }});
  }
  EXPECT_THAT(FilesIn(folder), SizeIs(4));
}

TEST(RequestLogTest, SamplesByAHashThatAnyServerAgreesOn) {
  auto half = *RequestLog::Create({.directory = FreshFolder("half"), .sample_rate = 0.5});
  auto other = *RequestLog::Create({.directory = FreshFolder("other"), .sample_rate = 0.5});
  auto all = *RequestLog::Create({.directory = FreshFolder("all"), .sample_rate = 1});
  auto none = *RequestLog::Create({.directory = FreshFolder("none"), .sample_rate = 0});
  int wanted = 0;
  for (int i = 0; i < 1000; ++i) {
    const v1::ScoreLog record = Record(i);
    EXPECT_EQ(half->Wants(record.request()), other->Wants(record.request()));
    EXPECT_TRUE(all->Wants(record.request()));
    EXPECT_FALSE(none->Wants(record.request()));
    wanted += half->Wants(record.request());
  }
  EXPECT_GT(wanted, 400);
  EXPECT_LT(wanted, 600);
}

TEST(RequestLogTest, DropsAndCountsWhatDoesNotFitItsQueue) {
  const std::string folder = FreshFolder("dropped");
  std::atomic<int> dropped = 0;
  {
    auto log =
        *RequestLog::Create({.directory = folder, .queue_bytes = 10, .on_dropped = [&] { ++dropped; }});
    for (int i = 0; i < 3; ++i) log->Write(Record(i));  // each larger than the queue
  }
  EXPECT_EQ(dropped, 3);
}

TEST(RequestLogTest, BadOptionsAndFoldersAreErrors) {
  EXPECT_THAT(RequestLog::Create({.directory = FreshFolder("rate"), .sample_rate = 1.5}).status().message(),
              HasSubstr("sample_rate: expected 0 to 1, got 1.5"));
  const std::string file = FreshFolder("file");
  std::ofstream(file) << "not a folder";
  const absl::Status status = RequestLog::Create({.directory = file}).status();
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(status.message(), HasSubstr(file));
}

}  // namespace
}  // namespace dinghy
