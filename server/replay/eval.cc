#include "server/replay/eval.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/replay/json_writer.h"
#include "server/replay/metrics.h"
#include "server/replay/text_table.h"

namespace dinghy {
namespace {

absl::Status Bad(int64_t index, const v1::ScoreLog& log, const std::string& what) {
  return absl::InvalidArgumentError(
      absl::StrCat("log ", index, " (request \"", log.request().request_id(), "\"): ", what));
}

// Whether `scores` fits the log, and no other series has taken its name.
absl::Status CheckScores(int64_t index, const v1::ScoreLog& log, const v1::OutputScores& scores,
                         const std::string& source, const v1::Labels* labels,
                         std::set<std::pair<std::string, std::string>>& seen) {
  const std::string name = absl::StrCat("scores of output \"", scores.output(), "\" from ",
                                        source.empty() ? kServed : "\"" + source + "\"");
  if (!seen.emplace(scores.output(), source).second) return Bad(index, log, name + ": are there twice");
  if (labels != nullptr && labels->values_size() != scores.scores_size()) {
    return Bad(index, log,
               absl::StrCat(name, ": expected ", labels->values_size(), " as there are labels, got ",
                            scores.scores_size()));
  }
  for (int i = 0; i < scores.scores_size(); ++i) {
    if (!std::isfinite(scores.scores(i))) {
      return Bad(index, log,
                 absl::StrCat(name, ": candidate ", i, ": expected a finite score, got ", scores.scores(i)));
    }
  }
  return absl::OkStatus();
}

std::string Number(std::optional<double> value) {
  return value.has_value() ? absl::StrFormat("%.6f", *value) : "-";
}

// A difference with its sign; what rounds to zero is not negative.
std::string Signed(double value) {
  std::string text = absl::StrFormat("%+.6f", value);
  return text == "-0.000000" ? "+0.000000" : text;
}

std::string Small(std::optional<double> value) {
  return value.has_value() ? absl::StrFormat("%.2e", *value) : "-";
}

}  // namespace

absl::Status Evaluator::Add(const v1::ScoreLog& log) {
  std::map<std::string, const v1::Labels*> labels;
  for (const v1::Labels& of_output : log.labels()) {
    const std::string name = absl::StrCat("labels of output \"", of_output.output(), "\"");
    if (!labels.emplace(of_output.output(), &of_output).second)
      return Bad(logs_, log, name + ": are there twice");
    for (int i = 0; i < of_output.values_size(); ++i) {
      const float label = of_output.values(i);
      if (label != 0 && label != 1 && !std::isnan(label)) {
        return Bad(logs_, log, absl::StrCat(name, ": candidate ", i, ": expected 0, 1 or NaN, got ", label));
      }
    }
  }
  std::map<std::string, const v1::OutputScores*> served;
  std::vector<std::pair<const v1::OutputScores*, std::string>> all;
  for (const v1::OutputScores& scores : log.outputs()) {
    served[scores.output()] = &scores;
    all.emplace_back(&scores, "");
  }
  for (const v1::OutputScores& scores : log.references()) {
    if (scores.source().empty()) {
      return Bad(logs_, log,
                 absl::StrCat("reference scores of output \"", scores.output(), "\": name no source"));
    }
    all.emplace_back(&scores, scores.source());
  }
  // First all checks: a bad log must not be counted in part.
  std::set<std::pair<std::string, std::string>> seen;
  for (const auto& [scores, source] : all) {
    const auto of_output = labels.find(scores->output());
    const v1::Labels* const known = of_output == labels.end() ? nullptr : of_output->second;
    if (absl::Status status = CheckScores(logs_, log, *scores, source, known, seen); !status.ok())
      return status;
    const auto other = served.find(scores->output());
    if (other != served.end() && other->second->scores_size() != scores->scores_size()) {
      return Bad(logs_, log,
                 absl::StrCat("scores of output \"", scores->output(), "\" from \"", source, "\": expected ",
                              other->second->scores_size(), " as were served, got ", scores->scores_size()));
    }
  }

  const int64_t user = users_.try_emplace(log.request().user_id(), users_.size()).first->second;
  for (const auto& [scores, source] : all) {
    Series& series = series_[{scores->output(), source}];
    ++series.requests;
    series.candidates += scores->scores_size();
    if (const auto known = labels.find(scores->output()); known != labels.end()) {
      for (int i = 0; i < scores->scores_size(); ++i) {
        const float label = known->second->values(i);
        if (std::isnan(label)) continue;
        series.scores.push_back(scores->scores(i));
        series.labels.push_back(label == 1);
        series.users.push_back(user);
      }
    }
    const auto other = served.find(scores->output());
    if (source.empty() || other == served.end()) continue;
    for (int i = 0; i < scores->scores_size(); ++i) {
      const double difference = std::abs(static_cast<double>(scores->scores(i)) - other->second->scores(i));
      series.max_abs_difference = std::max(series.max_abs_difference, difference);
      series.sum_abs_difference += difference;
      ++series.compared;
    }
  }
  ++logs_;
  return absl::OkStatus();
}

EvalReport Evaluator::Report() const {
  EvalReport report;
  report.logs = logs_;
  for (const auto& [key, series] : series_) {
    SeriesReport& row = report.series.emplace_back();
    row.output = key.first;
    row.source = key.second.empty() ? kServed : key.second;
    row.requests = series.requests;
    row.candidates = series.candidates;
    row.labelled = static_cast<int64_t>(series.labels.size());
    row.positives = std::count(series.labels.begin(), series.labels.end(), 1);
    row.auc = Auc(series.scores, series.labels);
    const GroupedAuc grouped = UserAuc(series.scores, series.labels, series.users);
    row.gauc = grouped.value;
    row.users = grouped.users;
    row.skipped_users = grouped.skipped_users;
    row.logloss = LogLoss(series.scores, series.labels);
    if (row.labelled > 0) {
      double sum = 0;
      for (const float score : series.scores) sum += score;
      row.mean_score = sum / static_cast<double>(row.labelled);
    }
    row.compared = series.compared;
    if (series.compared > 0) {
      row.max_abs_difference = series.max_abs_difference;
      row.mean_abs_difference = series.sum_abs_difference / static_cast<double>(series.compared);
    }
  }
  return report;
}

absl::StatusOr<EvalReport> Evaluate(absl::Span<const v1::ScoreLog> logs) {
  Evaluator evaluator;
  for (const v1::ScoreLog& log : logs) {
    if (absl::Status status = evaluator.Add(log); !status.ok()) return status;
  }
  return evaluator.Report();
}

std::string ToText(const EvalReport& report) {
  TextTable quality({"output", "source", "AUC", "gAUC", "logloss", "mean score", "mean label"}, 2);
  TextTable counts(
      {"output", "source", "requests", "candidates", "labelled", "positive", "users", "one-class users"}, 2);
  TextTable differences(
      {"output", "source", "compared", "max |difference|", "mean |difference|", "AUC difference"}, 2);
  std::map<std::string, std::optional<double>> served_auc;
  bool any_difference = false;
  for (const SeriesReport& row : report.series) {
    std::optional<double> mean_label;
    if (row.labelled > 0) mean_label = static_cast<double>(row.positives) / static_cast<double>(row.labelled);
    quality.AddRow({row.output, row.source, Number(row.auc), Number(row.gauc), Number(row.logloss),
                    Number(row.mean_score), Number(mean_label)});
    counts.AddRow({row.output, row.source, absl::StrCat(row.requests), absl::StrCat(row.candidates),
                   absl::StrCat(row.labelled), absl::StrCat(row.positives), absl::StrCat(row.users),
                   absl::StrCat(row.skipped_users)});
    if (row.source == kServed) served_auc[row.output] = row.auc;
    if (row.compared == 0) continue;
    any_difference = true;
    std::optional<double> by_auc;
    if (row.auc.has_value() && served_auc[row.output].has_value())
      by_auc = *served_auc[row.output] - *row.auc;
    differences.AddRow({row.output, row.source, absl::StrCat(row.compared), Small(row.max_abs_difference),
                        Small(row.mean_abs_difference), by_auc.has_value() ? Signed(*by_auc) : "-"});
  }
  if (report.series.empty()) return absl::StrCat(report.logs, " logs, none of them with scores\n");
  std::string text = absl::StrCat(quality.ToString(), "\n", counts.ToString());
  if (any_difference) {
    absl::StrAppend(&text, "\nserved scores against references\n", differences.ToString());
  }
  return text;
}

std::string ToJson(const EvalReport& report) {
  JsonWriter json;
  json.BeginObject().Field("logs", report.logs).BeginArray("series");
  for (const SeriesReport& row : report.series) {
    json.BeginObject()
        .Field("output", row.output)
        .Field("source", row.source)
        .Field("auc", row.auc)
        .Field("gauc", row.gauc)
        .Field("logloss", row.logloss)
        .Field("mean_score", row.mean_score)
        .Field("requests", row.requests)
        .Field("candidates", row.candidates)
        .Field("labelled", row.labelled)
        .Field("positives", row.positives)
        .Field("users", row.users)
        .Field("skipped_users", row.skipped_users)
        .Field("compared", row.compared)
        .Field("max_abs_difference", row.max_abs_difference)
        .Field("mean_abs_difference", row.mean_abs_difference)
        .EndObject();
  }
  json.EndArray().EndObject();
  return json.ToString();
}

}  // namespace dinghy
