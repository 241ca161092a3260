// One encoded request through the model: the user's state from the cache or computed, and the candidates on
// this thread or, where there are many, on idle ones as well. The bits are Model::Score's whichever way.
#ifndef DINGHY_SERVER_WORKERS_RUN_MODEL_H_
#define DINGHY_SERVER_WORKERS_RUN_MODEL_H_

#include "features/feature_batch.h"
#include "model/loaded_model.h"
#include "server/workers/user_cache.h"
#include "server/workers/worker_state.h"

namespace dinghy {

// Fills state.outputs and state.user_cache. `cache` may be null. What is asked to be timed step by step stays
// on this thread.
void RunModel(const LoadedModel& loaded, const FeatureBatch& batch, const ModelScoreOptions& options,
              UserCache* cache, WorkerState& state);

}  // namespace dinghy

#endif  // DINGHY_SERVER_WORKERS_RUN_MODEL_H_
