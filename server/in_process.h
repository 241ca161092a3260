// A bundle that scores in this process, for the commands that need no server.
//
//   ASSIGN_OR_RETURN(auto scorer, InProcessScorer::Create("models/shop/1", "rocksdb:histories"));
//   ASSIGN_OR_RETURN(v1::ScoreResponse response, scorer->Score(request));
//
// Thread-safe.
#ifndef DINGHY_SERVER_IN_PROCESS_H_
#define DINGHY_SERVER_IN_PROCESS_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "features/behavior/store.h"
#include "model/loaded_model.h"
#include "proto/scoring.pb.h"
#include "server/scorer.h"

namespace dinghy {

class InProcessScorer {
 public:
  // `store` is as ParseStore takes it, or empty: none. Errors as LoadModel, ParseStore and OpenStore;
  // NOT_FOUND where the store does not exist.
  static absl::StatusOr<std::unique_ptr<InProcessScorer>> Create(const std::string& bundle,
                                                                 const std::string& store,
                                                                 const ModelOptions& model = {});

  // As Scorer::Score, from any thread.
  absl::StatusOr<v1::ScoreResponse> Score(const v1::ScoreRequest& request);

  const v1::BundleManifest& manifest() const { return loaded_->bundle->manifest; }
  int64_t version() const { return loaded_->bundle->version; }  // 0: the folder's name is none

 private:
  InProcessScorer(std::unique_ptr<BehaviorStore> store, std::unique_ptr<LoadedModel> loaded)
      : store_(std::move(store)), loaded_(std::move(loaded)), scorer_(store_.get(), {}) {}

  const std::unique_ptr<BehaviorStore> store_;
  const std::unique_ptr<LoadedModel> loaded_;
  const Scorer scorer_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<WorkerState>> idle_ ABSL_GUARDED_BY(mutex_);  // one per thread at most
};

}  // namespace dinghy

#endif  // DINGHY_SERVER_IN_PROCESS_H_
