#include "server/in_process.h"

#include <filesystem>
#include <limits>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/ops/cpu.h"
#include "server/config.h"

namespace dinghy {

absl::StatusOr<std::unique_ptr<InProcessScorer>> InProcessScorer::Create(const std::string& bundle,
                                                                         const std::string& store,
                                                                         const ModelOptions& model) {
  ops::PrepareThread();
  std::unique_ptr<BehaviorStore> opened;
  if (!store.empty()) {
    const absl::StatusOr<v1::StoreConfig> config = ParseStore(store);
    if (!config.ok()) return config.status();
    // Opening makes a store where there is none: a wrong path would be an empty history that nobody is told
    // of.
    const std::filesystem::path path = config->rocksdb().path();
    std::error_code error;
    if (!config->has_rocksdb() || !std::filesystem::exists(path / "CURRENT", error)) {
      return absl::NotFoundError(
          absl::StrCat("store: expected rocksdb:PATH of a store that exists, got \"", store, "\""));
    }
    absl::StatusOr<std::unique_ptr<BehaviorStore>> result = OpenStore(*config);
    if (!result.ok()) return result.status();
    opened = *std::move(result);
  }
  absl::StatusOr<std::unique_ptr<LoadedModel>> loaded =
      LoadModel(bundle, {.max_candidates = std::numeric_limits<int>::max()}, model);
  if (!loaded.ok()) return loaded.status();
  return std::unique_ptr<InProcessScorer>(new InProcessScorer(std::move(opened), *std::move(loaded)));
}

absl::StatusOr<v1::ScoreResponse> InProcessScorer::Score(const v1::ScoreRequest& request) {
  ops::PrepareThread();
  std::unique_ptr<WorkerState> state;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!idle_.empty()) {
      state = std::move(idle_.back());
      idle_.pop_back();
    }
  }
  if (state == nullptr) state = std::make_unique<WorkerState>();
  absl::StatusOr<v1::ScoreResponse> response = scorer_.Score(*loaded_, request, *state, nullptr);
  std::lock_guard<std::mutex> lock(mutex_);
  idle_.push_back(std::move(state));
  return response;
}

}  // namespace dinghy
