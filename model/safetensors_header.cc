#include "model/safetensors_header.h"

#include <limits>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace dinghy {
namespace {

void AppendUtf8(uint32_t code, std::string& out) {
  if (code < 0x80) {
    out.push_back(static_cast<char>(code));
  } else if (code < 0x800) {
    out.push_back(static_cast<char>(0xC0 | code >> 6));
    out.push_back(static_cast<char>(0x80 | (code & 0x3F)));
  } else if (code < 0x10000) {
    out.push_back(static_cast<char>(0xE0 | code >> 12));
    out.push_back(static_cast<char>(0x80 | (code >> 6 & 0x3F)));
    out.push_back(static_cast<char>(0x80 | (code & 0x3F)));
  } else {
    out.push_back(static_cast<char>(0xF0 | code >> 18));
    out.push_back(static_cast<char>(0x80 | (code >> 12 & 0x3F)));
    out.push_back(static_cast<char>(0x80 | (code >> 6 & 0x3F)));
    out.push_back(static_cast<char>(0x80 | (code & 0x3F)));
  }
}

class HeaderParser {
 public:
  explicit HeaderParser(absl::string_view json) : json_(json) {}

  absl::StatusOr<std::vector<TensorEntry>> Parse() {
    std::vector<TensorEntry> entries;
    std::set<std::string, std::less<>> names;
    absl::Status status = Object([&](std::string name) {
      if (!names.insert(name).second) {
        return absl::DataLossError(absl::StrCat("tensor \"", absl::CEscape(name), "\" is listed twice"));
      }
      if (name == "__metadata__") return Metadata();
      TensorEntry& entry = entries.emplace_back();
      entry.name = std::move(name);
      return Entry(entry);
    });
    if (!status.ok()) return status;
    SkipSpace();
    if (at_ != json_.size()) return Expected("the end of the header");
    return entries;
  }

 private:
  // An object; `value(key)` parses each value.
  template <typename Value>
  absl::Status Object(Value value) {
    return List('{', '}', [&]() -> absl::Status {
      std::string key;
      absl::Status status = String(key);
      if (!status.ok()) return status;
      if (!Take(':')) return Expected("':'");
      return value(std::move(key));
    });
  }

  // `open` item, item, ... `close`; `item()` parses each.
  template <typename Item>
  absl::Status List(char open, char close, Item item) {
    if (!Take(open)) return Expected(absl::StrCat("'", std::string(1, open), "'"));
    if (Take(close)) return absl::OkStatus();
    do {
      absl::Status status = item();
      if (!status.ok()) return status;
    } while (Take(','));
    if (!Take(close)) return Expected(absl::StrCat("',' or '", std::string(1, close), "'"));
    return absl::OkStatus();
  }

  absl::Status Metadata() {
    std::set<std::string> keys;
    return Object([&](std::string key) {
      if (!keys.insert(key).second) {
        return absl::DataLossError(
            absl::StrCat("__metadata__: \"", absl::CEscape(key), "\" is listed twice"));
      }
      std::string value;
      return String(value);
    });
  }

  absl::Status Entry(TensorEntry& entry) {
    const std::string label = absl::StrCat("tensor \"", absl::CEscape(entry.name), "\": ");
    std::set<std::string, std::less<>> keys;
    std::vector<int64_t> offsets;
    absl::Status status = Object([&](std::string key) {
      if (!keys.insert(key).second) {
        return absl::DataLossError(absl::StrCat(label, "\"", absl::CEscape(key), "\" is given twice"));
      }
      if (key == "dtype") return String(entry.dtype);
      if (key == "shape") return Integers(entry.shape);
      if (key == "data_offsets") return Integers(offsets);
      return absl::DataLossError(absl::StrCat(label, "unknown field \"", absl::CEscape(key), "\""));
    });
    if (!status.ok()) return status;
    for (const char* key : {"dtype", "shape", "data_offsets"}) {
      if (!keys.contains(key)) return absl::DataLossError(absl::StrCat(label, "\"", key, "\" is missing"));
    }
    if (offsets.size() != 2) {
      return absl::DataLossError(
          absl::StrCat(label, "expected 2 numbers in data_offsets, got ", offsets.size()));
    }
    entry.begin = offsets[0];
    entry.end = offsets[1];
    return absl::OkStatus();
  }

