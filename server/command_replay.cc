// `dinghy replay`.
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "proto/scoring.grpc.pb.h"
#include "server/client.h"
#include "server/command.h"
#include "server/in_process.h"
#include "server/replay/eval.h"
#include "server/replay/replay.h"
#include "server/replay/score_log_file.h"

namespace dinghy {
namespace {

struct ReplayFlags {
  std::string server;
  std::string bundle;
  std::string store;
  bool allow_emulation = false;
  std::vector<std::string> logs;
  std::string history = "as_logged";
  std::string out;
  std::string model;
  std::optional<int64_t> version;
  std::string label;
  int concurrency = 1;
  double rate = 0;
  double tolerance = 1e-5;
  double timeout = 30;
  bool compare_only = false;
  bool json = false;
};

absl::Status CheckFlags(const ReplayFlags& flags) {
  if (flags.server.empty() == flags.bundle.empty()) {
    return absl::InvalidArgumentError("expected one of --server and --bundle");
  }
  if (!flags.store.empty() && flags.bundle.empty()) {
    return absl::InvalidArgumentError("--store goes with --bundle; a server has its own");
  }
  if (flags.history == "store" && !flags.bundle.empty() && flags.store.empty()) {
    return absl::InvalidArgumentError("--history store: expected --store beside --bundle");
  }
  return absl::OkStatus();
}

// What scores: the stub of a server, or a bundle in this process.
struct Target {
  std::shared_ptr<v1::ScoringService::Stub> stub;
  std::shared_ptr<InProcessScorer> bundle;
  absl::Duration timeout;

