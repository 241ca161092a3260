#include "server/replay/score_log_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>

namespace dinghy {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ScoreLogFileTest : public ::testing::Test {
 protected:
  ScoreLogFileTest() {
    folder_ = ::testing::TempDir() + "logs_" +
              ::testing::UnitTest::GetInstance()->current_test_info()->name() + "/";
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  ~ScoreLogFileTest() override { std::filesystem::remove_all(folder_); }

  static v1::ScoreLog MakeLog(const std::string& id) {
    v1::ScoreLog log;
    log.mutable_request()->set_request_id(id);
    v1::OutputScores* scores = log.add_outputs();
    scores->set_output("click");
    scores->add_scores(0.1f);
    scores->add_scores(std::nextafter(0.3f, 1.0f));
    v1::Labels* labels = log.add_labels();
    labels->add_values(1);
    labels->add_values(std::numeric_limits<float>::quiet_NaN());
    return log;
  }

  void Write(const std::string& name, const std::vector<std::string>& ids) {
    auto writer = ScoreLogWriter::Create(folder_ + name);
    ASSERT_TRUE(writer.ok()) << writer.status();
    for (const std::string& id : ids) ASSERT_TRUE((*writer)->Write(MakeLog(id)).ok());
    ASSERT_TRUE((*writer)->Close().ok());
  }

  absl::StatusOr<std::vector<std::string>> Ids(const std::vector<std::string>& paths) {
    stats_ = {};
    const auto logs = LoadScoreLogs(paths, stats_);
    if (!logs.ok()) return logs.status();
    std::vector<std::string> ids;
    for (const v1::ScoreLog& log : *logs) ids.push_back(log.request().request_id());
    return ids;
  }

  std::string folder_;
  ScoreLogStats stats_;
};

TEST_F(ScoreLogFileTest, BothFormsKeepEveryBit) {
  for (const std::string name : {"x.tfrecord", "x.jsonl"}) {
    Write(name, {"1", "2"});
    const auto logs = LoadScoreLogs({folder_ + name}, stats_);
    ASSERT_TRUE(logs.ok()) << logs.status();
    ASSERT_EQ(logs->size(), 2u);
    EXPECT_EQ((*logs)[1].SerializeAsString(), MakeLog("2").SerializeAsString()) << name;
  }
}

TEST_F(ScoreLogFileTest, AFolderIsItsLogsByName) {
  Write("b.jsonl", {"3"});
  Write("a.tfrecord", {"1", "2"});
  Write("c.tfrecord", {"4"});
  std::ofstream(folder_ + "notes.txt") << "not a log";
  EXPECT_THAT(*Ids({folder_}), ElementsAre("1", "2", "3", "4"));
  EXPECT_EQ(stats_.files, 3);
  EXPECT_EQ(stats_.records, 4);
  EXPECT_THAT(*Ids({folder_ + "c.tfrecord", folder_ + "a.tfrecord"}), ElementsAre("4", "1", "2"));
}

TEST_F(ScoreLogFileTest, TellsTheFormWhereTheNameDoesNot) {
  Write("a.tfrecord", {"1"});
  std::filesystem::rename(folder_ + "a.tfrecord", folder_ + "records");
  Write("b.jsonl", {"2"});
  std::filesystem::rename(folder_ + "b.jsonl", folder_ + "lines");
  EXPECT_THAT(*Ids({folder_ + "records", folder_ + "lines"}), ElementsAre("1", "2"));
}

TEST_F(ScoreLogFileTest, ARecordWhoseLengthBeginsWithABraceIsNotJson) {
  // 123 bytes: '{'.
  std::string id = "x";
  while (MakeLog(id).ByteSizeLong() < 123) id.push_back('x');
  ASSERT_EQ(MakeLog(id).ByteSizeLong(), 123u);
  Write("a.tfrecord", {id});
  EXPECT_THAT(*Ids({folder_ + "a.tfrecord"}), ElementsAre(id));
}

TEST_F(ScoreLogFileTest, ReportsTornTails) {
  Write("a.tfrecord", {"1", "2"});
  std::filesystem::resize_file(folder_ + "a.tfrecord",
                               std::filesystem::file_size(folder_ + "a.tfrecord") - 3);
  EXPECT_THAT(*Ids({folder_}), ElementsAre("1"));
  EXPECT_THAT(stats_.torn, ElementsAre(folder_ + "a.tfrecord"));
}

TEST_F(ScoreLogFileTest, WritingReplacesAnOldFile) {
  Write("a.tfrecord", {"1", "2"});
  Write("a.tfrecord", {"3"});
  EXPECT_THAT(*Ids({folder_}), ElementsAre("3"));
}

TEST_F(ScoreLogFileTest, NamesWhatIsWrong) {
  const auto error = [&](const std::string& path) { return Ids({path}).status(); };
  EXPECT_EQ(error(folder_ + "none").code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(error(folder_).code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(error(folder_).message()), HasSubstr("expected files *.tfrecord"));
  std::ofstream(folder_ + "a.jsonl") << "{}\n\n{\"request\":{\"userId\":5}\n";
  EXPECT_EQ(error(folder_ + "a.jsonl").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(error(folder_ + "a.jsonl").message()),
              HasSubstr("a.jsonl:3: expected the protobuf JSON"));
  std::ofstream(folder_ + "b") << "neither of the two, but long enough for a header";
  EXPECT_EQ(error(folder_ + "b").code(), absl::StatusCode::kDataLoss);
  {
    auto writer = RecordWriter::Open(folder_ + "c.tfrecord");
    ASSERT_TRUE((*writer)->Append("\xFF\xFF").ok());
  }
  EXPECT_EQ(error(folder_ + "c.tfrecord").code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(error(folder_ + "c.tfrecord").message()),
              HasSubstr("offset 0: expected a ScoreLog"));
}

TEST_F(ScoreLogFileTest, StopsWhereTheUserOfTheLogsFails) {
  Write("a.tfrecord", {"1", "2", "3"});
  int calls = 0;
  const absl::Status status = ReadScoreLogs(
      {folder_},
      [&](const v1::ScoreLog&) { return ++calls == 2 ? absl::CancelledError("enough") : absl::OkStatus(); },
      stats_);
  EXPECT_EQ(status, absl::CancelledError("enough"));
  EXPECT_EQ(calls, 2);
}

}  // namespace
}  // namespace dinghy
