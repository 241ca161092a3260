// `dinghy health`.
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "proto/health.grpc.pb.h"
#include "server/client.h"
#include "server/command.h"

namespace dinghy {
namespace {

struct HealthFlags {
  std::string server = "127.0.0.1:8500";
  std::string model;
  double timeout = 5;
};

// A probe: whatever is wrong, a server that cannot be asked included, is exit code 1.
int Health(const HealthFlags& flags) {
  const auto channel = Connect(flags.server, absl::Seconds(flags.timeout));
  if (!channel.ok()) return Fail("health", channel.status());
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(flags.timeout)));
  grpc::health::v1::HealthCheckRequest request;
  request.set_service(flags.model);
  grpc::health::v1::HealthCheckResponse response;
  const grpc::Status status =
      grpc::health::v1::Health::NewStub(*channel)->Check(&context, request, &response);
  if (!status.ok()) {
    Fail("health", CallError(status));
    return kExitFailed;
  }
  const bool serving = response.status() == grpc::health::v1::HealthCheckResponse::SERVING;
  std::cout << (serving ? "serving" : "not serving") << std::endl;
  return serving ? kExitOk : kExitFailed;
}

}  // namespace

void AddHealthCommand(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("health", "Exits with 0 if a server serves, else 1: a probe");
  auto flags = std::make_shared<HealthFlags>();
  command->add_option("--server", flags->server, "host:port")->capture_default_str();
  command->add_option("--model", flags->model, "Ask for this model; default: the server as a whole");
  command->add_option("--timeout", flags->timeout, "Seconds")->capture_default_str();
  command->callback([flags, &exit_code] { exit_code = Health(*flags); });
}

}  // namespace dinghy
