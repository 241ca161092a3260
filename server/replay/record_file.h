// Files of records in TFRecord framing, as TensorFlow reads and writes them.
//
//   ASSIGN_OR_RETURN(auto writer, RecordWriter::Open("scores.tfrecord"));
//   RETURN_IF_ERROR(writer->Append(log.SerializeAsString()));
//   RETURN_IF_ERROR(writer->Close());
//
//   ASSIGN_OR_RETURN(auto reader, RecordReader::Open("scores.tfrecord"));
//   while (*reader->Next(record)) Use(record);
//
// A record is its length (8 bytes), the masked CRC-32C of these (4), the data, the masked CRC-32C of the data
// (4); numbers are little-endian. A write that was cut short leaves a torn tail: the last record incomplete,
// or complete in length and wrong in checksum, or zeros to the end of the file. Neither class is thread-safe.
#ifndef DINGHY_SERVER_REPLAY_RECORD_FILE_H_
#define DINGHY_SERVER_REPLAY_RECORD_FILE_H_

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace dinghy {

class RecordReader {
 public:
  // NOT_FOUND naming the file if it cannot be opened.
  static absl::StatusOr<std::unique_ptr<RecordReader>> Open(const std::string& path);

  // Reads the next record; false at the end of the file, be it clean or torn. DATA_LOSS naming file and
  // offset: a wrong checksum with more data after it. After an error every call returns it again.
  absl::StatusOr<bool> Next(std::string& record);

  // Bytes of good records read so far: where a torn tail would be cut.
  int64_t good_bytes() const { return good_bytes_; }

  // Whether the end that Next reported was a torn tail.
  bool torn() const { return torn_; }

 private:
  struct Closer {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };

  RecordReader(std::string path, std::FILE* file) : path_(std::move(path)), file_(file) {}

  // Fills `out` with `size` bytes, fewer at the end of the file. DATA_LOSS if reading fails.
  absl::Status Read(uint64_t size, std::string& out);
  bool AtEnd();
  bool OnlyZerosLeft();
  absl::Status Corrupt(const std::string& what);

  const std::string path_;
  const std::unique_ptr<std::FILE, Closer> file_;
  std::string header_;
  std::string footer_;
  int64_t good_bytes_ = 0;
  bool torn_ = false;
  bool ended_ = false;
  absl::Status status_;
};

class RecordWriter {
 public:
  // Opens `path` for appending, made where it does not exist. A torn tail of an existing file is cut back to
  // the last good record; cut_bytes() says by how much. Errors: DATA_LOSS naming the offset if the file is
  // damaged before its tail (it is left as it is), FAILED_PRECONDITION if another writer has it open,
  // UNAVAILABLE if it cannot be opened.
  static absl::StatusOr<std::unique_ptr<RecordWriter>> Open(const std::string& path);
  ~RecordWriter();  // closes; errors are lost, so call Close

  RecordWriter(const RecordWriter&) = delete;
  RecordWriter& operator=(const RecordWriter&) = delete;

  // Buffers a record. UNAVAILABLE if writing fails, as on a full disk: then the file is cut back to its last
  // complete record and this and every later call returns the error.
  absl::Status Append(std::string_view record);

  absl::Status Flush();  // hands what is buffered to the operating system
  absl::Status Sync();   // Flush, and waits until it is on the disk
  absl::Status Close();  // Flush, and closes the file; a second call does nothing

  int64_t bytes() const {
    return written_ + static_cast<int64_t>(buffer_.size());
  }  // of the file, once flushed
  int64_t cut_bytes() const { return cut_bytes_; }

 private:
  RecordWriter(std::string path, int file, int64_t bytes, int64_t cut_bytes)
      : path_(std::move(path)), file_(file), written_(bytes), cut_bytes_(cut_bytes) {}

  const std::string path_;
  int file_;            // -1 once closed
  std::string buffer_;  // whole records
  int64_t written_;
  const int64_t cut_bytes_;
  absl::Status status_;
};

}  // namespace dinghy

#endif  // DINGHY_SERVER_REPLAY_RECORD_FILE_H_
