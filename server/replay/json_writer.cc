#include "server/replay/json_writer.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace dinghy {
namespace {

std::string Quote(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      quoted += {'\\', c};
    } else if (static_cast<unsigned char>(c) < 0x20) {
      quoted += absl::StrFormat("\\u%04x", static_cast<unsigned>(c));
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

}  // namespace

JsonWriter& JsonWriter::Field(const std::string& name, const std::string& value) {
  return Put(name, Quote(value));
}

JsonWriter& JsonWriter::Field(const std::string& name, bool value) {
  return Put(name, value ? "true" : "false");
}

JsonWriter& JsonWriter::Field(const std::string& name, int64_t value) {
  return Put(name, absl::StrCat(value));
}

JsonWriter& JsonWriter::Field(const std::string& name, double value) {
  return Put(name, std::isfinite(value) ? absl::StrFormat("%.12g", value) : "null");
}

JsonWriter& JsonWriter::Field(const std::string& name, std::optional<double> value) {
  return value.has_value() ? Field(name, *value) : Put(name, "null");
}

JsonWriter& JsonWriter::Begin(const std::string& name, char bracket) {
  Start(name);
  text_ += bracket;
  ++depth_;
  first_ = true;
  return *this;
}

JsonWriter& JsonWriter::End(char bracket) {
  --depth_;
  if (!first_) text_ += "\n" + std::string(2 * depth_, ' ');
  text_ += bracket;
  first_ = false;
  return *this;
}

JsonWriter& JsonWriter::Put(const std::string& name, const std::string& json) {
  Start(name);
  text_ += json;
  return *this;
}

void JsonWriter::Start(const std::string& name) {
  if (!first_) text_ += ",";
  if (depth_ > 0) text_ += "\n" + std::string(2 * depth_, ' ');
  if (!name.empty()) text_ += Quote(name) + ": ";
  first_ = false;
}

}  // namespace dinghy
