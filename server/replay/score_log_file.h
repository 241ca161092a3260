// Reads and writes score logs: TFRecord files of ScoreLog records, or lines of their protobuf JSON.
//
//   ScoreLogStats stats;
//   RETURN_IF_ERROR(ReadScoreLogs({"logs/"}, [&](v1::ScoreLog log) { ...; return absl::OkStatus(); },
//   stats));
//
// JSON is what is named .jsonl or .json, or begins with "{" under a name that says nothing. Not thread-safe.
#ifndef DINGHY_SERVER_REPLAY_SCORE_LOG_FILE_H_
#define DINGHY_SERVER_REPLAY_SCORE_LOG_FILE_H_

#include <cstdint>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/score_log.pb.h"
#include "server/replay/record_file.h"

namespace dinghy {

struct ScoreLogStats {
  int64_t files = 0;
  int64_t records = 0;
  std::vector<std::string> torn;  // files that end in an incomplete record, which was left out
};

// Calls `use` for every record of `paths`, in order. A folder stands for its files *.tfrecord, *.tfrecords
// and
// *.jsonl, by rising name. Stops at the first error that `use` returns. Errors: NOT_FOUND naming a path that
// does not exist or a folder without such files; DATA_LOSS naming file and offset, INVALID_ARGUMENT naming
// file:line of a bad record; INVALID_ARGUMENT for a file of neither form.
absl::Status ReadScoreLogs(const std::vector<std::string>& paths,
                           const std::function<absl::Status(v1::ScoreLog)>& use, ScoreLogStats& stats);

// All of them at once.
absl::StatusOr<std::vector<v1::ScoreLog>> LoadScoreLogs(const std::vector<std::string>& paths,
                                                        ScoreLogStats& stats);

// Writes a new file, over an old one: JSON lines if the name ends in .jsonl or .json, else TFRecord.
class ScoreLogWriter {
 public:
  // UNAVAILABLE naming the file if it cannot be opened.
  static absl::StatusOr<std::unique_ptr<ScoreLogWriter>> Create(const std::string& path);

  absl::Status Write(const v1::ScoreLog& log);
  absl::Status Close();  // must be called: UNAVAILABLE if not everything could be written

 private:
  explicit ScoreLogWriter(std::string path) : path_(std::move(path)) {}

  const std::string path_;
  std::ofstream json_;
  std::unique_ptr<RecordWriter> records_;  // null: JSON
};

}  // namespace dinghy

#endif  // DINGHY_SERVER_REPLAY_SCORE_LOG_FILE_H_
