// Drives a server with requests whose histories lie in the server's store, and times them.
//
//   service_client --server 127.0.0.1:8500 --bundle models/din/1 --history 100 --candidates 500 --in_flight 4
//
// Appends a history of random behaviors for each of a few users, then keeps that many requests in flight for
// a while, from one thread, and prints one JSON object: requests, seconds, and the percentiles of the time
// from sending a request to its answer. `--bundle` is the folder that the server serves; it is only read for
// its features.
//
// Exits with 1 where a call fails or an answer is not what was asked for: all scores, from a whole history
// of the store.
#include <grpcpp/grpcpp.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "model/bundle.h"
#include "proto/behavior.grpc.pb.h"
#include "proto/scoring.grpc.pb.h"
#include "server/client.h"
#include "tests/testing/random_request.h"

namespace dinghy {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kUsers = 32;
constexpr int kWarmUps = 2 * kUsers;  // requests before the time runs

struct Options {
  std::string server;
  std::string bundle;
  int history = 100;
  int candidates = 500;
  int in_flight = 1;
  bool poll = false;
  double seconds = 1;
};

// Behavior `row` of `data`, as the store keeps it.
v1::Event EventOf(const v1::BundleManifest& manifest, const v1::Sequence& sequence,
                  const v1::SequenceData& data, int row) {
  v1::Event event;
  event.set_event_time_ms(data.event_time_ms(row));
  event.set_action(sequence.actions(0));
  for (const v1::Column& column : data.columns()) {
    const bool item = column.feature() == manifest.item_feature();
    if (item && column.has_ints()) {
      event.set_item_id(column.ints().values(row));
    } else if (item) {
      event.set_item_key(column.strings().values(row));
    } else if (column.has_floats()) {
      const int width = column.lengths().empty() ? 1 : static_cast<int>(column.lengths(row));
      for (int i = row * width; i < (row + 1) * width; ++i) {
        v1::EventValue& value = *event.add_values();
        value.set_name(column.feature());
        value.set_number(column.floats().values(i));
      }
    } else {
      v1::EventValue& value = *event.add_values();
      value.set_name(column.feature());
      if (column.has_ints()) value.set_integer(column.ints().values(row));
      if (column.has_strings()) value.set_text(column.strings().values(row));
    }
  }
  return event;
}

// Moves the histories of `request` into the server's store.
absl::Status MoveHistories(const v1::BundleManifest& manifest, v1::BehaviorService::Stub& behaviors,
                           v1::ScoreRequest& request) {
  v1::AppendRequest append;
  for (int s = 0; s < manifest.sequences_size(); ++s) {
    for (int row = 0; row < request.sequences(s).event_time_ms_size(); ++row) {
      v1::Event& event = *append.add_events();
      event = EventOf(manifest, manifest.sequences(s), request.sequences(s), row);
      event.set_user_id(request.user_id());
      event.set_event_id(static_cast<uint64_t>(s));
    }
  }
  request.clear_sequences();
  grpc::ClientContext context;
  v1::AppendResponse response;
  const grpc::Status status = behaviors.Append(&context, append, &response);
  return status.ok() ? absl::OkStatus() : CallError(status);
}

struct Call {
  std::unique_ptr<grpc::ClientContext> context;
  Clock::time_point sent;
  v1::ScoreResponse response;
  grpc::Status status;
  std::unique_ptr<grpc::ClientAsyncResponseReader<v1::ScoreResponse>> reader;
};

// Keeps requests in flight, all from one thread.
class Driver {
 public:
  Driver(v1::ScoringService::Stub& stub, const std::vector<v1::ScoreRequest>& requests,
         const Options& options)
      : stub_(stub), requests_(requests), options_(options) {}

  // Sends at least `count` requests, for at least `seconds`; `latencies` gets a value for each, in seconds.
  absl::Status Run(int count, double seconds, std::vector<double>& latencies) {
    std::vector<Call> calls(options_.in_flight);
    absl::Status failed;
    int open = 0;
    const Clock::time_point end =
        Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
    for (Call& call : calls) {
      Send(call);
      ++open;
    }
    while (open > 0) {
      void* tag = nullptr;
      bool ok = false;
      if (options_.poll) {
        while (queue_.AsyncNext(&tag, &ok, gpr_inf_past(GPR_CLOCK_MONOTONIC)) !=
               grpc::CompletionQueue::GOT_EVENT) {
        }
      } else {
        queue_.Next(&tag, &ok);
      }
      Call& call = *static_cast<Call*>(tag);
      --open;
      const Clock::time_point now = Clock::now();
      latencies.push_back(std::chrono::duration<double>(now - call.sent).count());
      if (absl::Status status = Check(call); !status.ok()) failed = status;
      if (failed.ok() && (now < end || latencies.size() < static_cast<size_t>(count))) {
        Send(call);
        ++open;
      }
    }
    return failed;
  }

