#include "server/diagnostics.h"

#include <grpc/support/log.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>

namespace dinghy {
namespace {

void Log(spdlog::level::level_enum level, std::string_view message, LogFields fields) {
  std::string line = absl::StrCat("\"message\":", JsonQuote(message));
  for (const auto& [name, value] : fields) absl::StrAppend(&line, ",", JsonQuote(name), ":", value.json());
  spdlog::default_logger_raw()->log(level, "{}", line);
}

void LogFromGrpc(gpr_log_func_args* args) { LogError("grpc", {{"detail", args->message}}); }

}  // namespace

std::string JsonQuote(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      absl::StrAppend(&out, "\\u00", absl::Hex(static_cast<unsigned char>(c), absl::kZeroPad2));
    } else {
      out += c;
    }
  }
  out += '"';
  return out;
}

void LogInfo(std::string_view message, LogFields fields) { Log(spdlog::level::info, message, fields); }
void LogWarning(std::string_view message, LogFields fields) { Log(spdlog::level::warn, message, fields); }
void LogError(std::string_view message, LogFields fields) { Log(spdlog::level::err, message, fields); }

void SetUpDiagnostics() {
  auto logger = std::make_shared<spdlog::logger>("dinghy", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_pattern(R"({"time":"%Y-%m-%dT%H:%M:%S.%eZ","level":"%l",%v})", spdlog::pattern_time_type::utc);
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(std::move(logger));
  gpr_set_log_function(LogFromGrpc);
  gpr_set_log_verbosity(GPR_LOG_SEVERITY_ERROR);
}

}  // namespace dinghy
