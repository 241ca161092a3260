#include "server/bench/bench.h"

#include <unistd.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "model/ops/cpu.h"
#include "server/bench/synthetic_batch.h"
#include "server/bench/timed_runs.h"
#include "server/workers/run_model.h"
#include "server/workers/worker_pool.h"

namespace dinghy {
namespace {

constexpr int kMost = 1'000'000;     // of behaviors and of candidates
constexpr double kSplitTime = 0.25;  // of a point's duration

constexpr size_t kUserCacheBytes = size_t{8} << 30;

// One thread's requests and memory.
class Worker {
 public:
  // Others help where `pool` is not null, which must outlive the worker.
  Worker(const LoadedModel& loaded, std::vector<FeatureBatch> batches, size_t steps, bool cached,
         WorkerPool* pool)
      : loaded_(loaded), batches_(std::move(batches)), step_seconds_(steps) {
    if (pool != nullptr) {
      state_.share = [this, pool](int blocks, WorkerState::BlockTask task) {
        pool->Share(blocks, state_.scratch, task);
      };
    }
    if (!cached) return;
    cache_ = std::make_unique<UserCache>(kUserCacheBytes);
    for (size_t i = 0; i < batches_.size(); ++i) Score();
  }

  void Score() { Score({}); }

  void ScoreByTheClock() {
    ModelScoreOptions options;
    options.step_seconds = absl::MakeSpan(step_seconds_);
    Score(options);
    ++clocked_;
  }

  const std::vector<FeatureBatch>& batches() const { return batches_; }

  // Of all calls of ScoreByTheClock together.
  const std::vector<double>& step_seconds() const { return step_seconds_; }
  int64_t clocked() const { return clocked_; }

 private:
  void Score(const ModelScoreOptions& options) {
    RunModel(loaded_, batches_[next_], options, cache_.get(), state_);
    next_ = (next_ + 1) % batches_.size();
  }

  const LoadedModel& loaded_;
  const std::vector<FeatureBatch> batches_;
  size_t next_ = 0;
  std::vector<double> step_seconds_;
  int64_t clocked_ = 0;
  std::unique_ptr<UserCache> cache_;
  WorkerState state_;
};

// Writes over so much memory that nothing else is left in the caches.
class CacheSweep {
 public:
  CacheSweep() {
    const int64_t last_level = sysconf(_SC_LEVEL3_CACHE_SIZE);
    memory_.resize(2 * std::clamp(last_level, kLeast, kMostBytes));
  }

  void Run() {
    for (size_t i = 0; i < memory_.size(); i += 64) ++memory_[i];
  }