  absl::Status Integers(std::vector<int64_t>& out) {
    return List('[', ']', [&] {
      int64_t value = 0;
      absl::Status status = Integer(value);
      out.push_back(value);
      return status;
    });
  }

  absl::Status Integer(int64_t& out) {
    SkipSpace();
    const size_t start = at_;
    constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
    while (at_ < json_.size() && json_[at_] >= '0' && json_[at_] <= '9') {
      const int digit = json_[at_] - '0';
      if (out > (kMax - digit) / 10) {
        at_ = start;
        return Expected("an integer below 2^63");
      }
      out = out * 10 + digit;
      ++at_;
    }
    if (at_ == start || (json_[start] == '0' && at_ > start + 1)) {
      at_ = start;
      return Expected("an integer that is not negative");
    }
    return absl::OkStatus();
  }

  absl::Status String(std::string& out) {
    if (!Take('"')) return Expected("a string");
    while (true) {
      if (at_ == json_.size() || static_cast<unsigned char>(json_[at_]) < 0x20) return Expected("'\"'");
      const char c = json_[at_++];
      if (c == '"') return absl::OkStatus();
      if (c != '\\') {
        out.push_back(c);
        continue;
      }
      absl::Status status = Escape(out);
      if (!status.ok()) return status;
    }
  }

  // What follows a backslash.
  absl::Status Escape(std::string& out) {
    if (at_ == json_.size()) return Expected("an escape");
    switch (json_[at_]) {
      case '"':
      case '\\':
      case '/':
        out.push_back(json_[at_]);
        break;
      case 'b':
        out.push_back('\b');
        break;
      case 'f':
        out.push_back('\f');
        break;
      case 'n':
        out.push_back('\n');
        break;
      case 'r':
        out.push_back('\r');
        break;
      case 't':
        out.push_back('\t');
        break;
      case 'u': {
        uint32_t code = 0;
        if (!Hex4(code)) return Expected("four hex digits");
        if (code >= 0xD800 && code < 0xE000) {
          uint32_t low = 0;
          if (code >= 0xDC00 || json_.substr(at_, 2) != "\\u") return Expected("a surrogate pair");
          ++at_;
          if (!Hex4(low) || low < 0xDC00 || low > 0xDFFF) return Expected("a low surrogate");
          code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
        }
        AppendUtf8(code, out);
        return absl::OkStatus();
      }
      default:
        return Expected("an escape");
    }
    ++at_;
    return absl::OkStatus();
  }

  // At a 'u': takes it and the four digits.
  bool Hex4(uint32_t& code) {
    if (json_.size() - at_ < 5) return false;
    for (int i = 1; i <= 4; ++i) {
      const char c = json_[at_ + i];
      uint32_t digit = 0;
      if (c >= '0' && c <= '9') {
        digit = c - '0';
      } else if (c >= 'a' && c <= 'f') {
        digit = c - 'a' + 10;
      } else if (c >= 'A' && c <= 'F') {
        digit = c - 'A' + 10;
      } else {
        return false;
      }
      code = code * 16 + digit;
    }
    at_ += 5;
    return true;
  }

  void SkipSpace() {
    while (at_ < json_.size() &&
           (json_[at_] == ' ' || json_[at_] == '\t' || json_[at_] == '\n' || json_[at_] == '\r')) {
      ++at_;
    }
  }

  bool Take(char c) {
    SkipSpace();
    if (at_ == json_.size() || json_[at_] != c) return false;
    ++at_;
    return true;
  }

  absl::Status Expected(absl::string_view what) const {
    return absl::DataLossError(absl::StrCat(
        "byte ", at_, " of the header: expected ", what, ", got ",
        at_ == json_.size() ? "the end" : absl::StrCat("'", absl::CHexEscape(json_.substr(at_, 1)), "'")));
  }

  const absl::string_view json_;
  size_t at_ = 0;
};

}  // namespace

absl::StatusOr<std::vector<TensorEntry>> ParseSafetensorsHeader(absl::string_view json) {
  return HeaderParser(json).Parse();
}

}  // namespace dinghy
