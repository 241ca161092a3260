// `dinghy validate` and `dinghy inspect`.
#include <iostream>
#include <memory>
#include <string>

#include "model/ops/cpu.h"
#include "server/command.h"
#include "server/inspect.h"

namespace dinghy {
namespace {

void AddBundleCommand(CLI::App& app, const char* name, const char* help, int& exit_code,
                      absl::Status (*run)(const std::string&, std::ostream&, const ModelOptions&)) {
  CLI::App* command = app.add_subcommand(name, help);
  auto folder = std::make_shared<std::string>();
  command->add_option("bundle", *folder, "Folder of a bundle")->required();
  auto options = std::make_shared<ModelOptions>();
  AddAllowEmulation(*command, options->allow_emulation);
  command->callback([folder, options, name, run, &exit_code] {
    ops::PrepareThread();
    const absl::Status status = run(*folder, std::cout, *options);
    exit_code = status.ok() ? kExitOk : Fail(name, status);
  });
}

}  // namespace

void AddValidateCommand(CLI::App& app, int& exit_code) {
  AddBundleCommand(app, "validate",
                   "Loads a bundle and scores its golden requests; exits with 0 if all agree", exit_code,
                   ValidateBundle);
}

void AddInspectCommand(CLI::App& app, int& exit_code) {
  AddBundleCommand(app, "inspect", "Prints what a bundle holds: features, layers, parameters, FLOPs",
                   exit_code, InspectBundle);
}

}  // namespace dinghy
