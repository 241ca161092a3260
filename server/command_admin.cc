// `dinghy admin status|reload|pin|rollback`.
#include <iostream>
#include <memory>
#include <string>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "proto/admin.grpc.pb.h"
#include "server/client.h"
#include "server/command.h"

namespace dinghy {
namespace {

struct AdminFlags {
  std::string server = "127.0.0.1:8500";
  std::string model;
  std::string label = "stable";
  int64_t version = 0;
};

void PrintStatus(const v1::GetModelStatusResponse& response) {
  std::cout << absl::StrFormat("%-24s %10s  %-7s %-20s %s\n", "model", "version", "state", "labels",
                               "digest");
  for (const v1::ModelVersionStatus& version : response.versions()) {
    const auto& pinned = version.pinned_labels();
    const std::string labels =
        absl::StrJoin(version.labels(), ",", [&](std::string* out, const std::string& label) {
          absl::StrAppend(out, label,
                          std::find(pinned.begin(), pinned.end(), label) != pinned.end() ? " (pinned)" : "");
        });
    const bool loaded = version.state() == v1::ModelVersionStatus::LOADED;
    std::cout << absl::StrFormat(
        "%-24s %10d  %-7s %-20s %s\n", version.model(), version.version(), loaded ? "loaded" : "failed",
        labels,
        loaded ? version.bundle_digest().substr(0, 12) : absl::StrReplaceAll(version.error(), {{"\n", " "}}));
  }
}

// Makes one call and prints the versions that it returns.
template <typename Call>
int Ask(const char* name, const AdminFlags& flags, Call call) {
  const auto channel = Connect(flags.server);
  if (!channel.ok()) return Fail(name, channel.status());
  const auto stub = v1::AdminService::NewStub(*channel);
  grpc::ClientContext context;
  v1::GetModelStatusResponse response;
  const grpc::Status status = call(*stub, context, response);
  if (!status.ok()) return Fail(name, CallError(status));
  PrintStatus(response);
  return kExitOk;
}

int Status(const AdminFlags& flags) {
  return Ask("admin status", flags, [&](auto& stub, auto& context, auto& response) {
    v1::GetModelStatusRequest request;
    request.set_model(flags.model);
    return stub.GetModelStatus(&context, request, &response);
  });
}

int Reload(const AdminFlags& flags) {
  return Ask("admin reload", flags, [&](auto& stub, auto& context, auto& response) {
    return stub.Reload(&context, v1::ReloadRequest(), &response);
  });
}

int Pin(const AdminFlags& flags) {
  return Ask("admin pin", flags, [&](auto& stub, auto& context, auto& response) {
    v1::PinRequest request;
    request.set_model(flags.model);
    request.set_label(flags.label);
    request.set_version(flags.version);
    return stub.Pin(&context, request, &response);
  });
}

int Rollback(const AdminFlags& flags) {
  return Ask("admin rollback", flags, [&](auto& stub, auto& context, auto& response) {
    v1::RollbackRequest request;
    request.set_model(flags.model);
    return stub.Rollback(&context, request, &response);
  });
}

}  // namespace

void AddAdminCommand(CLI::App& app, int& exit_code) {
  CLI::App* admin = app.add_subcommand("admin", "Model versions of a running server");
  admin->require_subcommand(1);
  auto flags = std::make_shared<AdminFlags>();
  const auto add = [&](const char* name, const char* help, int (*run)(const AdminFlags&)) {
    CLI::App* command = admin->add_subcommand(name, help);
    command->add_option("--server", flags->server, "host:port")->capture_default_str();
    command->callback([flags, run, &exit_code] { exit_code = run(*flags); });
    return command;
  };
  add("status", "Every version of every model", Status)->add_option("model", flags->model, "This model only");
  add("reload", "Look at the model root now, and load what appeared", Reload);
  CLI::App* pin = add("pin", "Point a label at a version and keep it there", Pin);
  pin->add_option("model", flags->model, "The model")->required();
  pin->add_option("version", flags->version, "The version; 0: follow the newest again")->required();
  pin->add_option("--label", flags->label, "stable or canary")->capture_default_str();
  add("rollback", "Pin stable to the version it pointed at before", Rollback)
      ->add_option("model", flags->model, "The model")
      ->required();
}

}  // namespace dinghy
