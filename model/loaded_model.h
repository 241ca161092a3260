// One version of a model, loaded, checked with its golden requests and ready to score.
//
//   ASSIGN_OR_RETURN(auto loaded, LoadModel("models/shop/1", {}));
//
// Const after LoadModel, so thread-safe.
#ifndef DINGHY_MODEL_LOADED_MODEL_H_
#define DINGHY_MODEL_LOADED_MODEL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "features/encoder.h"
#include "model/bundle.h"
#include "model/model.h"

namespace dinghy {

struct GoldenResult {
  int requests = 0;
  int64_t scores = 0;
  double max_error = 0;  // largest absolute difference
};

struct LoadedModel {
  std::unique_ptr<Bundle> bundle;
  std::unique_ptr<RequestEncoder> encoder;
  std::unique_ptr<Model> model;
  GoldenResult golden;
};

// The rows of each table, by index in manifest.tables(). INVALID_ARGUMENT where a table's tensor is missing
// or is not [rows, dim].
absl::StatusOr<std::vector<int64_t>> TableRows(const Bundle& bundle);

// Opens the bundle, builds encoder and model, and scores the golden requests: FAILED_PRECONDITION naming the
// request, output and candidate where one differs by more than its tolerance, or where there is no golden
// request at all. Other errors as OpenBundle, RequestEncoder::Create and Model::Create.
absl::StatusOr<std::unique_ptr<LoadedModel>> LoadModel(const std::string& directory,
                                                       const EncoderOptions& options,
                                                       const ModelOptions& model_options = {});

}  // namespace dinghy

#endif  // DINGHY_MODEL_LOADED_MODEL_H_
