// `dinghy bench`.
#include <unistd.h>

#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "model/loaded_model.h"
#include "model/ops/cpu.h"
#include "server/bench/bench.h"
#include "server/command.h"

namespace dinghy {
namespace {

struct BenchFlags {
  std::string bundle;
  std::string grid = "50x100,100x500,200x1000,1000x200";
  int threads = 1;
  double seconds = 1;
  int requests = 8;
  uint64_t seed = 1;
  bool cached = false;
  bool split = false;
  bool cold = false;
  std::string kernels = "fused";
  bool allow_emulation = false;
  std::string format = "text";
};

int Bench(const BenchFlags& flags) {
  absl::StatusOr<std::vector<BenchPoint>> grid = ParseGrid(flags.grid);
  if (!grid.ok()) return Fail("bench", grid.status());
  ops::PrepareThread();
  const ModelOptions model{.fused_kernels = flags.kernels == "fused",
                           .allow_emulation = flags.allow_emulation};
  const absl::StatusOr<std::unique_ptr<LoadedModel>> loaded = LoadModel(flags.bundle, {}, model);
  if (!loaded.ok()) return Fail("bench", loaded.status());
  BenchOptions options;
  options.grid = *std::move(grid);
  options.threads = flags.threads;
  options.duration = absl::Seconds(flags.seconds);
  options.requests = flags.requests;
  options.cached = flags.cached;
  options.split = flags.split;
  options.cold = flags.cold;
  options.seed = flags.seed;
  options.model = model;
  if (isatty(STDERR_FILENO) != 0) {
    options.on_point = [](const BenchPoint& point) {
      std::cerr << "\r\033[K" << point.history << " x " << point.candidates << std::flush;
    };
  }
  const absl::StatusOr<BenchReport> report = RunBench(**loaded, options);
  if (options.on_point) std::cerr << "\r\033[K";
  if (!report.ok()) return Fail("bench", report.status());
  std::cout << (flags.format == "json" ? ToJson(*report) : ToText(*report)) << std::flush;
  return kExitOk;
}

}  // namespace

void AddBenchCommand(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand(
      "bench", "Times the engine on synthetic requests, against the machine's own matrix products");
  command->footer(
      "One line a point: the median time of a request, candidates a second, the multiply-adds that the "
      "layers\n"
      "need counted as 2, what share that is of oneDNN's best matrix product here, and where the time goes:\n"
      "embed (table rows), encode (layers of the user and the history), target attention, tower (layers of\n"
      "candidates, and outputs). Attention is split by timing it with parts left out, one after another:\n"
      "pooling, then the activations, then the layers between the first and the last (second GEMM); pair "
      "GEMM is\n"
      "what remains, with the candidate's weight and the last layer. Of scores other than din only pooling "
      "is\n"
      "split off, if that. Pin it to its cores, as with taskset, on a machine that does nothing else.\n"
      "tests/benchmarks/compare sets it beside ONNX Runtime.");
  auto flags = std::make_shared<BenchFlags>();
  command->add_option("--bundle", flags->bundle, "Folder of a bundle")->required();
  command->add_option("--grid", flags->grid, "HISTORYxCANDIDATES, comma-separated")->capture_default_str();
  command->add_option("--threads", flags->threads, "So many score requests of their own at the same time")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command->add_option("--seconds", flags->seconds, "Time for each point")
      ->check(CLI::Range(0.0, 3600.0))
      ->capture_default_str();
  command->add_option("--requests", flags->requests, "So many different requests in turn at each point")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  command->add_option("--seed", flags->seed, "Of the requests")->capture_default_str();
  command->add_flag("--cached", flags->cached,
                    "Keep each user's state in the user cache, as a server does for the next request");
  command->add_flag("--split", flags->split,
                    "The threads score one request together, by blocks of candidates");
  command->add_flag("--cold", flags->cold, "Sweep the processor's caches before each request");
  command
      ->add_option("--kernels", flags->kernels,
                   "fused (where the CPU has them) or onednn (oneDNN's products alone)")
      ->check(CLI::IsMember({"fused", "onednn"}))
      ->capture_default_str();
  command->add_flag("--allow_emulation", flags->allow_emulation,
                    "Load a bf16 bundle on a CPU without bf16 as well, slowly");
  command->add_option("--format", flags->format, "text (a table) or json, with the time of each layer")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();
  command->callback([flags, &exit_code] { exit_code = Bench(*flags); });
}

}  // namespace dinghy
