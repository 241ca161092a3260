// The diagnostic log: one JSON object a line on standard error, through spdlog.
//
//   SetUpDiagnostics();   // once, in main
//   LogInfo("listening", {{"address", "127.0.0.1:8500"}, {"port", 8500}});
//
// Never holds user ids or feature values. Thread-safe.
#ifndef DINGHY_SERVER_DIAGNOSTICS_H_
#define DINGHY_SERVER_DIAGNOSTICS_H_

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"

namespace dinghy {

// A text in JSON quotes, escaped.
std::string JsonQuote(std::string_view text);

// A value of a log line, as JSON.
class LogValue {
 public:
  LogValue(std::string_view text) : json_(JsonQuote(text)) {}    // NOLINT(google-explicit-constructor)
  LogValue(const std::string& text) : json_(JsonQuote(text)) {}  // NOLINT(google-explicit-constructor)
  LogValue(const char* text) : json_(JsonQuote(text)) {}         // NOLINT(google-explicit-constructor)
  LogValue(int value) : json_(absl::StrCat(value)) {}            // NOLINT(google-explicit-constructor)
  LogValue(int64_t value) : json_(absl::StrCat(value)) {}        // NOLINT(google-explicit-constructor)
  LogValue(double value) : json_(absl::StrCat(value)) {}         // NOLINT(google-explicit-constructor)
  const std::string& json() const { return json_; }

 private:
  std::string json_;
};

using LogFields = std::initializer_list<std::pair<std::string_view, LogValue>>;

void LogInfo(std::string_view message, LogFields fields = {});
void LogWarning(std::string_view message, LogFields fields = {});
void LogError(std::string_view message, LogFields fields = {});

// Makes spdlog write JSON lines to standard error, and gRPC's own messages (errors only) go the same way.
void SetUpDiagnostics();

}  // namespace dinghy

#endif  // DINGHY_SERVER_DIAGNOSTICS_H_
