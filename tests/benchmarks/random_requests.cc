// Requests of random shapes on several workers: memory levels off, nothing is allocated in steady state, and
// every score has the bits that one thread computes on its own.
//
//   random_requests --bundle models/din/1      # 20,000 requests on 2 workers, a few minutes
//   random_requests --requests 300             # on two small models of its own
//
// Candidates are log-uniform from 1 to 1,000; behaviors 0 in one request of twenty, else log-uniform from 1
// to what the model takes. Each worker scores each of its requests twice: through encoder and model alone,
// where no allocation is allowed, and through Scorer, whose allocations (of the response) are printed. First
// comes a tenth of the requests, in which memory grows, then the largest request that there is on every
// worker, and then the steady state. From 2,000 requests on the resident memory, too, must stay as it is: the
// second half of the steady state may need 1 % more than the first.
//
// Exits with 1 where something fails.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <barrier>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <random>
#include <semaphore>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "model/ops/cpu.h"
#include "server/scorer.h"
#include "server/workers/worker_pool.h"
#include "tests/testing/allocation_counter.h"
#include "tests/testing/random_request.h"
#include "tests/testing/test_bundle.h"

namespace dinghy {
namespace {

constexpr int kMostCandidates = 1000;
constexpr int kOwnMaxLength = 1000;  // of the models that are made here
constexpr int kWaiting = 8;          // requests in the queue of the pool
constexpr int kSamples = 100;        // of the resident memory
constexpr int kLeastForMemory = 2000;
constexpr double kMostGrowth = 0.01;

struct Options {
  int requests = 20'000;
  int workers = 2;
  uint64_t seed = 1;
};

// 1 to `most`; its logarithm is uniform.
int LogUniform(int most, std::mt19937_64& random) {
  const double exponent = std::uniform_real_distribution<double>(0, std::log(most + 1.0))(random);
  return std::clamp(static_cast<int>(std::exp(exponent)), 1, most);
}

int MaxLength(const v1::BundleManifest& manifest) {
  int most = 0;
  for (const v1::Sequence& sequence : manifest.sequences()) {
    most = std::max(most, static_cast<int>(sequence.max_length()));
  }
  return most;
}

RandomRequestOptions ShapeOf(uint64_t seed, int max_length) {
  std::mt19937_64 random(seed);
  RandomRequestOptions shape{.candidates = LogUniform(kMostCandidates, random), .behaviors = 0, .seed = seed};
  const bool none = std::uniform_int_distribution<int>(0, 19)(random) == 0;
  if (!none && max_length > 0) shape.behaviors = LogUniform(max_length, random);
  return shape;
}

// FNV-1a of the scores' bits.
class ScoreHash {
 public:
  void Add(const float* scores, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      uint32_t bits = 0;
      std::memcpy(&bits, &scores[i], sizeof(bits));
      hash_ = (hash_ ^ bits) * 0x100000001b3;
    }
  }
  uint64_t hash() const { return hash_; }

 private:
  uint64_t hash_ = 0xcbf29ce484222325;
};

uint64_t HashOf(const ModelOutputs& outputs) {
  ScoreHash hash;
  for (const std::vector<float>& scores : outputs.scores) hash.Add(scores.data(), scores.size());
  return hash.hash();
}

uint64_t HashOf(const v1::ScoreResponse& response) {
  ScoreHash hash;
  for (const v1::OutputScores& output : response.outputs()) {
    hash.Add(output.scores().data(), output.scores().size());
  }
  return hash.hash();
}

// Of a test's own set-up, or a request that must score: there is no going on.
void Require(const absl::Status& status) {
  if (status.ok()) return;
  std::cerr << status << "\n";
  std::exit(1);
}

uint64_t ScoreByEngine(const LoadedModel& loaded, const v1::ScoreRequest& request, WorkerState& state) {
  Require(loaded.encoder->Encode(request, state.batch, state.notes));
  loaded.model->Score(state.batch, {}, state.scratch, state.outputs);
  return HashOf(state.outputs);
}

double ResidentMiB() {
  std::ifstream file("/proc/self/statm");
  int64_t total = 0, resident = 0;
  file >> total >> resident;
  return static_cast<double>(resident * sysconf(_SC_PAGESIZE)) / (1 << 20);
}

// What the workers find out together.
struct Tally {
  std::atomic<int64_t> engine_allocations = 0;
  std::atomic<int64_t> scorer_allocations = 0;
  std::atomic<int64_t> scored = 0;
  std::atomic<int64_t> wrong = 0;
  std::atomic<int> first_wrong = -1;
};

class Soak {
 public:
  Soak(const LoadedModel& loaded, const Options& options)
      : loaded_(loaded),
        options_(options),
        max_length_(MaxLength(loaded.bundle->manifest)),
        scorer_(nullptr, {}),
        waiting_(kWaiting) {}

