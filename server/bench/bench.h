// Times the engine on a bundle over a grid of histories and candidates, against the machine's own ceiling.
//
//   ASSIGN_OR_RETURN(auto loaded, LoadModel("models/din/1", {}));
//   ASSIGN_OR_RETURN(BenchReport report, RunBench(*loaded, {.grid = {{100, 500}}}));
//   std::cout << ToText(report);
//
// Requests are synthetic and encoded already: what is timed is RunModel, nothing around it.
#ifndef DINGHY_SERVER_BENCH_BENCH_H_
#define DINGHY_SERVER_BENCH_BENCH_H_

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "model/loaded_model.h"
#include "model/model_options.h"
#include "server/bench/attention_parts.h"
#include "server/bench/gemm_ceiling.h"

namespace dinghy {

struct BenchPoint {
  int history = 0;
  int candidates = 0;
};

// "50x100,100x500": history x candidates, comma-separated. INVALID_ARGUMENT naming the point that is none.
absl::StatusOr<std::vector<BenchPoint>> ParseGrid(std::string_view text);

struct BenchOptions {
  std::vector<BenchPoint> grid;
  int threads = 1;                             // each scores requests of its own, all at once
  absl::Duration duration = absl::Seconds(1);  // of each point
  int requests = 8;                            // different ones at each point, in turn
  bool cached = false;                         // the state of each user is kept from its request before
  bool split = false;                          // the threads score one request together
  bool cold = false;                           // weights and tables are not in any cache when a request comes
  uint64_t seed = 1;
  ModelOptions model = {};                          // what the model was loaded with
  std::function<void(const BenchPoint&)> on_point;  // called before each; may be empty
};

// Where the time of a request goes.
struct BenchSplit {
  double embed = 0;           // the features' lookup
  double encode = 0;          // layers that see the user and the histories alone
  AttentionShares attention;  // target attention, part by part
  double tower = 0;           // layers of candidates, and the outputs
};

struct BenchLayer {
  std::string name;
  std::string kind;
  double ms = 0;
};

struct BenchResult {
  BenchPoint point;
  int64_t runs = 0;
  double ms = 0;                     // median time of a request
  double candidates_per_second = 0;  // of all threads together
  double gflops = 0;  // work as Model::Layers counts it, without what is kept, of all threads, a second
  double share = 0;   // of the ceiling
  BenchSplit split;   // shares of the request, sum 1
  std::vector<BenchLayer> layers;  // mean time of each in a request
};

struct BenchReport {
  std::string model;
  int64_t version = 0;
  std::string digest;
  std::string numerics_id;
  std::string numerics;
  int threads = 1;
  bool cached = false;
  bool split = false;
  bool cold = false;
  bool fused_kernels = true;
  GemmCeiling ceiling;
  std::vector<BenchResult> results;  // one a point
};

// Work of one request, multiply-adds counted as 2; every sequence holds `point.history` behaviors. Of a
// cached user only what the candidates need.
double FlopsOf(const std::vector<LayerInfo>& layers, const BenchPoint& point, bool cached = false);

// Measures the ceiling first, then point after point. The split comes from runs of its own, so that reading
// the clock slows nothing else. Adds tensors to the bundle (AttentionParts). Errors as SyntheticBatch,
// MeasureGemmCeiling and AttentionParts::Create, before anything is timed.
absl::StatusOr<BenchReport> RunBench(LoadedModel& loaded, const BenchOptions& options);

std::string ToText(const BenchReport& report);
std::string ToJson(const BenchReport& report);

}  // namespace dinghy

#endif  // DINGHY_SERVER_BENCH_BENCH_H_
