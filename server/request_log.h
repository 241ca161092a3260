// The log of scored requests: TFRecord files of ScoreLog records, written by a thread of its own.
//
//   ASSIGN_OR_RETURN(auto log, RequestLog::Create({.directory = "logs"}));
//   if (log->Wants(request)) log->Write(std::move(record));   // never blocks
//
// Files are named score-<time of start, UTC>-<number>.tfrecord. Thread-safe.
#ifndef DINGHY_SERVER_REQUEST_LOG_H_
#define DINGHY_SERVER_REQUEST_LOG_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "proto/score_log.pb.h"
#include "proto/scoring.pb.h"
#include "server/replay/record_file.h"

namespace dinghy {

class RequestLog {
 public:
  struct Options {
    std::string directory;   // made where it does not exist
    double sample_rate = 1;  // 0 to 1
    int64_t max_file_bytes = int64_t{256} << 20;
    int64_t queue_bytes = int64_t{64} << 20;   // records that wait beyond this are dropped
    std::function<void()> on_written = [] {};  // called once per record, from any thread
    std::function<void()> on_dropped = [] {};
    std::function<absl::Time()> now = [] { return absl::Now(); };
  };

  // Opens the first file. Errors: INVALID_ARGUMENT naming the option, UNAVAILABLE naming the folder or file.
  static absl::StatusOr<std::unique_ptr<RequestLog>> Create(Options options);
  // Writes what waits, and closes the file.
  ~RequestLog();
  RequestLog(const RequestLog&) = delete;
  RequestLog& operator=(const RequestLog&) = delete;

  // Whether the request belongs to the sample: decided by a hash of request id and user, so that any server
  // takes the same ones.
  bool Wants(const v1::ScoreRequest& request) const;

  // Hands over a record. Where too much waits already it is dropped.
  void Write(v1::ScoreLog record);

 private:
  struct Waiting {
    v1::ScoreLog record;
    int64_t bytes;
  };

  explicit RequestLog(Options options) : options_(std::move(options)) {}
  void RunWriter();
  absl::Status OpenNextFile();
  // Writes one record; false if it is lost.
  bool Append(const v1::ScoreLog& record);

  const Options options_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Waiting> queue_ ABSL_GUARDED_BY(mutex_);
  int64_t waiting_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;

  // The thread's own, once it runs.
  std::unique_ptr<RecordWriter> file_;
  int files_opened_ = 0;
  bool failing_ = false;
};

}  // namespace dinghy

#endif  // DINGHY_SERVER_REQUEST_LOG_H_