  absl::StatusOr<v1::ScoreResponse> Score(const v1::ScoreRequest& request) const {
    if (bundle != nullptr) return bundle->Score(request);
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
    v1::ScoreResponse response;
    const grpc::Status status = stub->Score(&context, request, &response);
    if (!status.ok()) {
      return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
    }
    return response;
  }
};

absl::StatusOr<Target> OpenTarget(const ReplayFlags& flags) {
  Target target;
  target.timeout = absl::Seconds(flags.timeout);
  if (!flags.bundle.empty()) {
    auto bundle =
        InProcessScorer::Create(flags.bundle, flags.store, {.allow_emulation = flags.allow_emulation});
    if (!bundle.ok()) return bundle.status();
    target.bundle = *std::move(bundle);
    return target;
  }
  const auto channel = Connect(flags.server);
  if (!channel.ok()) return channel.status();
  target.stub = v1::ScoringService::NewStub(*channel);
  return target;
}

absl::Status WriteLogs(const std::string& path, const std::vector<v1::ScoreLog>& logs) {
  auto writer = ScoreLogWriter::Create(path);
  if (!writer.ok()) return writer.status();
  for (const v1::ScoreLog& log : logs) {
    if (absl::Status status = (*writer)->Write(log); !status.ok()) return status;
  }
  return (*writer)->Close();
}

ReplayOptions OptionsOf(const ReplayFlags& flags, const Target& target, int64_t requests) {
  ReplayOptions options;
  options.concurrency = flags.concurrency;
  options.rate = flags.rate;
  options.histories_from_store = flags.history == "store";
  options.model = flags.model;
  options.version = flags.version;
  options.label = flags.label;
  options.tolerance = flags.tolerance;
  options.fail_on_difference = !flags.compare_only;
  // A bundle was named outright: it scores whatever model the log was made by.
  if (target.bundle != nullptr && options.model.empty()) options.model = target.bundle->manifest().name();
  if (isatty(STDERR_FILENO) != 0) {
    const int64_t step = std::max<int64_t>(1, requests / 200);
    options.on_progress = [requests, step](int64_t done) {
      if (done % step == 0) std::cerr << "\r" << done << " of " << requests << " requests" << std::flush;
    };
  }
  return options;
}

int RunReplay(const ReplayFlags& flags) {
  if (absl::Status status = CheckFlags(flags); !status.ok()) return Fail("replay", status);
  ScoreLogStats stats;
  const absl::StatusOr<std::vector<v1::ScoreLog>> logs = LoadScoreLogs(flags.logs, stats);
  if (!logs.ok()) return Fail("replay", logs.status());
  for (const std::string& torn : stats.torn) {
    std::cerr << "dinghy replay: " << torn << ": ends in an incomplete record, which is left out"
              << std::endl;
  }
  const absl::StatusOr<Target> target = OpenTarget(flags);
  if (!target.ok()) return Fail("replay", target.status());
  const ReplayOptions options = OptionsOf(flags, *target, static_cast<int64_t>(logs->size()));
  const absl::StatusOr<ReplayResult> result = Replay(
      *logs, [&](const v1::ScoreRequest& request) { return target->Score(request); }, options);
  if (options.on_progress) std::cerr << "\r\033[K";
  if (!result.ok()) return Fail("replay", result.status());

  const bool labelled = std::any_of(result->logs.begin(), result->logs.end(),
                                    [](const v1::ScoreLog& log) { return log.labels_size() > 0; });
  absl::StatusOr<EvalReport> quality = EvalReport();
  if (labelled) quality = Evaluate(result->logs);
  if (!quality.ok()) return Fail("replay", quality.status());
  if (flags.json) {
    std::cout << "{\"replay\": " << ToJson(result->report, options);
    if (labelled) std::cout << ", \"eval\": " << ToJson(*quality);
    std::cout << "}" << std::endl;
  } else {
    std::cout << ToText(result->report, options);
    if (labelled) std::cout << "\n" << ToText(*quality);
    std::cout << std::flush;
  }
  if (!flags.out.empty()) {
    if (absl::Status status = WriteLogs(flags.out, result->logs); !status.ok()) return Fail("replay", status);
  }
  return Failed(result->report, options) ? kExitFailed : kExitOk;
}

}  // namespace

void AddReplayCommand(CLI::App& app, int& exit_code) {
  CLI::App* command =
      app.add_subcommand("replay", "Scores logged requests again and compares; exits with 1 if they differ");
  auto flags = std::make_shared<ReplayFlags>();
  command->add_option("--server", flags->server, "host:port; this or --bundle");
  command->add_option("--bundle", flags->bundle, "Folder of a bundle, to score in this process");
  command->add_option("--store", flags->store, "With --bundle: rocksdb:PATH, for histories");
  command
      ->add_option("--log,logs", flags->logs,
                   "TFRecord or JSON lines, files or folders; --log may be left out")
      ->required();
  command
      ->add_option("--history", flags->history, "as_logged: as the log has them; store: the store is asked")
      ->check(CLI::IsMember({"as_logged", "store"}))
      ->capture_default_str();
  command->add_option("--concurrency", flags->concurrency, "Requests at a time")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command->add_option("--rate", flags->rate, "Requests per second; 0: as fast as answers come")
      ->capture_default_str();
  command->add_option("--tolerance", flags->tolerance, "Difference allowed where bits need not be equal")
      ->capture_default_str();
  command->add_option("--model", flags->model, "Score with this model instead of the logged one");
  command->add_option("--version", flags->version, "Score with this version instead of the logged one");
  command->add_option("--label", flags->label, "Score with the version of this label: stable, canary");
  command->add_flag("--compare_only", flags->compare_only, "Differences are reported, but are no failure");
  command->add_option("--timeout", flags->timeout, "Seconds a request may take on a server")
      ->capture_default_str();
  command->add_option("--out", flags->out,
                      "Write the logs with the new scores here; JSON lines if named .jsonl");
  command->add_flag("--json", flags->json, "JSON instead of text");
  AddAllowEmulation(*command, flags->allow_emulation);
  command->callback([flags, &exit_code] { exit_code = RunReplay(*flags); });
}

}  // namespace dinghy
