#include "features/behavior/line_reader.h"

#include <streambuf>

namespace dinghy {

LineReader::Result LineReader::Next(std::string& line) {
  line.clear();
  std::streambuf* const buffer = stream_.rdbuf();
  constexpr int kEof = std::streambuf::traits_type::eof();
  bool any = false, too_long = false;
  try {
    for (int c; (c = buffer->sbumpc()) != kEof;) {
      any = true;
      if (c == '\n') break;
      if (line.size() < max_line_bytes_) {
        line.push_back(static_cast<char>(c));
      } else if (c != '\r' || buffer->sgetc() != '\n') {
        too_long = true;
      }
    }
  } catch (const std::ios_base::failure&) {  // libstdc++ throws where reading a file fails, as of a folder
    return kFailed;
  }
  if (!any) return kEnd;
  ++number_;
  if (too_long) return kTooLong;
  if (!line.empty() && line.back() == '\r') line.pop_back();
  if (number_ == 1 && line.starts_with("\xEF\xBB\xBF")) line.erase(0, 3);
  return kLine;
}

}  // namespace dinghy
