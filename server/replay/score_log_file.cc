#include "server/replay/score_log_file.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "features/behavior/line_reader.h"

namespace dinghy {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxLineBytes = size_t{1} << 28;

using Use = std::function<absl::Status(v1::ScoreLog)>;

bool IsJsonName(const std::string& path) {
  return absl::EndsWith(path, ".jsonl") || absl::EndsWith(path, ".json");
}

bool IsLogName(const std::string& path) {
  return absl::EndsWith(path, ".jsonl") || absl::EndsWith(path, ".tfrecord") ||
         absl::EndsWith(path, ".tfrecords");
}

absl::Status ReadRecords(const std::string& path, const Use& use, ScoreLogStats& stats) {
  auto reader = RecordReader::Open(path);
  if (!reader.ok()) return reader.status();
  std::string record;
  for (;;) {
    const int64_t offset = (*reader)->good_bytes();
    const absl::StatusOr<bool> more = (*reader)->Next(record);
    if (!more.ok()) return more.status();
    if (!*more) break;
    v1::ScoreLog log;
    if (!log.ParseFromString(record)) {
      return absl::DataLossError(absl::StrCat(path, ": the record at offset ", offset,
                                              ": expected a ScoreLog, got ", record.size(),
                                              " bytes that are none"));
    }
    ++stats.records;
    if (absl::Status status = use(std::move(log)); !status.ok()) return status;
  }
  if ((*reader)->torn()) stats.torn.push_back(path);
  return absl::OkStatus();
}

absl::Status ReadJsonLines(const std::string& path, const Use& use, ScoreLogStats& stats) {
  std::ifstream file(path, std::ios::binary);
  LineReader reader(file, kMaxLineBytes);
  std::string line;
  for (;;) {
    const LineReader::Result read = reader.Next(line);
    if (read == LineReader::kEnd) return absl::OkStatus();
    if (read == LineReader::kFailed) {
      return absl::DataLossError(
          absl::StrCat(path, ":", reader.number(), ": reading failed after this line"));
    }
    if (read == LineReader::kTooLong) {
      return absl::InvalidArgumentError(absl::StrCat(path, ":", reader.number(),
                                                     ": expected a line of at most ", kMaxLineBytes,
                                                     " bytes, got a longer one"));
    }
    if (line.empty()) continue;
    v1::ScoreLog log;
    const auto parsed = google::protobuf::util::JsonStringToMessage(line, &log);
    if (!parsed.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ":", reader.number(),
                       ": expected the protobuf JSON of a ScoreLog: ", std::string(parsed.message())));
    }
    ++stats.records;
    if (absl::Status status = use(std::move(log)); !status.ok()) return status;
  }
}

absl::Status ReadFile(const std::string& path, const Use& use, ScoreLogStats& stats) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat(path, ": cannot be opened: ", std::strerror(errno)));
  char first = 0;
  file.get(first);
  file.close();
  ++stats.files;
  // A record's length may begin with the byte '{' (123), so the name goes first.
  const bool json = IsJsonName(path) || (first == '{' && !IsLogName(path));
  return json ? ReadJsonLines(path, use, stats) : ReadRecords(path, use, stats);
}

absl::StatusOr<std::vector<std::string>> FilesOf(const std::string& folder) {
  std::vector<std::string> files;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (it->is_regular_file(error) && IsLogName(it->path().string())) files.push_back(it->path().string());
  }
  if (error) return absl::NotFoundError(absl::StrCat(folder, ": cannot be read: ", error.message()));
  if (files.empty()) {
    return absl::NotFoundError(
        absl::StrCat(folder, ": expected files *.tfrecord, *.tfrecords or *.jsonl in the folder, got none"));
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

absl::Status ReadScoreLogs(const std::vector<std::string>& paths, const Use& use, ScoreLogStats& stats) {
  for (const std::string& path : paths) {
    std::vector<std::string> files = {path};
    std::error_code error;
    if (fs::is_directory(path, error)) {
      absl::StatusOr<std::vector<std::string>> found = FilesOf(path);
      if (!found.ok()) return found.status();
      files = *std::move(found);
    }
    for (const std::string& file : files) {
      if (absl::Status status = ReadFile(file, use, stats); !status.ok()) return status;
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<v1::ScoreLog>> LoadScoreLogs(const std::vector<std::string>& paths,
                                                        ScoreLogStats& stats) {
  std::vector<v1::ScoreLog> logs;
  const absl::Status status = ReadScoreLogs(
      paths,
      [&](v1::ScoreLog log) {
        logs.push_back(std::move(log));
        return absl::OkStatus();
      },
      stats);
  if (!status.ok()) return status;
  return logs;
}

absl::StatusOr<std::unique_ptr<ScoreLogWriter>> ScoreLogWriter::Create(const std::string& path) {
  std::unique_ptr<ScoreLogWriter> writer(new ScoreLogWriter(path));
  writer->json_.open(path, std::ios::binary | std::ios::trunc);
  if (!writer->json_) {
    return absl::UnavailableError(
        absl::StrCat(path, ": cannot be opened for writing: ", std::strerror(errno)));
  }
  if (!IsJsonName(path)) {
    writer->json_.close();  // now it is empty
    auto records = RecordWriter::Open(path);
    if (!records.ok()) return records.status();
    writer->records_ = *std::move(records);
  }
  return writer;
}

absl::Status ScoreLogWriter::Write(const v1::ScoreLog& log) {
  if (records_ != nullptr) return records_->Append(log.SerializeAsString());
  std::string line;
  const auto status = google::protobuf::util::MessageToJsonString(log, &line);
  if (!status.ok()) {
    return absl::InternalError(
        absl::StrCat(path_, ": a record cannot be JSON: ", std::string(status.message())));
  }
  json_ << line << '\n';
  return json_ ? absl::OkStatus() : absl::UnavailableError(absl::StrCat(path_, ": writing failed"));
}

absl::Status ScoreLogWriter::Close() {
  if (records_ != nullptr) return records_->Close();
  json_.close();
  return json_ ? absl::OkStatus() : absl::UnavailableError(absl::StrCat(path_, ": writing failed"));
}

}  // namespace dinghy
