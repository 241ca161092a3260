#include "server/metrics_http.h"

#include <CivetServer.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/address.h"

namespace dinghy {
namespace {

// Answers one path with what a function says.
class TextHandler : public CivetHandler {
 public:
  struct Answer {
    int code;
    const char* reason;
    std::string body;
  };
  explicit TextHandler(std::function<Answer()> answer) : answer_(std::move(answer)) {}

  bool handleGet(CivetServer*, mg_connection* connection) override {
    const Answer answer = answer_();
    mg_printf(connection,
              "HTTP/1.1 %d %s\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
              "Content-Length: %zu\r\nConnection: close\r\n\r\n",
              answer.code, answer.reason, answer.body.size());
    mg_write(connection, answer.body.data(), answer.body.size());
    return true;
  }

 private:
  const std::function<Answer()> answer_;
};

class CivetMetricsHttp : public MetricsHttp {
 public:
  explicit CivetMetricsHttp(Options options)
      : metrics_([options] {
          return TextHandler::Answer{200, "OK", options.metrics()};
        }),
        ready_([options] {
          return options.ready() ? TextHandler::Answer{200, "OK", "ready\n"}
                                 : TextHandler::Answer{503, "Service Unavailable", "not ready\n"};
        }),
        live_([] {
          return TextHandler::Answer{200, "OK", "live\n"};
        }) {}

  // Throws CivetException.
  void Listen(const std::string& address) {
    server_ = std::make_unique<CivetServer>(std::vector<std::string>{
        "listening_ports", address, "num_threads", "2", "request_timeout_ms", "5000"});
    server_->addHandler("/metrics", metrics_);
    server_->addHandler("/ready", ready_);
    server_->addHandler("/live", live_);
    port_ = server_->getListeningPorts().at(0);
  }

  int port() const override { return port_; }

 private:
  TextHandler metrics_;
  TextHandler ready_;
  TextHandler live_;
  int port_ = 0;
  std::unique_ptr<CivetServer> server_;  // last, so that it stops before what it calls is gone
};

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsHttp>> MetricsHttp::Create(const std::string& address,
                                                                 Options options) {
  // civetweb says only that it failed; CheckListen says why.
  if (absl::Status status = CheckListen(address); !status.ok()) return status;
  auto http = std::make_unique<CivetMetricsHttp>(std::move(options));
  try {
    http->Listen(address);
  } catch (const std::exception& e) {
    return absl::UnavailableError(absl::StrCat("cannot listen on ", address, ": ", e.what()));
  }
  return http;
}

}  // namespace dinghy
