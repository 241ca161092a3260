// `dinghy eval`.
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "server/command.h"
#include "server/replay/eval.h"
#include "server/replay/score_log_file.h"

namespace dinghy {
namespace {

struct EvalFlags {
  std::vector<std::string> logs;
  bool json = false;
};

int Eval(const EvalFlags& flags) {
  Evaluator evaluator;
  ScoreLogStats stats;
  const absl::Status status = ReadScoreLogs(
      flags.logs, [&](v1::ScoreLog log) { return evaluator.Add(log); }, stats);
  if (!status.ok()) return Fail("eval", status);
  for (const std::string& torn : stats.torn) {
    std::cerr << "dinghy eval: " << torn << ": ends in an incomplete record, which is left out" << std::endl;
  }
  const EvalReport report = evaluator.Report();
  std::cout << (flags.json ? ToJson(report) : ToText(report)) << std::flush;
  return kExitOk;
}

}  // namespace

void AddEvalCommand(CLI::App& app, int& exit_code) {
  CLI::App* command =
      app.add_subcommand("eval", "AUC, gAUC and logloss of the scores in logs, against their labels");
  auto flags = std::make_shared<EvalFlags>();
  command
      ->add_option("--log,logs", flags->logs,
                   "TFRecord or JSON lines, files or folders; --log may be left out")
      ->required();
  command->add_flag("--json", flags->json, "JSON instead of a table");
  command->callback([flags, &exit_code] { exit_code = Eval(*flags); });
}

}  // namespace dinghy
