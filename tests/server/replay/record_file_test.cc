#include "server/replay/record_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <cstdio>
#include <fstream>
#include <sstream>
#include <vector>

namespace dinghy {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct Contents {
  std::vector<std::string> records;
  absl::Status status;
  bool torn = false;
  int64_t good_bytes = 0;
};

class RecordFileTest : public ::testing::Test {
 protected:
  RecordFileTest()
      : path_(::testing::TempDir() + "record_" +
              ::testing::UnitTest::GetInstance()->current_test_info()->name()) {
    std::remove(path_.c_str());
  }
  ~RecordFileTest() override { std::remove(path_.c_str()); }

  void Write(const std::vector<std::string>& records) {
    auto writer = RecordWriter::Open(path_);
    ASSERT_TRUE(writer.ok()) << writer.status();
    for (const std::string& record : records) ASSERT_TRUE((*writer)->Append(record).ok());
    ASSERT_TRUE((*writer)->Close().ok());
  }

  std::string Bytes() const {
    std::ostringstream bytes;
    bytes << std::ifstream(path_, std::ios::binary).rdbuf();
    return bytes.str();
  }

  void SetBytes(const std::string& bytes) { std::ofstream(path_, std::ios::binary) << bytes; }

  Contents Read() const {
    Contents contents;
    auto reader = RecordReader::Open(path_);
    if (!reader.ok()) return {{}, reader.status()};
    std::string record;
    for (;;) {
      const auto more = (*reader)->Next(record);
      contents.status = more.status();
      if (!more.ok() || !*more) break;
      contents.records.push_back(record);
    }
    const auto again = (*reader)->Next(record);
    EXPECT_EQ(again.status(), contents.status);
    contents.torn = (*reader)->torn();
    contents.good_bytes = (*reader)->good_bytes();
    return contents;
  }

  const std::string path_;
};

TEST_F(RecordFileTest, WritesTheBytesThatTensorFlowWrites) {
  Write({"abc"});
  // tf.io.TFRecordWriter of b"abc".
  const std::string bytes = Bytes();
  ASSERT_EQ(bytes.size(), 19u);
  EXPECT_EQ(bytes.substr(0, 8), std::string("\x03\0\0\0\0\0\0\0", 8));
  EXPECT_EQ(bytes.substr(12, 3), "abc");
  const auto stored = [&](size_t at) {
    uint32_t value = 0;
    for (int i = 3; i >= 0; --i) value = value << 8 | static_cast<unsigned char>(bytes[at + i]);
    return value;
  };
  // CRC-32C of "abc" is 0x364B3FB7.
  EXPECT_EQ(stored(15), ((0x364B3FB7u >> 15) | (0x364B3FB7u << 17)) + 0xA282EAD8u);
}

TEST_F(RecordFileTest, ReadsWhatWasWritten) {
  std::vector<std::string> records = {"", "a", std::string("\0\0", 2), std::string(200000, 'x'), "end"};
  Write(records);
  Contents contents = Read();
  EXPECT_TRUE(contents.status.ok());
  EXPECT_FALSE(contents.torn);
  EXPECT_THAT(contents.records, ElementsAreArray(records));
  EXPECT_EQ(contents.good_bytes, static_cast<int64_t>(Bytes().size()));
  Write({"more"});
  records.push_back("more");
  EXPECT_THAT(Read().records, ElementsAreArray(records));
}

TEST_F(RecordFileTest, AnEmptyFileHasNoRecords) {
  Write({});
  EXPECT_THAT(Read().records, IsEmpty());
  EXPECT_FALSE(Read().torn);
}

TEST_F(RecordFileTest, ATailTornAtAnyByteIsReportedAndCut) {
  Write({"first", "second"});
  const size_t good = Bytes().size();
  Write({"the third record"});
  const std::string whole = Bytes();
  for (size_t size = good + 1; size < whole.size(); ++size) {
    SetBytes(whole.substr(0, size));
    const Contents contents = Read();
    EXPECT_TRUE(contents.status.ok()) << contents.status;
    EXPECT_TRUE(contents.torn) << size;
    EXPECT_THAT(contents.records, ElementsAre("first", "second"));
    EXPECT_EQ(contents.good_bytes, static_cast<int64_t>(good));
    {
      auto writer = RecordWriter::Open(path_);
      ASSERT_TRUE(writer.ok()) << writer.status();
      EXPECT_EQ((*writer)->cut_bytes(), static_cast<int64_t>(size - good));
      ASSERT_TRUE((*writer)->Append("new").ok());
    }
    EXPECT_THAT(Read().records, ElementsAre("first", "second", "new"));
    EXPECT_FALSE(Read().torn);
  }
}

TEST_F(RecordFileTest, ATailOfUnwrittenBlocksIsTorn) {
  Write({"first", "second"});
  const std::string whole = Bytes();
  for (const size_t zeros : {1, 11, 12, 13, 16, 5000}) {
    SetBytes(whole + std::string(zeros, '\0'));
    EXPECT_TRUE(Read().torn) << zeros;
    EXPECT_THAT(Read().records, ElementsAre("first", "second"));
  }
  // The length arrived, the end of the data did not.
  std::string cut = whole;
  std::fill(cut.end() - 7, cut.end(), '\0');
  SetBytes(cut);
  EXPECT_TRUE(Read().torn);
  EXPECT_THAT(Read().records, ElementsAre("first"));
}

TEST_F(RecordFileTest, DamageBeforeTheLastRecordIsDataLossAtItsOffset) {
  Write({"first", "second", "third"});
  const std::string whole = Bytes();
  const size_t second = 16 + 5, third = second + 16 + 6;
  for (size_t at = second; at < third; ++at) {
    std::string damaged = whole;
    damaged[at] ^= 0x10;
    SetBytes(damaged);
    const Contents contents = Read();
    EXPECT_EQ(contents.status.code(), absl::StatusCode::kDataLoss) << at;
    EXPECT_THAT(std::string(contents.status.message()), HasSubstr(path_ + ": the record at offset 21: "));
    EXPECT_THAT(contents.records, ElementsAre("first"));
    // Opening it for appending leaves it alone: nothing good may be cut away.
    EXPECT_EQ(RecordWriter::Open(path_).status().code(), absl::StatusCode::kDataLoss);
    EXPECT_EQ(Bytes(), damaged);
  }
}

TEST_F(RecordFileTest, AMonstrousLengthCostsNoMemory) {
  // A header with a true checksum whose record ends far beyond the file is a torn tail.
  Write({std::string(100000, 'x')});
  SetBytes(Bytes().substr(0, 12) + "short");
  EXPECT_TRUE(Read().torn);
  EXPECT_THAT(Read().records, IsEmpty());
}

TEST_F(RecordFileTest, HasOneWriterAtATime) {
  auto first = RecordWriter::Open(path_);
  ASSERT_TRUE(first.ok());
  const auto second = RecordWriter::Open(path_);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(path_ + ": another writer"));
  ASSERT_TRUE((*first)->Close().ok());
  EXPECT_TRUE(RecordWriter::Open(path_).ok());
}

