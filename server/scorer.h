// The one path of a request: resolve, fetch the history, encode, run the model, fill the response.
//
//   Scorer scorer(store.get(), options);
//   ASSIGN_OR_RETURN(auto response, scorer.Score(loaded, request, worker_state, &log));
//
// Thread-safe with one WorkerState per thread.
#ifndef DINGHY_SERVER_SCORER_H_
#define DINGHY_SERVER_SCORER_H_

#include <cstddef>
#include <functional>
#include <limits>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "features/behavior/store.h"
#include "model/loaded_model.h"
#include "proto/score_log.pb.h"
#include "proto/scoring.pb.h"
#include "server/workers/user_cache.h"
#include "server/workers/worker_state.h"

namespace dinghy {

struct ScorerOptions {
  int max_candidates = std::numeric_limits<int>::max();  // per request, beside what the encoder allows
  bool reject_unknown_features = false;
  size_t user_cache_bytes = 0;  // for the states of users between requests; 0: none are kept
  std::function<absl::Time()> now = [] { return absl::Now(); };
};

class Scorer {
 public:
  // `store` may be null: then a sequence that is not inline is scored as empty and flagged
  // HISTORY_UNAVAILABLE. It must outlive the scorer.
  Scorer(const BehaviorReader* store, ScorerOptions options);

  // Scores `request` on `loaded`. If `log` is not null it becomes the record of this scoring: its `request`
  // is the resolved request, which scores to the same bits again. Errors: INVALID_ARGUMENT as
  // RequestEncoder::Encode says, or naming an unknown output, layer, or column (strict); NOT_FOUND if the
  // request names another model; INTERNAL if a score is not finite.
  absl::StatusOr<v1::ScoreResponse> Score(const LoadedModel& loaded, const v1::ScoreRequest& request,
                                          WorkerState& state, v1::ScoreLog* log) const;

  // The same without a copy of the request, which is resolved in place and given to the log: afterwards it is
  // of no more use.
  absl::StatusOr<v1::ScoreResponse> Score(const LoadedModel& loaded, v1::ScoreRequest&& request,
                                          WorkerState& state, v1::ScoreLog* log) const;

 private:
  const BehaviorReader* const store_;
  const ScorerOptions options_;
  const std::unique_ptr<UserCache> user_cache_;  // null: none
};

}  // namespace dinghy

#endif  // DINGHY_SERVER_SCORER_H_
