#include "model/loaded_model.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "model/ops/cpu.h"

namespace dinghy {
namespace {

// Scores golden requests one after another and compares.
class GoldenCheck {
 public:
  GoldenCheck(const v1::BundleManifest& manifest, const RequestEncoder& encoder, const Model& model)
      : manifest_(manifest), encoder_(encoder), model_(model) {}

  absl::StatusOr<GoldenResult> Run(const std::vector<v1::ScoreLog>& goldens) {
    if (goldens.empty()) {
      return absl::FailedPreconditionError("golden.jsonl: expected at least one golden request, got none");
    }
    for (size_t i = 0; i < goldens.size(); ++i) {
      const absl::Status status = Check(goldens[i]);
      if (status.ok()) continue;
      const absl::StatusCode code =
          absl::IsInternal(status) ? status.code() : absl::StatusCode::kFailedPrecondition;
      return absl::Status(code, absl::StrCat("golden request ", i + 1, " (\"",
                                             goldens[i].request().request_id(), "\"): ", status.message()));
    }
    for (const v1::Output& output : manifest_.outputs()) {
      if (checked_.contains(output.name())) continue;
      return absl::FailedPreconditionError(
          absl::StrCat("golden.jsonl: expected scores of output \"", output.name(), "\", got none"));
    }
    return result_;
  }

 private:
  absl::Status Check(const v1::ScoreLog& golden) {
    if (!golden.has_tolerance()) return absl::FailedPreconditionError("tolerance is missing");
    if (!(golden.tolerance() >= 0 && std::isfinite(golden.tolerance()))) {
      return absl::FailedPreconditionError(
          absl::StrCat("tolerance: expected a number from 0, got ", golden.tolerance()));
    }
    if (golden.outputs().empty()) return absl::FailedPreconditionError("outputs is missing");
    absl::Status status = encoder_.Encode(golden.request(), batch_, notes_);
    if (!status.ok()) return status;
    model_.Score(batch_, {}, scratch_, outputs_);
    std::set<absl::string_view> names;
    for (const v1::OutputScores& expected : golden.outputs()) {
      if (!names.insert(expected.output()).second) {
        return absl::FailedPreconditionError(
            absl::StrCat("output \"", expected.output(), "\" is listed twice"));
      }
      status = Compare(expected, golden.tolerance());
      if (!status.ok()) return status;
    }
    ++result_.requests;
    return absl::OkStatus();
  }

  // `expected` against the scores of its output.
  absl::Status Compare(const v1::OutputScores& expected, double tolerance) {
    const auto& outputs = manifest_.outputs();
    const auto found = std::find_if(outputs.begin(), outputs.end(), [&](const v1::Output& output) {
      return output.name() == expected.output();
    });
    if (found == outputs.end()) {
      return absl::FailedPreconditionError(
          absl::StrCat("output \"", expected.output(), "\" is not among the model's outputs"));
    }
    const std::vector<float>& scores = outputs_.scores[found - outputs.begin()];
    if (expected.scores_size() != static_cast<int>(scores.size())) {
      return absl::FailedPreconditionError(absl::StrCat("output \"", expected.output(), "\": expected ",
                                                        scores.size(), " scores, one per candidate, got ",
                                                        expected.scores_size()));
    }
    for (size_t c = 0; c < scores.size(); ++c) {
      const double error = std::abs(double{scores[c]} - double{expected.scores(static_cast<int>(c))});
      // Written so that NaN on either side fails.
      if (!(error <= tolerance)) {
        return absl::FailedPreconditionError(absl::StrFormat(
            "output \"%s\", candidate %d: expected %.9g within %g, got %.9g (off by %.3g)", expected.output(),
            c, expected.scores(static_cast<int>(c)), tolerance, scores[c], error));
      }
      result_.max_error = std::max(result_.max_error, error);
    }
    result_.scores += static_cast<int64_t>(scores.size());
    if (!scores.empty()) checked_.insert(expected.output());
    return absl::OkStatus();
  }

  const v1::BundleManifest& manifest_;
  const RequestEncoder& encoder_;
  const Model& model_;
  FeatureBatch batch_;
  EncodeNotes notes_;
  ops::Scratch scratch_;
  ModelOutputs outputs_;
  std::set<std::string> checked_;  // outputs with at least one score
  GoldenResult result_;
};

}  // namespace

absl::StatusOr<std::vector<int64_t>> TableRows(const Bundle& bundle) {
  std::vector<int64_t> rows;
  for (const v1::Table& table : bundle.manifest.tables()) {
    const std::string label = absl::StrCat("table \"", table.name(), "\": tensor \"", table.tensor(), "\"");
    const auto found = bundle.tensors.find(table.tensor());
    if (found == bundle.tensors.end()) {
      return absl::InvalidArgumentError(absl::StrCat(label, " is in no safetensors file of the bundle"));
    }
    const std::vector<int64_t>& shape = found->second.shape;
    if (shape.size() != 2 || shape[1] != int64_t{table.dim()}) {
      return absl::InvalidArgumentError(absl::StrCat(label, ": expected shape [rows, ", table.dim(),
                                                     "], got [", absl::StrJoin(shape, ", "), "]"));
    }
    rows.push_back(shape[0]);
  }
  return rows;
}

absl::StatusOr<std::unique_ptr<LoadedModel>> LoadModel(const std::string& directory,
                                                       const EncoderOptions& options,
                                                       const ModelOptions& model_options) {
  absl::StatusOr<std::unique_ptr<Bundle>> bundle = OpenBundle(directory);
  if (!bundle.ok()) return bundle.status();
  auto loaded = std::make_unique<LoadedModel>();
  loaded->bundle = *std::move(bundle);
  const v1::BundleManifest& manifest = loaded->bundle->manifest;

  absl::StatusOr<std::vector<int64_t>> table_rows = TableRows(*loaded->bundle);
  if (!table_rows.ok()) return table_rows.status();
  absl::StatusOr<std::unique_ptr<RequestEncoder>> encoder =
      RequestEncoder::Create(manifest, loaded->bundle->files, *table_rows, options);
  if (!encoder.ok()) return encoder.status();
  loaded->bundle->files.clear();  // the encoder has what it needs of them
  loaded->encoder = *std::move(encoder);

  ops::PrepareThread();
  absl::StatusOr<std::unique_ptr<Model>> model = Model::Create(manifest, loaded->bundle->tensors, model_options);
  if (!model.ok()) return model.status();
  loaded->model = *std::move(model);

  absl::StatusOr<GoldenResult> golden =
      GoldenCheck(manifest, *loaded->encoder, *loaded->model).Run(loaded->bundle->goldens);
  if (!golden.ok()) return golden.status();
  loaded->golden = *golden;
  return loaded;
}

}  // namespace dinghy