  // Whether all went well; prints what came out.
  bool Run() {
    std::printf("%s: %d requests of 1 to %d candidates and 0 to %d behaviors on %d workers\n",
                loaded_.bundle->manifest.name().c_str(), options_.requests, kMostCandidates, max_length_,
                options_.workers);
    ScoreAlone();
    auto pool = WorkerPool::Create({.workers = options_.workers, .queue = kWaiting + options_.workers});
    Require(pool.status());
    const int growing = options_.requests / 10;
    Tally growth;
    ScoreRange(**pool, 0, growing, growth);
    Print("growing", growth, growing);
    ScoreLargest(**pool);
    Tally steady;
    const std::vector<double> memory = ScoreRange(**pool, growing, options_.requests, steady);
    Print("steady state", steady, options_.requests - growing);
    (*pool)->Shutdown();
    bool good = growth.wrong + steady.wrong == 0;
    if (steady.engine_allocations > 0) {
      std::printf("FAILED: expected no allocation by encoder and model in steady state, got %lld\n",
                  static_cast<long long>(steady.engine_allocations));
      good = false;
    }
    return CheckMemory(memory) && good;
  }

 private:
  // The bits of every request's scores as this thread computes them, with memory of its own.
  void ScoreAlone() {
    WorkerState state;
    v1::ScoreRequest request;
    for (int i = 0; i < options_.requests; ++i) {
      MakeRequest(i, request);
      expected_.push_back(ScoreByEngine(loaded_, request, state));
    }
  }

  void MakeRequest(int i, v1::ScoreRequest& request) const {
    FillRandomRequest(*loaded_.bundle, ShapeOf(options_.seed + static_cast<uint64_t>(i), max_length_),
                      request);
  }

  // The resident memory as it went.
  std::vector<double> ScoreRange(WorkerPool& pool, int begin, int end, Tally& tally) {
    std::vector<double> memory;
    for (int i = begin; i < end; ++i) {
      Submit(pool, [this, i, &tally](WorkerState& state) {
        v1::ScoreRequest request;
        MakeRequest(i, request);
        Score(request, state, tally, i);
      });
      if ((i - begin) % std::max(1, (end - begin) / kSamples) == 0) memory.push_back(ResidentMiB());
    }
    Drain();
    memory.push_back(ResidentMiB());
    return memory;
  }

  void Score(const v1::ScoreRequest& request, WorkerState& state, Tally& tally, int index) {
    uint64_t by_engine = 0;
    {
      const AllocationScope scope;
      by_engine = ScoreByEngine(loaded_, request, state);
      tally.engine_allocations += scope.count();
    }
    uint64_t by_scorer = 0;
    {
      const AllocationScope scope;
      const absl::StatusOr<v1::ScoreResponse> response = scorer_.Score(loaded_, request, state, nullptr);
      Require(response.status());
      tally.scorer_allocations += scope.count();
      by_scorer = HashOf(*response);
    }
    ++tally.scored;
    if (index < 0 || (by_engine == expected_[index] && by_scorer == expected_[index])) return;
    ++tally.wrong;
    int none = -1;
    tally.first_wrong.compare_exchange_strong(none, index);
  }

  // The largest request on every worker: each waits for the others, so that none takes two.
  void ScoreLargest(WorkerPool& pool) {
    std::barrier all(options_.workers);
    Tally tally;
    for (int w = 0; w < options_.workers; ++w) {
      Submit(pool, [&](WorkerState& state) {
        all.arrive_and_wait();
        v1::ScoreRequest request;
        FillRandomRequest(*loaded_.bundle, {.candidates = kMostCandidates, .behaviors = max_length_},
                          request);
        Score(request, state, tally, -1);
      });
    }
    Drain();
    Print("the largest on each", tally, options_.workers);
  }

