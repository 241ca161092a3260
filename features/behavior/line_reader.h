// Reads a stream line by line in bounded memory.
//
//   LineReader reader(stream, 1 << 20);
//   std::string line;
//   while (reader.Next(line) == LineReader::kLine) Use(reader.number(), line);
//
// Lines end in LF or CRLF, the last one may end with the stream; a byte order mark at the start is dropped.
// Not thread-safe.
#ifndef DINGHY_FEATURES_BEHAVIOR_LINE_READER_H_
#define DINGHY_FEATURES_BEHAVIOR_LINE_READER_H_

#include <cstddef>
#include <cstdint>
#include <istream>
#include <string>

namespace dinghy {

class LineReader {
 public:
  enum Result {
    kLine,
    kTooLong,  // the line was skipped whole; its beginning is in `line`
    kEnd,
    kFailed,  // the stream could not be read
  };

  // `stream` must outlive the reader.
  LineReader(std::istream& stream, size_t max_line_bytes)
      : stream_(stream), max_line_bytes_(max_line_bytes) {}

  Result Next(std::string& line);

  // Of the line read last, from 1.
  int64_t number() const { return number_; }

 private:
  std::istream& stream_;
  const size_t max_line_bytes_;
  int64_t number_ = 0;
};

}  // namespace dinghy

#endif  // DINGHY_FEATURES_BEHAVIOR_LINE_READER_H_
