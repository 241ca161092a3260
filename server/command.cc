#include "server/command.h"

#include <cstdio>
#include <fstream>
#include <iostream>
#include <sstream>

#include "absl/strings/str_cat.h"

namespace dinghy {

void AddAllowEmulation(CLI::App& command, bool& allow) {
  command.add_flag("--allow_emulation", allow,
                   "Load a bundle in bf16 on a CPU without it as well, and be slow");
}

int Fail(std::string_view subcommand, const absl::Status& status) {
  std::cerr << "dinghy " << subcommand << ": " << status.message() << std::endl;
  return absl::IsInvalidArgument(status) || absl::IsNotFound(status) ? kExitUsage : kExitFailed;
}

absl::StatusOr<std::string> ReadAll(const std::string& path) {
  std::ostringstream text;
  if (path == "-") {
    text << std::cin.rdbuf();
    return text.str();
  }
  std::ifstream file(path, std::ios::binary);
  // Reading a folder fails only here; an empty file sets the fail bit of `text`, which is no error.
  if (!file || file.peek() == std::ifstream::traits_type::eof()) {
    if (file.is_open() && file.eof()) return std::string();
    return absl::NotFoundError(absl::StrCat("file \"", path, "\": cannot be read"));
  }
  text << file.rdbuf();
  return text.str();
}

}  // namespace dinghy
