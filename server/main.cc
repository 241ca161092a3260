// dinghy: the server and its tools, one subcommand each.
#include <CLI/CLI.hpp>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "model/ops/cpu.h"
#include "server/command.h"

namespace dinghy {
namespace {

const CLI::App* FindSubcommand(const CLI::App& app, const std::string& name) {
  const std::vector<const CLI::App*> found =
      app.get_subcommands([&name](const CLI::App* sub) { return sub->get_name() == name; });
  return found.empty() ? nullptr : found.front();
}

// Prints the help of the subcommand that `path` leads to; of `app` where it is empty.
int PrintHelp(const CLI::App& app, const std::vector<std::string>& path) {
  const CLI::App* at = &app;
  std::string name = app.get_name();
  for (const std::string& step : path) {
    at = FindSubcommand(*at, step);
    if (at == nullptr) {
      std::cerr << "dinghy help: there is no subcommand \"" << step << "\"" << std::endl;
      return kExitUsage;
    }
    name += " " + step;
  }
  // Not App::help, which would go on to the subcommand that is being run: help.
  std::cout << at->get_formatter()->make_help(at, name, CLI::AppFormatMode::Normal);
  return kExitOk;
}

void AddHelpCommand(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("help", "Documents a subcommand");
  auto topics = std::make_shared<std::vector<std::string>>();
  command->add_option("subcommand", *topics, "The subcommand; none: a list of all");
  command->callback([&app, &exit_code, topics] { exit_code = PrintHelp(app, *topics); });
}

int Run(int argc, char** argv) {
  if (absl::Status status = ops::InitializeCpu(); !status.ok()) {
    std::cerr << "dinghy: " << status.message() << std::endl;
    return kExitUsage;
  }
  CLI::App app("Dinghy scores click-through rate: one user, many candidates, one probability each.",
               "dinghy");
  app.set_version_flag("--version", "dinghy " DINGHY_VERSION);
  app.require_subcommand(1);
  int exit_code = kExitOk;
  AddServeCommand(app, exit_code);
  AddScoreCommand(app, exit_code);
  AddIngestCommand(app, exit_code);
  AddReplayCommand(app, exit_code);
  AddEvalCommand(app, exit_code);
  AddValidateCommand(app, exit_code);
  AddInspectCommand(app, exit_code);
  AddBenchCommand(app, exit_code);
  AddAdminCommand(app, exit_code);
  AddHealthCommand(app, exit_code);
  AddHelpCommand(app, exit_code);
  if (argc > 1 && argv[1][0] != '-' && FindSubcommand(app, argv[1]) == nullptr) {
    std::cerr << "dinghy: there is no subcommand \"" << argv[1] << "\"\nSee `dinghy help`." << std::endl;
    return kExitUsage;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& done) {  // --help, --version
    return app.exit(done);
  } catch (const CLI::ParseError& error) {
    std::string name = "dinghy";
    for (const CLI::App* sub : app.get_subcommands()) name += " " + sub->get_name();
    std::cerr << name << ": " << error.what() << "\nSee `dinghy help`." << std::endl;
    return kExitUsage;
  }
  return exit_code;
}

}  // namespace
}  // namespace dinghy

int main(int argc, char** argv) {
  try {
    return dinghy::Run(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "dinghy: " << error.what() << std::endl;
    return dinghy::kExitFailed;
  }
}