TEST_F(RecordFileTest, FlushMakesRecordsVisible) {
  auto writer = RecordWriter::Open(path_);
  ASSERT_TRUE(writer.ok());
  ASSERT_TRUE((*writer)->Append("a").ok());
  EXPECT_THAT(Read().records, IsEmpty());
  EXPECT_EQ((*writer)->bytes(), 17);
  ASSERT_TRUE((*writer)->Flush().ok());
  EXPECT_THAT(Read().records, ElementsAre("a"));
  ASSERT_TRUE((*writer)->Append("b").ok());
  ASSERT_TRUE((*writer)->Sync().ok());
  EXPECT_THAT(Read().records, ElementsAre("a", "b"));
  ASSERT_TRUE((*writer)->Close().ok());
  EXPECT_TRUE((*writer)->Close().ok());
  EXPECT_EQ((*writer)->Append("c").code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(RecordFileTest, AFullDiskLeavesWholeRecordsOnly) {
  auto writer = RecordWriter::Open(path_);
  ASSERT_TRUE(writer.ok());
  ASSERT_TRUE((*writer)->Append("first").ok());
  ASSERT_TRUE((*writer)->Flush().ok());
  // A limit on file size stands for the full disk.
  rlimit before;
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  rlimit small = before;
  small.rlim_cur = 100;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  ASSERT_TRUE((*writer)->Append(std::string(200, 'x')).ok());
  const absl::Status status = (*writer)->Flush();
  ::setrlimit(RLIMIT_FSIZE, &before);
  ::signal(SIGXFSZ, handler);

  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr(path_ + ": writing failed at offset 21"));
  EXPECT_EQ((*writer)->Append("later"), status);
  EXPECT_THAT(Read().records, ElementsAre("first"));
  EXPECT_FALSE(Read().torn);
}

TEST_F(RecordFileTest, NamesAFileThatCannotBeOpened) {
  EXPECT_EQ(RecordReader::Open(path_).status().code(), absl::StatusCode::kNotFound);
  const auto writer = RecordWriter::Open(path_ + "/none/file");
  EXPECT_EQ(writer.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(writer.status().message()), HasSubstr(path_ + "/none/file"));
}

}  // namespace
}  // namespace dinghy
