#include "server/config.h"

#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/text_format.h>

#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "features/behavior/memory_store.h"
#include "features/behavior/rocksdb_store.h"
#include "model/ops/cpu.h"

namespace dinghy {
namespace {

// Keeps the first error of the text parser.
class FirstError : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int line, google::protobuf::io::ColumnNumber column, const std::string& message) override {
    if (text.empty()) text = absl::StrCat(line + 1, ":", column + 1, ": ", message);
  }
  std::string text;
};

}  // namespace

absl::StatusOr<v1::ServerConfig> ReadServerConfig(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf())) {
    return absl::NotFoundError(absl::StrCat("config file \"", path, "\": cannot be read"));
  }
  v1::ServerConfig config;
  FirstError error;
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&error);
  if (!parser.ParseFromString(text.str(), &config)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ":", error.text));
  }
  return config;
}

absl::StatusOr<v1::StoreConfig> ParseStore(const std::string& text) {
  v1::StoreConfig config;
  absl::string_view path = text;
  if (text == "memory") {
    config.mutable_memory();
  } else if (absl::ConsumePrefix(&path, "rocksdb:") && !path.empty()) {
    config.mutable_rocksdb()->set_path(std::string(path));
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat("store: expected \"memory\" or \"rocksdb:PATH\", got \"", text, "\""));
  }
  return config;
}

absl::StatusOr<v1::ServerConfig> CompleteConfig(v1::ServerConfig config) {
  if (config.model_root().empty())
    return absl::InvalidArgumentError("model_root: expected a folder, got none");
  if (config.listen().empty()) config.set_listen("127.0.0.1:8500");
  if (config.metrics_listen().empty()) config.set_metrics_listen("127.0.0.1:8501");
  if (config.workers() == 0) config.set_workers(ops::CpuBudget());
  if (config.workers() > 1024) {
    return absl::InvalidArgumentError(absl::StrCat("workers: expected at most 1024, got ", config.workers()));
  }
  if (config.queue() == 0) config.set_queue(64 * config.workers());
  if (config.queue() > 1'000'000) {
    return absl::InvalidArgumentError(absl::StrCat("queue: expected at most 1000000, got ", config.queue()));
  }
  if (config.max_candidates() == 0) config.set_max_candidates(1000);
  if (config.max_candidates() > 1'000'000) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_candidates: expected at most 1000000, got ", config.max_candidates()));
  }
  if (config.max_request_bytes() == 0) config.set_max_request_bytes(16 << 20);
  if (config.max_request_bytes() > (uint64_t{1} << 30)) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_request_bytes: expected at most 1 GiB, got ", config.max_request_bytes()));
  }
  if (!config.has_user_cache_mb()) config.set_user_cache_mb(64);
  if (config.user_cache_mb() > 1'000'000) {
    return absl::InvalidArgumentError(
        absl::StrCat("user_cache_mb: expected at most 1000000, got ", config.user_cache_mb()));
  }
  if (config.unknown_features() == v1::UNKNOWN_FEATURES_UNSPECIFIED) config.set_unknown_features(v1::IGNORE);
  v1::ScoreLogConfig& log = *config.mutable_score_log();
  if (!log.has_sample_rate()) log.set_sample_rate(1);
  if (log.max_file_bytes() == 0) log.set_max_file_bytes(uint64_t{256} << 20);
  return config;
}

absl::StatusOr<std::unique_ptr<BehaviorStore>> OpenStore(const v1::StoreConfig& config) {
  switch (config.backend_case()) {
    case v1::StoreConfig::kMemory:
      return NewMemoryStore();
    case v1::StoreConfig::kRocksdb:
      return OpenRocksDbStore({.path = config.rocksdb().path(), .sync = !config.rocksdb().no_sync()});
    case v1::StoreConfig::BACKEND_NOT_SET:
      break;
  }
  return nullptr;
}

}  // namespace dinghy