 private:
  void Send(Call& call) {
    call.context = std::make_unique<grpc::ClientContext>();
    call.context->set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
    call.sent = Clock::now();
    call.reader = stub_.AsyncScore(call.context.get(), requests_[next_], &queue_);
    call.reader->Finish(&call.response, &call.status, &call);
    next_ = (next_ + 1) % requests_.size();
  }

  absl::Status Check(const Call& call) const {
    if (!call.status.ok()) return CallError(call.status);
    const v1::ScoreResponse& response = call.response;
    bool whole = response.outputs_size() > 0 && response.degradations().empty();
    for (const v1::OutputScores& output : response.outputs()) {
      whole = whole && output.scores_size() == options_.candidates;
    }
    for (const v1::HistoryUse& use : response.history()) {
      whole = whole && use.source() == v1::STORE && use.length() == static_cast<uint32_t>(options_.history);
    }
    if (whole) return absl::OkStatus();
    return absl::InternalError(absl::StrCat("expected ", options_.candidates, " scores from ",
                                            options_.history, " behaviors of the store, got ",
                                            response.ShortDebugString().substr(0, 500)));
  }

  v1::ScoringService::Stub& stub_;
  const std::vector<v1::ScoreRequest>& requests_;
  const Options& options_;
  grpc::CompletionQueue queue_;
  size_t next_ = 0;
};

double Percentile(const std::vector<double>& sorted, double share) {
  return sorted[static_cast<size_t>(share * static_cast<double>(sorted.size() - 1))];
}

absl::Status Run(const Options& options) {
  const auto bundle = OpenBundle(options.bundle);
  if (!bundle.ok()) return bundle.status();
  const auto channel = Connect(options.server);
  if (!channel.ok()) return channel.status();
  const auto behaviors = v1::BehaviorService::NewStub(*channel);
  const auto scoring = v1::ScoringService::NewStub(*channel);

  std::vector<v1::ScoreRequest> requests(kUsers);
  for (int u = 0; u < kUsers; ++u) {
    FillRandomRequest(**bundle,
                      {.candidates = options.candidates,
                       .behaviors = options.history,
                       .seed = static_cast<uint64_t>(u + 1)},
                      requests[u]);
    requests[u].set_model((*bundle)->manifest.name());
    requests[u].set_user_id(absl::StrCat("user-", options.history, "-", u));
    if (absl::Status status = MoveHistories((*bundle)->manifest, *behaviors, requests[u]); !status.ok()) {
      return status;
    }
  }

  Driver driver(*scoring, requests, options);
  std::vector<double> latencies;
  if (absl::Status status = driver.Run(kWarmUps, 0, latencies); !status.ok()) return status;
  const size_t warm_ups = latencies.size();
  latencies.clear();
  const Clock::time_point begin = Clock::now();
  if (absl::Status status = driver.Run(kUsers, options.seconds, latencies); !status.ok()) return status;
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  std::sort(latencies.begin(), latencies.end());
  absl::PrintF(
      "{\"warm_ups\": %d, \"requests\": %d, \"seconds\": %.6f, \"p50_us\": %.1f, \"p99_us\": %.1f}\n",
      warm_ups, latencies.size(), seconds, 1e6 * Percentile(latencies, 0.5),
      1e6 * Percentile(latencies, 0.99));
  return absl::OkStatus();
}

}  // namespace
}  // namespace dinghy

int main(int argc, char** argv) {
  dinghy::Options options;
  CLI::App app("Drives a server with requests whose histories lie in its store, and times them.");
  app.add_option("--server", options.server, "host:port")->required();
  app.add_option("--bundle", options.bundle, "folder of the bundle that the server serves")->required();
  app.add_option("--history", options.history, "behaviors of each user")->check(CLI::Range(0, 100'000));
  app.add_option("--candidates", options.candidates)->check(CLI::Range(1, 100'000));
  app.add_option("--in_flight", options.in_flight, "requests at a time")->check(CLI::Range(1, 64));
  app.add_flag("--poll", options.poll,
               "poll for answers: the time this core takes to wake up does not count");
  app.add_option("--seconds", options.seconds)->check(CLI::Range(0.0, 600.0));
  CLI11_PARSE(app, argc, argv);
  if (absl::Status status = dinghy::Run(options); !status.ok()) {
    std::cerr << "service_client: " << status.message() << "\n";
    return 1;
  }
  return 0;
}
