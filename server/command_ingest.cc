// `dinghy ingest`.
#include <unistd.h>

#include <chrono>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "features/behavior/ingest.h"
#include "proto/behavior.grpc.pb.h"
#include "server/client.h"
#include "server/command.h"
#include "server/config.h"

namespace dinghy {
namespace {

struct IngestFlags {
  std::string server;
  std::string store;
  std::string format = "auto";
  int batch = 1000;
  bool skip_bad = false;
  std::vector<std::string> files;
};

// Where the events go, and what has to live meanwhile.
struct Target {
  std::unique_ptr<BehaviorStore> store;
  std::unique_ptr<v1::BehaviorService::Stub> stub;

  absl::StatusOr<AppendResult> Append(absl::Span<const v1::Event> events) const {
    if (store != nullptr) return store->Append(events);
    v1::AppendRequest request;
    request.mutable_events()->Add(events.begin(), events.end());
    v1::AppendResponse response;
    grpc::ClientContext context;
    const grpc::Status status = stub->Append(&context, request, &response);
    if (!status.ok()) return CallError(status);
    AppendResult result;
    result.appended = static_cast<int64_t>(response.appended());
    result.duplicates = static_cast<int64_t>(response.duplicates());
    return result;
  }
};

absl::StatusOr<Target> OpenTarget(const IngestFlags& flags) {
  Target target;
  if (!flags.server.empty()) {
    auto channel = Connect(flags.server);
    if (!channel.ok()) return channel.status();
    target.stub = v1::BehaviorService::NewStub(*channel);
    return target;
  }
  const absl::StatusOr<v1::StoreConfig> config = ParseStore(flags.store);
  if (!config.ok()) return config.status();
  if (config->has_memory()) {
    return absl::InvalidArgumentError(
        "--store: expected rocksdb:PATH; what is in memory ends with this command");
  }
  auto store = OpenStore(*config);
  if (!store.ok()) return store.status();
  target.store = *std::move(store);
  return target;
}

std::string Describe(const IngestCounts& counts) {
  std::string text = absl::StrFormat("%d events read, %d appended, %d there already", counts.read,
                                     counts.appended, counts.duplicates);
  if (counts.bad_lines > 0) absl::StrAppend(&text, ", ", counts.bad_lines, " bad lines skipped");
  return text;
}

int Ingest(const IngestFlags& flags) {
  if (flags.server.empty() == flags.store.empty()) {
    return Fail("ingest", absl::InvalidArgumentError("expected one of --server and --store"));
  }
  const absl::StatusOr<Target> target = OpenTarget(flags);
  if (!target.ok()) return Fail("ingest", target.status());

  IngestCounts counts;
  IngestOptions options;
  options.format = flags.format == "jsonl" ? EventFormat::kJsonl
                   : flags.format == "tsv" ? EventFormat::kTsv
                                           : EventFormat::kAuto;
  options.batch_size = flags.batch;
  options.skip_bad = flags.skip_bad;
  options.on_bad_line = [](const absl::Status& status) {
    std::cerr << "dinghy ingest: skipped: " << status.message() << std::endl;
  };
  const bool terminal = isatty(STDERR_FILENO) != 0;
  auto shown = std::chrono::steady_clock::now();
  if (terminal) {
    options.on_progress = [&shown](const IngestCounts& so_far) {
      const auto now = std::chrono::steady_clock::now();
      if (now - shown < std::chrono::milliseconds(200)) return;
      shown = now;
      std::cerr << "\r" << Describe(so_far) << std::flush;
    };
  }
  const auto append = [&](absl::Span<const v1::Event> events) { return target->Append(events); };
  absl::Status status;
  for (const std::string& file : flags.files) {
    status = IngestFile(file, options, append, counts);
    if (!status.ok()) break;
  }
  if (terminal) std::cerr << "\r\033[K";
  std::cout << Describe(counts) << std::endl;
  return status.ok() ? kExitOk : Fail("ingest", status);
}

}  // namespace

void AddIngestCommand(CLI::App& app, int& exit_code) {
  CLI::App* command =
      app.add_subcommand("ingest", "Puts behavior events into a store, directly or through a server");
  auto flags = std::make_shared<IngestFlags>();
  command->add_option("--server", flags->server, "host:port of a server with a store");
  command->add_option("--store", flags->store, "rocksdb:PATH, not open in a server at the same time");
  command->add_option("--format", flags->format, "auto (by name or first line), jsonl or tsv")
      ->check(CLI::IsMember({"auto", "jsonl", "tsv"}))
      ->capture_default_str();
  command->add_option("--batch", flags->batch, "Events per append")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  command->add_flag("--skip_bad", flags->skip_bad,
                    "Name bad lines and go on; otherwise the first one ends the run");
  command->add_option("files", flags->files, "JSON lines of Event, or TSV with a header; - is standard input")
      ->required();
  command->footer(
      "A line of JSON is one Event of proto/behavior.proto:\n"
      "  {\"userId\": \"alice\", \"eventTimeMs\": \"1546300800000\", \"itemId\": \"7\", \"action\": "
      "\"click\"}\n"
      "The header of a TSV names its columns, in any order:\n"
      "  user_id, event_time_ms, action  needed\n"
      "  item_id, item_key               an integer, a text; a row has exactly one of them\n"
      "  event_id                        tells events of one millisecond apart; default: by the row\n"
      "                                  and its content\n"
      "  ingest_time_ms                  default: now\n"
      "  <name>:int|float|string         another value of the event; a cell may be empty");
  command->callback([flags, &exit_code] { exit_code = Ingest(*flags); });
}

}  // namespace dinghy
