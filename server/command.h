// The subcommands of `dinghy`: each file command_<name>.cc adds its own to the command line.
//
// A subcommand's callback does the work and sets the exit code: 0 ok, 1 failed (a check, or the work), 2
// usage or bad input. Errors go to standard error as `dinghy <subcommand>: <message>`.
#ifndef DINGHY_SERVER_COMMAND_H_
#define DINGHY_SERVER_COMMAND_H_

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace dinghy {

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;

void AddAdminCommand(CLI::App& app, int& exit_code);
void AddBenchCommand(CLI::App& app, int& exit_code);
void AddEvalCommand(CLI::App& app, int& exit_code);
void AddHealthCommand(CLI::App& app, int& exit_code);
void AddIngestCommand(CLI::App& app, int& exit_code);
void AddInspectCommand(CLI::App& app, int& exit_code);
void AddReplayCommand(CLI::App& app, int& exit_code);
void AddScoreCommand(CLI::App& app, int& exit_code);
void AddServeCommand(CLI::App& app, int& exit_code);
void AddValidateCommand(CLI::App& app, int& exit_code);

// Adds the flag of subcommands that load a bundle: ModelOptions.allow_emulation.
void AddAllowEmulation(CLI::App& command, bool& allow);

// Prints the error; returns its exit code: 2 where the input is at fault (INVALID_ARGUMENT, NOT_FOUND),
// else 1.
int Fail(std::string_view subcommand, const absl::Status& status);

// The whole of a file, "-" for standard input. NOT_FOUND naming the file.
absl::StatusOr<std::string> ReadAll(const std::string& path);

}  // namespace dinghy

#endif  // DINGHY_SERVER_COMMAND_H_
