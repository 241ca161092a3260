// The model versions that a server has loaded, and the labels that point at them.
//
//   ASSIGN_OR_RETURN(auto registry, ModelRegistry::Create({.root = "models"}));
//   ASSIGN_OR_RETURN(std::shared_ptr<const LoadedModel> model, registry->Acquire({.model = "shop"}));
//
// A version is a folder <root>/<model>/<integer>/ with COMPLETE. All versions that are there are loaded;
// label `stable` points at the newest one unless it is pinned, `canary` exists only where it is pinned.
// Versions are loaded, and freed once no request uses them any more, by one thread of the registry's own.
// Thread-safe.
#ifndef DINGHY_SERVER_MODEL_REGISTRY_H_
#define DINGHY_SERVER_MODEL_REGISTRY_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "features/encoder.h"
#include "model/loaded_model.h"
#include "proto/admin.pb.h"

namespace dinghy {

// Names a version: a number, or a label (`stable` where both are absent).
struct ModelChoice {
  std::string model = {};  // may be empty where there is one model
  int64_t version = 0;
  bool by_version = false;
  std::string label = {};
};

class ModelRegistry {
 public:
  struct Options {
    std::string root;
    EncoderOptions encoder = {};
    ModelOptions model = {};
    std::function<absl::StatusOr<std::unique_ptr<LoadedModel>>(
        const std::string& directory, const EncoderOptions& options, const ModelOptions& model_options)>
        load = LoadModel;
  };

  // Loads all versions under the root. A version that fails is reported by Status, and is an error only where
  // nothing else loads: FAILED_PRECONDITION naming each failure. NOT_FOUND: no root, or no version under it.
  static absl::StatusOr<std::unique_ptr<ModelRegistry>> Create(Options options);
  // All models that were acquired must be given back before.
  ~ModelRegistry();
  ModelRegistry(const ModelRegistry&) = delete;
  ModelRegistry& operator=(const ModelRegistry&) = delete;

  // The version that `choice` names; it stays loaded while the pointer is held. NOT_FOUND names what there
  // is; INVALID_ARGUMENT if `choice` names no model and there are several.
  absl::StatusOr<std::shared_ptr<const LoadedModel>> Acquire(const ModelChoice& choice) const;

  // Every version of `model` (empty: all), by model and version. NOT_FOUND: no such model.
  absl::StatusOr<std::vector<v1::ModelVersionStatus>> Status(const std::string& model) const;

  // Looks at the root now: loads versions that appeared or failed before, and retires those whose folder has
  // gone, unless a label is pinned at them. Returns when that is done.
  void Reload();

  // Points `label` (empty: stable) at `version` and keeps it there; version 0 gives the label back to the
  // newest version (stable) or removes it (canary). NOT_FOUND: no such model or loaded version;
  // INVALID_ARGUMENT: another label.
  absl::Status Pin(const std::string& model, const std::string& label, int64_t version);

  // Pins `stable` to the version it pointed at before. FAILED_PRECONDITION: there is none.
  absl::Status Rollback(const std::string& model);

  std::vector<std::string> Models() const;  // sorted; those with at least one loaded version

 private:
  struct Version {
    std::shared_ptr<const LoadedModel> loaded;  // null: failed
    std::string error;
  };
  struct ModelVersions {
    std::map<int64_t, Version> versions;
    int64_t stable = 0;  // 0: nothing loaded
    int64_t canary = 0;
    bool stable_pinned = false;
    std::vector<int64_t> stable_before;  // what stable pointed at, oldest first
  };

  explicit ModelRegistry(Options options) : options_(std::move(options)) {}
  void RunLoader();
  void Scan();
  void SetStable(ModelVersions& model, int64_t version) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FollowNewest(ModelVersions& model) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<ModelVersions*> FindModel(const std::string& model) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, ModelVersions> models_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<const LoadedModel>> retired_ ABSL_GUARDED_BY(mutex_);
  int64_t scans_wanted_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t scans_done_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread loader_;
};

}  // namespace dinghy

#endif  // DINGHY_SERVER_MODEL_REGISTRY_H_
