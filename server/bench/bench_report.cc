// How a report of `dinghy bench` is printed.
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/bench/bench.h"
#include "server/replay/json_writer.h"
#include "server/replay/text_table.h"

namespace dinghy {
namespace {

std::string Percent(double share) { return absl::StrFormat("%.1f %%", 100 * share); }

}  // namespace

std::string ToText(const BenchReport& report) {
  std::string text = absl::StrFormat(
      "%s version %d, %d %s%s, %scaches %s, kernels %s\n%s\n"
      "ceiling: %.1f f32 GFLOP/s, oneDNN's %d x %d x %d matrix product on %s\n\n",
      report.model, report.version, report.threads, report.threads == 1 ? "thread" : "threads",
      report.split ? " on each request together" : "", report.cached ? "users cached, " : "",
      report.cold ? "cold" : "warm", report.fused_kernels ? "fused" : "onednn", report.numerics,
      report.ceiling.gflops, report.ceiling.size, report.ceiling.size, report.ceiling.size,
      report.threads == 1 ? "one thread" : "each thread");
  TextTable table({"history", "candidates", "ms", "candidates/s", "GFLOP/s", "of ceiling", "embed", "encode",
                   "pair GEMM", "second GEMM", "activation", "pooling", "tower"},
                  0);
  for (const BenchResult& result : report.results) {
    table.AddRow({absl::StrCat(result.point.history), absl::StrCat(result.point.candidates),
                  absl::StrFormat("%.3f", result.ms), absl::StrFormat("%.0f", result.candidates_per_second),
                  absl::StrFormat("%.1f", result.gflops), Percent(result.share), Percent(result.split.embed),
                  Percent(result.split.encode), Percent(result.split.attention.pair_gemm),
                  Percent(result.split.attention.second_gemm), Percent(result.split.attention.activation),
                  Percent(result.split.attention.pooling), Percent(result.split.tower)});
  }
  return text + table.ToString();
}

std::string ToJson(const BenchReport& report) {
  JsonWriter json;
  json.BeginObject()
      .Field("model", report.model)
      .Field("version", report.version)
      .Field("digest", report.digest)
      .Field("numerics_id", report.numerics_id)
      .Field("numerics", report.numerics)
      .Field("threads", static_cast<int64_t>(report.threads))
      .Field("cached", report.cached)
      .Field("split", report.split)
      .Field("cold", report.cold)
      .Field("kernels", report.fused_kernels ? "fused" : "onednn")
      .Field("ceiling_gflops", report.ceiling.gflops)
      .Field("ceiling_size", report.ceiling.size)
      .BeginArray("points");
  for (const BenchResult& result : report.results) {
    json.BeginObject()
        .Field("history", static_cast<int64_t>(result.point.history))
        .Field("candidates", static_cast<int64_t>(result.point.candidates))
        .Field("runs", result.runs)
        .Field("ms", result.ms)
        .Field("candidates_per_s", result.candidates_per_second)
        .Field("gflops", result.gflops)
        .Field("share_of_ceiling", result.share)
        .BeginObject("split")
        .Field("embed", result.split.embed)
        .Field("encode", result.split.encode)
        .Field("pair_gemm", result.split.attention.pair_gemm)
        .Field("second_gemm", result.split.attention.second_gemm)
        .Field("activation", result.split.attention.activation)
        .Field("pooling", result.split.attention.pooling)
        .Field("tower", result.split.tower)
        .EndObject()
        .BeginArray("layers");
    for (const BenchLayer& layer : result.layers) {
      json.BeginObject()
          .Field("name", layer.name)
          .Field("kind", layer.kind)
          .Field("ms", layer.ms)
          .EndObject();
    }
    json.EndArray().EndObject();
  }
  json.EndArray().EndObject();
  return json.ToString();
}

}  // namespace dinghy
