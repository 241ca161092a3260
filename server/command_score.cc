// `dinghy score`.
#include <google/protobuf/util/json_util.h>

#include <iostream>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "proto/scoring.grpc.pb.h"
#include "server/client.h"
#include "server/command.h"
#include "server/in_process.h"
#include "server/score_text.h"

namespace dinghy {
namespace {

struct ScoreFlags {
  std::string file = "-";
  std::string server;
  std::string bundle;
  std::string store;
  bool allow_emulation = false;
  std::string format = "json";
  std::optional<uint32_t> explain;
  bool removal = false;
  double timeout = 30;
};

struct Scored {
  v1::ScoreResponse response;
  std::string item_feature;
};

absl::StatusOr<v1::ScoreRequest> ReadRequest(const ScoreFlags& flags) {
  const absl::StatusOr<std::string> text = ReadAll(flags.file);
  if (!text.ok()) return text.status();
  v1::ScoreRequest request;
  const auto parsed = google::protobuf::util::JsonStringToMessage(*text, &request);
  if (!parsed.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(flags.file, ": expected the JSON of a ScoreRequest: ", parsed.message().as_string()));
  }
  if (flags.explain) request.mutable_explain()->set_top_k(*flags.explain);
  if (flags.removal) request.mutable_explain()->set_removal(true);
  return request;
}

absl::StatusOr<Scored> ScoreOnServer(const ScoreFlags& flags, const v1::ScoreRequest& request) {
  const auto channel = Connect(flags.server);
  if (!channel.ok()) return channel.status();
  const auto stub = v1::ScoringService::NewStub(*channel);
  Scored scored;
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(flags.timeout)));
  grpc::Status status = stub->Score(&context, request, &scored.response);
  if (!status.ok()) return CallError(status);
  if (flags.format == "text") {
    v1::GetModelMetadataRequest about;
    about.set_model(scored.response.model());
    about.set_version(scored.response.version());
    grpc::ClientContext about_context;
    v1::ModelMetadata metadata;
    status = stub->GetModelMetadata(&about_context, about, &metadata);
    if (!status.ok()) return CallError(status);
    scored.item_feature = metadata.item_feature();
  }
  return scored;
}

absl::StatusOr<Scored> ScoreInProcess(const ScoreFlags& flags, const v1::ScoreRequest& request) {
  const auto scorer =
      InProcessScorer::Create(flags.bundle, flags.store, {.allow_emulation = flags.allow_emulation});
  if (!scorer.ok()) return scorer.status();
  const int64_t version = (*scorer)->version();
  if (request.version_choice_case() == v1::ScoreRequest::kVersion && request.version() != version) {
    return absl::NotFoundError(
        absl::StrCat("version: expected ", version, " as the bundle's folder says, got ", request.version()));
  }
  absl::StatusOr<v1::ScoreResponse> response = (*scorer)->Score(request);
  if (!response.ok()) return response.status();
  return Scored{*std::move(response), (*scorer)->manifest().item_feature()};
}

int Score(const ScoreFlags& flags) {
  if (flags.server.empty() == flags.bundle.empty()) {
    return Fail("score", absl::InvalidArgumentError("expected one of --server and --bundle"));
  }
  if (!flags.store.empty() && flags.bundle.empty()) {
    return Fail("score", absl::InvalidArgumentError("--store goes with --bundle; a server has its own"));
  }
  const absl::StatusOr<v1::ScoreRequest> request = ReadRequest(flags);
  if (!request.ok()) return Fail("score", request.status());
  const absl::StatusOr<Scored> scored =
      flags.server.empty() ? ScoreInProcess(flags, *request) : ScoreOnServer(flags, *request);
  if (!scored.ok()) return Fail("score", scored.status());
  if (flags.format == "text") {
    std::cout << ScoreText(*request, scored->response, scored->item_feature);
    return kExitOk;
  }
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  std::string json;
  if (const auto printed = google::protobuf::util::MessageToJsonString(scored->response, &json, options);
      !printed.ok()) {
    return Fail("score", absl::InternalError(printed.message().as_string()));
  }
  std::cout << json;
  return kExitOk;
}

}  // namespace

void AddScoreCommand(CLI::App& app, int& exit_code) {
  CLI::App* command =
      app.add_subcommand("score", "Scores one request, on a server or on a bundle in this process");
  auto flags = std::make_shared<ScoreFlags>();
  command->add_option("file", flags->file, "JSON of a ScoreRequest; - is standard input")
      ->capture_default_str();
  command->add_option("--server", flags->server, "host:port; this or --bundle");
  command->add_option("--bundle", flags->bundle, "Folder of a bundle, to score in this process");
  command->add_option("--store", flags->store,
                      "With --bundle: rocksdb:PATH, for histories that are not inline");
  command->add_option("--explain", flags->explain,
                      "Explain each candidate by so many behaviors; default: as requested");
  command->add_flag("--removal", flags->removal,
                    "With --explain: also how the score changes without each of them");
  command->add_option("--format", flags->format, "json (a ScoreResponse) or text (tables)")
      ->check(CLI::IsMember({"json", "text"}))
      ->capture_default_str();
  command->add_option("--timeout", flags->timeout, "Seconds a server may take")->capture_default_str();
  AddAllowEmulation(*command, flags->allow_emulation);
  command->callback([flags, &exit_code] { exit_code = Score(*flags); });
}

}  // namespace dinghy
