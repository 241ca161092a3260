#include "server/model_registry.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "model/ops/cpu.h"

namespace dinghy {
namespace {

namespace fs = std::filesystem;

// How often the loader looks whether a retired version is still in use.
constexpr std::chrono::milliseconds kRetiredCheck(50);

struct FoundVersion {
  std::string model;
  int64_t version;
  std::string directory;
};

// A version's folder is named by a positive integer without leading zeros.
int64_t ParseVersion(const std::string& name) {
  int64_t version = 0;
  return absl::SimpleAtoi(name, &version) && version > 0 && absl::StrCat(version) == name ? version : 0;
}

std::vector<fs::path> Subfolders(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    std::error_code ignored;
    if (it->is_directory(ignored)) found.push_back(it->path());
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::vector<FoundVersion> FindVersions(const std::string& root) {
  std::vector<FoundVersion> found;
  for (const fs::path& model : Subfolders(root)) {
    for (const fs::path& folder : Subfolders(model)) {
      const int64_t version = ParseVersion(folder.filename().string());
      std::error_code error;
      if (version == 0 || !fs::exists(folder / "COMPLETE", error)) continue;
      found.push_back({model.filename().string(), version, folder.string()});
    }
  }
  return found;
}

std::string Quoted(const std::vector<std::string>& names) {
  return absl::StrJoin(
      names, ", ", [](std::string* out, const std::string& name) { absl::StrAppend(out, "\"", name, "\""); });
}

}  // namespace

absl::StatusOr<std::unique_ptr<ModelRegistry>> ModelRegistry::Create(Options options) {
  std::error_code error;
  if (!fs::is_directory(options.root, error)) {
    return absl::NotFoundError(
        absl::StrCat("model root \"", options.root, "\": expected a folder, found none"));
  }
  std::unique_ptr<ModelRegistry> registry(new ModelRegistry(std::move(options)));
  registry->loader_ = std::thread([raw = registry.get()] { raw->RunLoader(); });
  registry->Reload();
  if (!registry->Models().empty()) return registry;
  const absl::StatusOr<std::vector<v1::ModelVersionStatus>> versions = registry->Status("");
  if (!versions.ok()) return versions.status();
  std::vector<std::string> failures;
  for (const v1::ModelVersionStatus& status : *versions) {
    failures.push_back(absl::StrCat(status.model(), "/", status.version(), ": ", status.error()));
  }
  if (failures.empty()) {
    return absl::NotFoundError(absl::StrCat("model root \"", registry->options_.root,
                                            "\": expected <model>/<integer version>/COMPLETE, found none"));
  }
  return absl::FailedPreconditionError(
      absl::StrCat("no model could be loaded: ", absl::StrJoin(failures, "; ")));
}

ModelRegistry::~ModelRegistry() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  loader_.join();
}

void ModelRegistry::RunLoader() {
  ops::PrepareThread();
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    const auto wanted = [this] { return stopping_ || scans_done_ < scans_wanted_; };
    if (retired_.empty()) {
      changed_.wait(lock, wanted);
    } else {
      changed_.wait_for(lock, kRetiredCheck, wanted);
    }
    if (stopping_) return;
    // A retired version is out of the map, so that nobody can acquire it any more: a count of one stays one.
    std::vector<std::shared_ptr<const LoadedModel>> unused;
    for (auto& retired : retired_) {
      if (retired.use_count() == 1) unused.push_back(std::move(retired));
    }
    retired_.erase(std::remove(retired_.begin(), retired_.end(), nullptr), retired_.end());
    const int64_t wanted_now = scans_wanted_;
    const bool scan = scans_done_ < wanted_now;
    lock.unlock();
    unused.clear();
    if (scan) Scan();
    lock.lock();
    if (scan) {
      scans_done_ = wanted_now;
      changed_.notify_all();
    }
  }
}

void ModelRegistry::Scan() {
  const std::vector<FoundVersion> found = FindVersions(options_.root);
  for (const FoundVersion& at : found) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      const auto model = models_.find(at.model);
      if (model != models_.end()) {
        const auto version = model->second.versions.find(at.version);
        if (version != model->second.versions.end() && version->second.loaded != nullptr) continue;
      }
    }
    Version version;
    absl::StatusOr<std::unique_ptr<LoadedModel>> loaded =
        options_.load(at.directory, options_.encoder, options_.model);
    if (!loaded.ok()) {
      version.error = std::string(loaded.status().message());
    } else if ((*loaded)->bundle->manifest.name() != at.model) {
      version.error = absl::StrCat("name: expected \"", at.model, "\" as the folder says, got \"",
                                   (*loaded)->bundle->manifest.name(), "\"");
    } else {
      version.loaded = *std::move(loaded);
    }
    std::lock_guard<std::mutex> lock(mutex_);
    models_[at.model].versions[at.version] = std::move(version);
  }

  std::set<std::pair<std::string, int64_t>> present;
  for (const FoundVersion& at : found) present.emplace(at.model, at.version);
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto& [name, model] : models_) {
    for (auto it = model.versions.begin(); it != model.versions.end();) {
      const bool pinned = it->first == model.canary || (model.stable_pinned && it->first == model.stable);
      if (present.count({name, it->first}) > 0 || pinned) {
        ++it;
        continue;
      }
      if (it->second.loaded != nullptr) retired_.push_back(std::move(it->second.loaded));
      it = model.versions.erase(it);
    }
    if (!model.stable_pinned) FollowNewest(model);
  }
  std::erase_if(models_, [](const auto& entry) { return entry.second.versions.empty(); });
}

void ModelRegistry::SetStable(ModelVersions& model, int64_t version) {
  if (model.stable == version) return;
  if (model.stable != 0) model.stable_before.push_back(model.stable);
  model.stable = version;
}

