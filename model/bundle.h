// A bundle folder, opened and checked: manifest, weights, golden requests. See proto/bundle.proto for the
// files.
//
//   ASSIGN_OR_RETURN(std::unique_ptr<Bundle> bundle, OpenBundle("models/shop/1"));
//
// Const after OpenBundle, so thread-safe.
#ifndef DINGHY_MODEL_BUNDLE_H_
#define DINGHY_MODEL_BUNDLE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "features/file_contents.h"
#include "model/tensor.h"
#include "proto/bundle.pb.h"
#include "proto/score_log.pb.h"

namespace dinghy {

struct Bundle {
  std::string directory;
  int64_t version = 0;  // the folder's name; 0 if that is not an integer
  std::string digest;   // SHA-256 of COMPLETE, hex
  v1::BundleManifest manifest;
  TensorMap tensors;  // all weights, by name
  std::vector<v1::ScoreLog> goldens;
  FileContents files;  // those that features read, as checked: vocabularies, catalog.json
};

// Reads and checks the folder: COMPLETE is valid and every file has its size and SHA-256, nothing else lies
// in the folder, every safetensors length and offset is in range without overlap, the manifest parses without
// unknown fields, format_version is ours, and all explicit fields are present (CheckManifest). Errors:
// NOT_FOUND (no folder, no COMPLETE), DATA_LOSS (truncated or changed file, bad offsets), INVALID_ARGUMENT
// (manifest); each names the file, what was expected and what came.
absl::StatusOr<std::unique_ptr<Bundle>> OpenBundle(const std::string& directory);

// Checks of the manifest that need no weights: required fields, unique names, inputs that exist and come
// earlier. Features' own fields are checked by RequestEncoder::Create, shapes and levels by Model::Create.
absl::Status CheckManifest(const v1::BundleManifest& manifest);

}  // namespace dinghy

#endif  // DINGHY_MODEL_BUNDLE_H_