  // Waits for a place in the queue. Scoring and its checks happen on the worker, as do making and freeing the
  // request, so that this thread does not slow them down.
  void Submit(WorkerPool& pool, std::function<void(WorkerState&)> score) {
    waiting_.acquire();
    Require(pool.Submit({.run =
                             [this, score = std::move(score)](WorkerState& state) {
                               score(state);
                               waiting_.release();
                             },
                         .drop = Require}));
  }

  void Drain() {
    for (int i = 0; i < kWaiting; ++i) waiting_.acquire();
    waiting_.release(kWaiting);
  }

  void Print(const char* phase, const Tally& tally, int64_t requests) const {
    std::printf(
        "  %-20s %6lld requests, %.1f MiB; allocations: engine %lld, scorer %.1f a request\n", phase,
        static_cast<long long>(tally.scored), ResidentMiB(), static_cast<long long>(tally.engine_allocations),
        static_cast<double>(tally.scorer_allocations) / static_cast<double>(std::max<int64_t>(requests, 1)));
    if (tally.wrong == 0) return;
    const RandomRequestOptions shape =
        ShapeOf(options_.seed + static_cast<uint64_t>(tally.first_wrong.load()), max_length_);
    std::printf(
        "FAILED: expected the bits of a single thread, got others in %lld requests; the first is request "
        "%d, of %d candidates and %d behaviors\n",
        static_cast<long long>(tally.wrong), tally.first_wrong.load(), shape.candidates, shape.behaviors);
  }

  bool CheckMemory(const std::vector<double>& memory) const {
    const auto middle = memory.begin() + static_cast<ptrdiff_t>(memory.size() / 2);
    const double before = *std::max_element(memory.begin(), middle);
    const double after = *std::max_element(middle, memory.end());
    std::printf("  resident: at most %.1f MiB in the first half of the steady state, %.1f in the second\n",
                before, after);
    if (!kAllocationsCount || options_.requests < kLeastForMemory) return true;
    if (after <= before * (1 + kMostGrowth)) return true;
    std::printf("FAILED: expected the resident memory to grow by at most %.0f %%, got %.1f %%\n",
                100 * kMostGrowth, 100 * (after / before - 1));
    return false;
  }

  const LoadedModel& loaded_;
  const Options options_;
  const int max_length_;
  const Scorer scorer_;
  std::counting_semaphore<> waiting_;
  std::vector<uint64_t> expected_;
};

std::vector<std::string> MakeBundles() {
  const std::string root =
      absl::StrCat(std::filesystem::temp_directory_path().string(), "/random_requests.", getpid());
  std::vector<std::string> folders;
  for (const bool self_attention : {false, true}) {
    const absl::StatusOr<std::string> folder = WriteTestBundle(
        root, {.version = 1 + self_attention, .self_attention = self_attention, .max_length = kOwnMaxLength});
    Require(folder.status());
    folders.push_back(*folder);
  }
  return folders;
}

int Main(int argc, char** argv) {
  Options options;
  std::vector<std::string> bundles;
  CLI::App app{"Scores requests of random shapes on several workers and checks memory and bits"};
  app.add_option("--bundle", bundles, "Folder of a bundle; may be repeated. Default: two small ones");
  app.add_option("--requests", options.requests, "Requests to each model")->check(CLI::Range(1, 1 << 30));
  app.add_option("--workers", options.workers, "Worker threads")->check(CLI::Range(1, 16));
  app.add_option("--seed", options.seed, "Of the requests");
  CLI11_PARSE(app, argc, argv);
  Require(ops::InitializeCpu());
  ops::PrepareThread();
  const bool own = bundles.empty();
  if (own) bundles = MakeBundles();
  bool good = true;
  for (const std::string& bundle : bundles) {
    const auto loaded = LoadModel(bundle, {.max_candidates = kMostCandidates});
    Require(loaded.status());
    good = Soak(**loaded, options).Run() && good;
  }
  if (own) std::filesystem::remove_all(std::filesystem::path(bundles[0]).parent_path().parent_path());
  return good ? 0 : 1;
}

}  // namespace
}  // namespace dinghy

int main(int argc, char** argv) { return dinghy::Main(argc, argv); }
