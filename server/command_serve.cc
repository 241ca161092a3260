// `dinghy serve`.
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "model/ops/cpu.h"
#include "server/command.h"
#include "server/config.h"
#include "server/diagnostics.h"
#include "server/server.h"

namespace dinghy {
namespace {

struct ServeFlags {
  std::string config;
  std::optional<std::string> model_root, listen, metrics_listen, store, score_log, unknown_features;
  std::optional<uint32_t> workers, queue, max_candidates, user_cache_mb;
  std::optional<double> score_log_sample_rate;
  std::string port_file;
  bool allow_emulation = false;
};

// The config file with the flags on top.
absl::StatusOr<v1::ServerConfig> BuildConfig(const ServeFlags& flags) {
  v1::ServerConfig config;
  if (!flags.config.empty()) {
    absl::StatusOr<v1::ServerConfig> read = ReadServerConfig(flags.config);
    if (!read.ok()) return read.status();
    config = *std::move(read);
  }
  if (flags.model_root) config.set_model_root(*flags.model_root);
  if (flags.listen) config.set_listen(*flags.listen);
  if (flags.metrics_listen) config.set_metrics_listen(*flags.metrics_listen);
  if (flags.store) {
    absl::StatusOr<v1::StoreConfig> store = ParseStore(*flags.store);
    if (!store.ok()) return store.status();
    *config.mutable_store() = *std::move(store);
  }
  if (flags.workers) config.set_workers(*flags.workers);
  if (flags.queue) config.set_queue(*flags.queue);
  if (flags.max_candidates) config.set_max_candidates(*flags.max_candidates);
  if (flags.user_cache_mb) config.set_user_cache_mb(*flags.user_cache_mb);
  if (flags.score_log) config.mutable_score_log()->set_directory(*flags.score_log);
  if (flags.score_log_sample_rate) config.mutable_score_log()->set_sample_rate(*flags.score_log_sample_rate);
  if (flags.unknown_features) {
    config.set_unknown_features(*flags.unknown_features == "reject" ? v1::REJECT : v1::IGNORE);
  }
  if (flags.allow_emulation) config.set_allow_emulation(true);
  return CompleteConfig(std::move(config));
}

// Whoever waits for the file never sees half of it.
absl::Status WritePortFile(const std::string& path, int port) {
  const std::string temporary = absl::StrCat(path, ".", getpid());
  {
    std::ofstream file(temporary);
    file << port << "\n";
    if (!file.flush())
      return absl::UnavailableError(absl::StrCat("port file \"", path, "\": cannot be written"));
  }
  if (std::rename(temporary.c_str(), path.c_str()) != 0) {
    std::remove(temporary.c_str());
    return absl::UnavailableError(absl::StrCat("port file \"", path, "\": cannot be written"));
  }
  return absl::OkStatus();
}

int Serve(const ServeFlags& flags) {
  // Blocked before any thread exists, so that none but sigwait below gets them.
  sigset_t stop_signals;
  sigemptyset(&stop_signals);
  sigaddset(&stop_signals, SIGTERM);
  sigaddset(&stop_signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &stop_signals, nullptr);
  signal(SIGPIPE, SIG_IGN);

  const absl::StatusOr<v1::ServerConfig> config = BuildConfig(flags);
  if (!config.ok()) return Fail("serve", config.status());
  SetUpDiagnostics();
  LogInfo("starting", {{"version", DINGHY_VERSION},
                       {"cpu_budget", ops::CpuBudget()},
                       {"numerics", ops::NumericsDescription()}});
  const auto server = Server::Create(*config);
  if (!server.ok()) return Fail("serve", server.status());
  if (!flags.port_file.empty()) {
    if (absl::Status status = WritePortFile(flags.port_file, (*server)->port()); !status.ok()) {
      return Fail("serve", status);
    }
  }
  int signal_number = 0;
  sigwait(&stop_signals, &signal_number);
  LogInfo("signal", {{"number", signal_number}});
  pthread_sigmask(SIG_UNBLOCK, &stop_signals, nullptr);  // a second one ends the process at once
  (*server)->Shutdown();
  return kExitOk;
}

}  // namespace

void AddServeCommand(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("serve", "Serves models over gRPC until SIGTERM or SIGINT");
  auto flags = std::make_shared<ServeFlags>();
  command->add_option("--config", flags->config, "ServerConfig as protobuf text; flags override it");
  command->add_option("--model_root", flags->model_root, "Folder <model>/<integer version>/ with bundles");
  command->add_option("--listen", flags->listen, "host:port of gRPC, port 0 for any; default 127.0.0.1:8500");
  command->add_option("--metrics_listen", flags->metrics_listen,
                      "host:port of /metrics, /ready, /live; or off; default 127.0.0.1:8501");
  command->add_option("--store", flags->store,
                      "Histories: memory or rocksdb:PATH; default none: requests bring them");
  command->add_option("--workers", flags->workers, "Scoring threads; default one per CPU");
  command->add_option("--queue", flags->queue, "Requests that may wait; default 64 per worker");
  command->add_option("--max_candidates", flags->max_candidates, "Candidates per request; default 1000");
  command->add_option("--user_cache_mb", flags->user_cache_mb,
                      "Memory for encoded histories between requests; default 64; 0: none");
  command->add_option("--score_log", flags->score_log,
                      "Folder for the log of scored requests; default no log");
  command->add_option("--score_log_sample_rate", flags->score_log_sample_rate,
                      "Share of requests that is logged, 0 to 1; default 1");
  command
      ->add_option("--unknown_features", flags->unknown_features,
                   "Columns unknown to the model: ignore (warn) or reject; default ignore")
      ->check(CLI::IsMember({"ignore", "reject"}));
  command->footer("--config takes what the flags cannot say too; proto/server_config.proto lists it.");
  command->add_option("--port_file", flags->port_file, "Write the gRPC port here once requests are served");
  AddAllowEmulation(*command, flags->allow_emulation);
  command->callback([flags, &exit_code] { exit_code = Serve(*flags); });
}

}  // namespace dinghy
