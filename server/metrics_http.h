// HTTP for operators: GET /metrics (Prometheus text), /ready (200 once requests are served, else 503), /live.
//
//   ASSIGN_OR_RETURN(auto http, MetricsHttp::Create("127.0.0.1:8501", {.metrics = ..., .ready = ...}));
//
// Stops when destroyed. Thread-safe.
#ifndef DINGHY_SERVER_METRICS_HTTP_H_
#define DINGHY_SERVER_METRICS_HTTP_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace dinghy {

class MetricsHttp {
 public:
  struct Options {
    std::function<std::string()> metrics;  // the text to answer with
    std::function<bool()> ready;
  };

  // Listens on `address`, host:port; port 0 takes any free one. UNAVAILABLE: `cannot listen on ...`.
  static absl::StatusOr<std::unique_ptr<MetricsHttp>> Create(const std::string& address, Options options);
  virtual ~MetricsHttp() = default;

  virtual int port() const = 0;
};

}  // namespace dinghy

#endif  // DINGHY_SERVER_METRICS_HTTP_H_
