#include "server/request_log.h"

#include <farmhash.h>

#include <cmath>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/diagnostics.h"

namespace dinghy {

namespace fs = std::filesystem;

absl::StatusOr<std::unique_ptr<RequestLog>> RequestLog::Create(Options options) {
  if (!(options.sample_rate >= 0 && options.sample_rate <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("score_log.sample_rate: expected 0 to 1, got ", options.sample_rate));
  }
  if (options.max_file_bytes <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("score_log.max_file_bytes: expected above 0, got ", options.max_file_bytes));
  }
  std::error_code error;
  fs::create_directories(options.directory, error);
  if (error) {
    return absl::UnavailableError(
        absl::StrCat("score log folder \"", options.directory, "\": ", error.message()));
  }
  std::unique_ptr<RequestLog> log(new RequestLog(std::move(options)));
  if (absl::Status status = log->OpenNextFile(); !status.ok()) return status;
  log->thread_ = std::thread([raw = log.get()] { raw->RunWriter(); });
  return log;
}

RequestLog::~RequestLog() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

bool RequestLog::Wants(const v1::ScoreRequest& request) const {
  if (options_.sample_rate >= 1) return true;
  const std::string key = absl::StrCat(request.request_id(), std::string(1, '\0'), request.user_id());
  const uint64_t hash = util::Fingerprint64(key.data(), key.size());
  return std::ldexp(static_cast<double>(hash >> 11), -53) < options_.sample_rate;
}

void RequestLog::Write(v1::ScoreLog record) {
  const auto bytes = static_cast<int64_t>(record.ByteSizeLong());
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (waiting_bytes_ + bytes <= options_.queue_bytes) {
      waiting_bytes_ += bytes;
      queue_.push_back({std::move(record), bytes});
      changed_.notify_one();
      return;
    }
  }
  options_.on_dropped();
}

void RequestLog::RunWriter() {
  while (true) {
    std::deque<Waiting> taken;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
      if (queue_.empty()) break;
      taken.swap(queue_);
    }
    int64_t bytes = 0;
    for (const Waiting& waiting : taken) {
      bytes += waiting.bytes;
      if (Append(waiting.record)) {
        options_.on_written();
      } else {
        options_.on_dropped();
      }
    }
    // What was handed over survives a crash of the process from here on.
    if (file_ != nullptr && !file_->Flush().ok()) file_.reset();
    std::lock_guard<std::mutex> lock(mutex_);
    waiting_bytes_ -= bytes;
  }
  if (file_ == nullptr) return;
  if (absl::Status status = file_->Close(); !status.ok()) {
    LogError("the score log could not be closed", {{"error", std::string(status.message())}});
  }
}

absl::Status RequestLog::OpenNextFile() {
  file_.reset();
  std::error_code error;
  fs::path path;
  do {
    path = fs::path(options_.directory) /
           absl::StrFormat("score-%s-%04d.tfrecord",
                           absl::FormatTime("%Y%m%dT%H%M%E3SZ", options_.now(), absl::UTCTimeZone()),
                           files_opened_++);
  } while (fs::exists(path, error));
  absl::StatusOr<std::unique_ptr<RecordWriter>> opened = RecordWriter::Open(path.string());
  if (!opened.ok()) return opened.status();
  file_ = *std::move(opened);
  return absl::OkStatus();
}

bool RequestLog::Append(const v1::ScoreLog& record) {
  absl::Status status;
  if (file_ == nullptr || file_->bytes() >= options_.max_file_bytes) status = OpenNextFile();
  if (status.ok()) status = file_->Append(record.SerializeAsString());
  if (status.ok()) {
    failing_ = false;
    return true;
  }
  file_.reset();  // the next record tries a new file
  if (!failing_) LogError("the score log cannot be written", {{"error", std::string(status.message())}});
  failing_ = true;
  return false;
}

}  // namespace dinghy