void ModelRegistry::FollowNewest(ModelVersions& model) {
  model.stable_pinned = false;
  for (auto it = model.versions.rbegin(); it != model.versions.rend(); ++it) {
    if (it->second.loaded == nullptr) continue;
    SetStable(model, it->first);
    return;
  }
  model.stable = 0;
}

absl::StatusOr<std::shared_ptr<const LoadedModel>> ModelRegistry::Acquire(const ModelChoice& choice) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto names = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    std::vector<std::string> names;
    for (const auto& [name, model] : models_) names.push_back(name);
    return Quoted(names);
  };
  auto found = models_.find(choice.model);
  if (choice.model.empty()) {
    if (models_.size() > 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("model: expected a name, since this server has several (", names(), "), got none"));
    }
    found = models_.begin();
  }
  if (found == models_.end()) {
    return absl::NotFoundError(absl::StrCat("model \"", choice.model, "\": this server has ", names()));
  }
  const ModelVersions& model = found->second;
  int64_t version = choice.version;
  if (!choice.by_version) {
    if (choice.label.empty() || choice.label == "stable") {
      version = model.stable;
    } else if (choice.label == "canary") {
      version = model.canary;
    } else {
      return absl::NotFoundError(absl::StrCat("model \"", found->first, "\", label \"", choice.label,
                                              "\": expected stable or canary"));
    }
    if (version == 0) {
      return absl::NotFoundError(absl::StrCat("model \"", found->first, "\": label \"",
                                              choice.label.empty() ? "stable" : choice.label,
                                              "\" points at no version"));
    }
  }
  const auto at = model.versions.find(version);
  if (at == model.versions.end() || at->second.loaded == nullptr) {
    std::vector<int64_t> loaded;
    for (const auto& [number, entry] : model.versions) {
      if (entry.loaded != nullptr) loaded.push_back(number);
    }
    return absl::NotFoundError(absl::StrCat("model \"", found->first, "\", version ", version,
                                            ": loaded versions are ", absl::StrJoin(loaded, ", ")));
  }
  return at->second.loaded;
}

absl::StatusOr<std::vector<v1::ModelVersionStatus>> ModelRegistry::Status(const std::string& model) const {
  std::vector<v1::ModelVersionStatus> out;
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [name, versions] : models_) {
    if (!model.empty() && model != name) continue;
    for (const auto& [number, version] : versions.versions) {
      v1::ModelVersionStatus status;
      status.set_model(name);
      status.set_version(number);
      status.set_state(version.loaded != nullptr ? v1::ModelVersionStatus::LOADED
                                                 : v1::ModelVersionStatus::FAILED);
      status.set_error(version.error);
      if (version.loaded != nullptr) status.set_bundle_digest(version.loaded->bundle->digest);
      if (number == versions.stable) {
        status.add_labels("stable");
        if (versions.stable_pinned) status.add_pinned_labels("stable");
      }
      if (number == versions.canary) {
        status.add_labels("canary");
        status.add_pinned_labels("canary");
      }
      out.push_back(std::move(status));
    }
  }
  if (out.empty() && !model.empty()) {
    return absl::NotFoundError(absl::StrCat("model \"", model, "\": this server has no such model"));
  }
  return out;
}

void ModelRegistry::Reload() {
  std::unique_lock<std::mutex> lock(mutex_);
  const int64_t ticket = ++scans_wanted_;
  changed_.notify_all();
  changed_.wait(lock, [&] { return stopping_ || scans_done_ >= ticket; });
}

absl::StatusOr<ModelRegistry::ModelVersions*> ModelRegistry::FindModel(const std::string& model) {
  const auto found = models_.find(model);
  if (found == models_.end()) {
    return absl::NotFoundError(absl::StrCat("model \"", model, "\": this server has no such model"));
  }
  return &found->second;
}

absl::Status ModelRegistry::Pin(const std::string& model, const std::string& label, int64_t version) {
  if (!label.empty() && label != "stable" && label != "canary") {
    return absl::InvalidArgumentError(absl::StrCat("label: expected stable or canary, got \"", label, "\""));
  }
  std::lock_guard<std::mutex> lock(mutex_);
  const absl::StatusOr<ModelVersions*> found = FindModel(model);
  if (!found.ok()) return found.status();
  ModelVersions& versions = **found;
  if (version != 0) {
    const auto at = versions.versions.find(version);
    if (at == versions.versions.end() || at->second.loaded == nullptr) {
      return absl::NotFoundError(
          absl::StrCat("model \"", model, "\", version ", version, ": expected a loaded version"));
    }
  }
  if (label == "canary") {
    versions.canary = version;
  } else if (version == 0) {
    FollowNewest(versions);
  } else {
    SetStable(versions, version);
    versions.stable_pinned = true;
  }
  return absl::OkStatus();
}

absl::Status ModelRegistry::Rollback(const std::string& model) {
  std::lock_guard<std::mutex> lock(mutex_);
  const absl::StatusOr<ModelVersions*> found = FindModel(model);
  if (!found.ok()) return found.status();
  ModelVersions& versions = **found;
  while (!versions.stable_before.empty()) {
    const int64_t before = versions.stable_before.back();
    versions.stable_before.pop_back();
    const auto at = versions.versions.find(before);
    if (at == versions.versions.end() || at->second.loaded == nullptr) continue;
    versions.stable = before;
    versions.stable_pinned = true;
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat("model \"", model, "\": stable pointed at no other loaded version before"));
}

std::vector<std::string> ModelRegistry::Models() const {
  std::vector<std::string> out;
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [name, model] : models_) {
    for (const auto& [number, version] : model.versions) {
      if (version.loaded == nullptr) continue;
      out.push_back(name);
      break;
    }
  }
  return out;
}

}  // namespace dinghy