 private:
  static constexpr int64_t kLeast = int64_t{32} << 20;
  static constexpr int64_t kMostBytes = int64_t{512} << 20;
  std::vector<unsigned char> memory_;
};

absl::StatusOr<std::vector<FeatureBatch>> MakeBatches(const LoadedModel& loaded, const BenchPoint& point,
                                                      int thread, const BenchOptions& options) {
  const absl::StatusOr<std::vector<int64_t>> table_rows = TableRows(*loaded.bundle);
  if (!table_rows.ok()) return table_rows.status();
  std::vector<FeatureBatch> batches;
  for (int request = 0; request < options.requests; ++request) {
    absl::StatusOr<FeatureBatch> batch =
        SyntheticBatch(loaded.bundle->manifest, *table_rows,
                       {.history = point.history,
                        .candidates = point.candidates,
                        .seed = options.seed + static_cast<uint64_t>(thread * options.requests + request)});
    if (!batch.ok()) return batch.status();
    batches.push_back(*std::move(batch));
  }
  return batches;
}

void WriteSplit(const std::vector<LayerInfo>& layers, const std::vector<std::unique_ptr<Worker>>& workers,
                const std::map<int, AttentionShares>& attention, BenchResult& result) {
  std::vector<double> step_seconds(workers[0]->step_seconds().size());
  double requests = 0;
  for (const std::unique_ptr<Worker>& worker : workers) {
    for (size_t s = 0; s < step_seconds.size(); ++s) step_seconds[s] += worker->step_seconds()[s];
    requests += static_cast<double>(worker->clocked());
  }
  const double all = std::accumulate(step_seconds.begin(), step_seconds.end(), 0.0);
  BenchSplit& split = result.split;
  split.embed = step_seconds.front() / all;
  split.tower = step_seconds.back() / all;
  for (size_t i = 0; i < layers.size(); ++i) {
    const double seconds = step_seconds[ModelScoreOptions::kFirstLayerStep + i];
    const double share = seconds / all;
    if (const auto parts = attention.find(static_cast<int>(i)); parts != attention.end()) {
      split.attention.pair_gemm += share * parts->second.pair_gemm;
      split.attention.second_gemm += share * parts->second.second_gemm;
      split.attention.activation += share * parts->second.activation;
      split.attention.pooling += share * parts->second.pooling;
    } else {
      (layers[i].level == v1::CANDIDATE ? split.tower : split.encode) += share;
    }
    result.layers.push_back({.name = layers[i].name, .kind = layers[i].kind, .ms = seconds / requests * 1e3});
  }
}

// One thread's: the parts' shares hardly depend on what others do.
std::map<int, AttentionShares> TimeAttentionParts(const std::vector<FeatureBatch>& batches,
                                                  const BenchOptions& options, AttentionParts& parts) {
  TimedRuns(1, options.duration * kSplitTime, [&](int) {
    std::function<void()> prepare;
    if (options.cold) prepare = [sweep = std::make_shared<CacheSweep>()] { sweep->Run(); };
    return TimedWork{.run = [&, prepare, next = size_t{0}]() mutable {
      parts.Run(batches[next++ % batches.size()], prepare);
    }};
  });
  return parts.TakeShares();
}

absl::StatusOr<BenchResult> RunPoint(const LoadedModel& loaded, const BenchPoint& point, double ceiling,
                                     const BenchOptions& options, AttentionParts& parts) {
  const std::vector<LayerInfo> layers = loaded.model->Layers();
  std::unique_ptr<WorkerPool> helpers;
  if (options.split && options.threads > 1) {
    auto pool = WorkerPool::Create({.workers = options.threads - 1});
    if (!pool.ok()) return pool.status();
    helpers = *std::move(pool);
  }
  const int threads = options.split ? 1 : options.threads;  // that have requests
  std::vector<std::unique_ptr<Worker>> workers;
  for (int thread = 0; thread < threads; ++thread) {
    absl::StatusOr<std::vector<FeatureBatch>> batches = MakeBatches(loaded, point, thread, options);
    if (!batches.ok()) return batches.status();
    workers.push_back(std::make_unique<Worker>(loaded, *std::move(batches),
                                               ModelScoreOptions::kFirstLayerStep + layers.size() + 1,
                                               options.cached, helpers.get()));
  }
  const auto run = [&](absl::Duration duration, void (Worker::*score)()) {
    return TimedRuns(threads, duration, [&](int thread) {
      TimedWork work{.run = [worker = workers[thread].get(), score] { (worker->*score)(); },
                     .prepare = nullptr};
      if (options.cold) work.prepare = [sweep = std::make_shared<CacheSweep>()] { sweep->Run(); };
      return work;
    });
  };
  const std::vector<double> seconds = run(options.duration, &Worker::Score);
  run(options.duration * kSplitTime, &Worker::ScoreByTheClock);

  BenchResult result;
  result.point = point;
  result.runs = static_cast<int64_t>(seconds.size());
  const double median = Median(seconds);
  result.ms = median * 1e3;
  result.candidates_per_second = threads * point.candidates / median;
  result.gflops = threads * FlopsOf(layers, point, options.cached) / median * 1e-9;
  result.share = result.gflops / ceiling;
  WriteSplit(layers, workers, TimeAttentionParts(workers[0]->batches(), options, parts), result);
  return result;
}

}  // namespace

absl::StatusOr<std::vector<BenchPoint>> ParseGrid(std::string_view text) {
  std::vector<BenchPoint> grid;
  for (const absl::string_view part : absl::StrSplit(absl::string_view(text.data(), text.size()), ',')) {
    const std::vector<absl::string_view> numbers = absl::StrSplit(part, 'x');
    BenchPoint point;
    if (numbers.size() != 2 || !absl::SimpleAtoi(numbers[0], &point.history) ||
        !absl::SimpleAtoi(numbers[1], &point.candidates) || point.history < 0 || point.history > kMost ||
        point.candidates < 1 || point.candidates > kMost) {
      return absl::InvalidArgumentError(absl::StrCat(
          "grid: expected HISTORYxCANDIDATES such as 50x100, comma-separated, got \"", part, "\""));
    }
    grid.push_back(point);
  }
  return grid;
}

double FlopsOf(const std::vector<LayerInfo>& layers, const BenchPoint& point, bool cached) {
  const double history = point.history;
  const double candidates = point.candidates;
  double flops = 0;
  for (const LayerInfo& layer : layers) {
    flops += candidates * (layer.flops_candidate + layer.flops_pair * history);
    if (cached) continue;
    flops += layer.flops_user + history * (layer.flops_behavior + layer.flops_behavior_pair * history);
  }
  return flops;
}

absl::StatusOr<BenchReport> RunBench(LoadedModel& loaded, const BenchOptions& options) {
  for (const BenchPoint& point : options.grid) {
    BenchOptions one = options;
    one.requests = 1;
    const absl::StatusOr<std::vector<FeatureBatch>> fits = MakeBatches(loaded, point, 0, one);
    if (!fits.ok()) return fits.status();
  }
  const absl::StatusOr<std::unique_ptr<AttentionParts>> parts =
      AttentionParts::Create(*loaded.bundle, options.model);
  if (!parts.ok()) return parts.status();
  BenchReport report;
  report.model = loaded.bundle->manifest.name();
  report.version = loaded.bundle->version;
  report.digest = loaded.bundle->digest;
  report.numerics_id = loaded.model->numerics_id();
  report.numerics = ops::NumericsDescription();
  report.threads = options.threads;
  report.cached = options.cached;
  report.split = options.split;
  report.cold = options.cold;
  report.fused_kernels = options.model.fused_kernels;
  const absl::StatusOr<GemmCeiling> ceiling = MeasureGemmCeiling({.threads = options.threads});
  if (!ceiling.ok()) return ceiling.status();
  report.ceiling = *ceiling;
  for (const BenchPoint& point : options.grid) {
    if (options.on_point) options.on_point(point);
    absl::StatusOr<BenchResult> result = RunPoint(loaded, point, report.ceiling.gflops, options, **parts);
    if (!result.ok()) return result.status();
    report.results.push_back(*std::move(result));
  }
  return report;
}

}  // namespace dinghy
