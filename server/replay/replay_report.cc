// How a replay's report is printed.
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/replay/json_writer.h"
#include "server/replay/replay.h"
#include "server/replay/text_table.h"

namespace dinghy {

std::string ToText(const ReplayReport& report, const ReplayOptions& options) {
  std::string text = absl::StrFormat(
      "%d requests, %d candidates in %.2f s: %.1f requests/s, %.0f candidates/s\n"
      "latency: p50 %.3f ms, p90 %.3f ms, p99 %.3f ms, max %.3f ms (%d %s, %s)\n",
      report.requests, report.candidates, report.seconds, report.requests_per_second,
      report.candidates_per_second, report.p50_ms, report.p90_ms, report.p99_ms, report.max_ms,
      options.concurrency, options.concurrency == 1 ? "caller" : "callers",
      options.rate > 0 ? absl::StrFormat("%g requests/s due", options.rate) : "each at once");
  absl::StrAppend(&text, "histories: ", options.histories_from_store ? "from the store" : "as logged", "\n");
  if (report.not_replayable > 0) {
    absl::StrAppend(&text, "skipped: ", report.not_replayable, " logs that lack a feature\n");
  }
  if (report.requests == 0) absl::StrAppend(&text, "nothing to replay: expected at least 1 log, got 0\n");
  for (const auto& [code, count] : report.errors) absl::StrAppend(&text, "errors: ", count, " ", code, "\n");
  if (!report.first_error.empty()) absl::StrAppend(&text, "  first: ", report.first_error, "\n");
  if (report.misshapen > 0) {
    absl::StrAppend(&text, "answers of another shape: ", report.misshapen,
                    "\n  first: ", report.first_misshapen, "\n");
  }
  if (report.newly_degraded > 0) {
    absl::StrAppend(&text, "newly degraded answers: ", report.newly_degraded,
                    "\n  first: ", report.first_degraded, "\n");
  }
  for (const auto& [warning, count] : report.warnings) {
    absl::StrAppend(&text, "warning on ", count, " answers: ", warning, "\n");
  }
  if (report.other_digest > 0)
    absl::StrAppend(&text, "another bundle digest: ", report.other_digest, " requests\n");
  if (report.other_numerics > 0)
    absl::StrAppend(&text, "another numerics_id: ", report.other_numerics, " requests\n");

  if (!report.comparisons.empty()) {
    TextTable table({"compared with", "rule", "requests", "scores", "bit-equal", "max |difference|", "bad"},
                    2);
    for (const ComparisonReport& row : report.comparisons) {
      const std::string within = absl::StrFormat("within %g", options.tolerance);
      const std::string rule = !row.checked                         ? "not checked"
                               : row.exact_requests == row.requests ? "equal bits"
                               : row.exact_requests == 0            ? within
                                                                    : "equal bits or " + within;
      table.AddRow({row.source, rule, absl::StrCat(row.requests), absl::StrCat(row.scores),
                    absl::StrCat(row.bit_equal), absl::StrFormat("%.2e", row.max_abs_difference),
                    row.checked ? absl::StrCat(row.bad) : "-"});
    }
    absl::StrAppend(&text, "\n", table.ToString());
  }
  for (const ComparisonReport& row : report.comparisons) {
    if (!row.first.has_value() || !row.checked) continue;
    const Difference& first = *row.first;
    absl::StrAppendFormat(&text,
                          "first bad score: log %d (request \"%s\"), output \"%s\", candidate %d:\n  "
                          "expected %.9g (%s), got %.9g\n",
                          first.log, first.request_id, first.output, first.candidate, first.expected,
                          first.source, first.got);
  }
  absl::StrAppend(&text, Failed(report, options) ? "FAILED\n" : "OK\n");
  return text;
}

std::string ToJson(const ReplayReport& report, const ReplayOptions& options) {
  JsonWriter json;
  json.BeginObject()
      .Field("ok", !Failed(report, options))
      .Field("requests", report.requests)
      .Field("candidates", report.candidates)
      .Field("not_replayable", report.not_replayable)
      .Field("histories", options.histories_from_store ? "store" : "as_logged")
      .Field("concurrency", int64_t{options.concurrency})
      .Field("rate", options.rate)
      .Field("tolerance", options.tolerance);
  json.BeginObject("errors");
  for (const auto& [code, count] : report.errors) json.Field(code, count);
  json.EndObject()
      .Field("first_error", report.first_error)
      .Field("misshapen", report.misshapen)
      .Field("first_misshapen", report.first_misshapen)
      .Field("newly_degraded", report.newly_degraded)
      .Field("first_degraded", report.first_degraded)
      .BeginArray("warnings");
  for (const auto& [warning, count] : report.warnings) {
    json.BeginObject().Field("warning", warning).Field("requests", count).EndObject();
  }
  json.EndArray()
      .Field("other_digest", report.other_digest)
      .Field("other_numerics", report.other_numerics)
      .BeginArray("comparisons");
  for (const ComparisonReport& row : report.comparisons) {
    json.BeginObject()
        .Field("source", row.source)
        .Field("checked", row.checked)
        .Field("requests", row.requests)
        .Field("exact_requests", row.exact_requests)
        .Field("scores", row.scores)
        .Field("bit_equal", row.bit_equal)
        .Field("max_abs_difference", row.max_abs_difference)
        .Field("bad", row.bad);
    if (row.first.has_value()) {
      json.BeginObject("first_bad")
          .Field("log", row.first->log)
          .Field("request_id", row.first->request_id)
          .Field("output", row.first->output)
          .Field("candidate", int64_t{row.first->candidate})
          .Field("expected", static_cast<double>(row.first->expected))
          .Field("got", static_cast<double>(row.first->got))
          .EndObject();
    }
    json.EndObject();
  }
  json.EndArray()
      .Field("seconds", report.seconds)
      .Field("requests_per_second", report.requests_per_second)
      .Field("candidates_per_second", report.candidates_per_second)
      .BeginObject("latency_ms")
      .Field("p50", report.p50_ms)
      .Field("p90", report.p90_ms)
      .Field("p99", report.p99_ms)
      .Field("max", report.max_ms)
      .EndObject()
      .EndObject();
  return json.ToString();
}

}  // namespace dinghy
