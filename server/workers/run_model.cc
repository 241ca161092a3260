#include "server/workers/run_model.h"

#include <algorithm>
#include <cmath>
#include <memory>

namespace dinghy {
namespace {

// Multiply-adds counted as 2. Below this, some ten microseconds, the user's state is computed as fast as it
// is looked up.
constexpr double kWorthKeeping = 1e6;

// What a block of candidates should have: some hundred microseconds, next to which waking a thread is short.
constexpr double kBlockFlops = 2e7;
// Fewer candidates would use the tower's kernels badly.
constexpr int kBlockCandidates = 16;

int BlockSize(const Model& model, const FeatureBatch& batch) {
  const double least = std::max(kBlockCandidates * model.CandidateFlops(batch), 1.0);
  return kBlockCandidates * static_cast<int>(std::max(1.0, std::ceil(std::min(kBlockFlops / least, 1e6))));
}

void ScoreCandidates(const Model& model, const FeatureBatch& batch, const UserState& user,
                     const ModelScoreOptions& options, WorkerState& state) {
  const int size = BlockSize(model, batch);
  if (!state.share || batch.candidates <= size || !options.step_seconds.empty()) {
    model.ScoreRange(batch, user, 0, batch.candidates, options, state.scratch, state.outputs);
    return;
  }
  const int blocks = (batch.candidates + size - 1) / size;
  state.share(blocks, [&](int block, ops::Scratch& scratch) {
    const int end = std::min((block + 1) * size, batch.candidates);
    model.ScoreRange(batch, user, block * size, end, options, scratch, state.outputs);
  });
}

}  // namespace

void RunModel(const LoadedModel& loaded, const FeatureBatch& batch, const ModelScoreOptions& options,
              UserCache* cache, WorkerState& state) {
  const Model& model = *loaded.model;
  state.user_cache = {};
  // A kept state has nothing of single behaviors, which debug output may ask for.
  if (cache != nullptr && options.debug_names.empty()) {
    state.user_cache.asked = model.UserFlops(batch) >= kWorthKeeping;
  }
  std::shared_ptr<const UserState> kept;
  if (state.user_cache.asked) {
    MakeUserKey(loaded, batch, state.user_key);
    kept = cache->Find(state.user_key);
    state.user_cache.hit = kept != nullptr;
  }
  ops::Scratch::Scope scope(state.scratch);
  UserState computed;
  if (kept == nullptr) computed = model.ScoreUser(batch, options, state.scratch);
  const UserState& user = kept != nullptr ? *kept : computed;
  model.StartOutputs(batch, user, options, state.outputs);
  ScoreCandidates(model, batch, user, options, state);
  if (!state.user_cache.asked) return;
  if (kept != nullptr) {
    state.user_cache.bytes = cache->bytes();
    return;
  }
  const UserCache::Inserted inserted = cache->Insert(state.user_key, model.Keep(computed));
  state.user_cache.evicted = inserted.evicted;
  state.user_cache.bytes = inserted.bytes;
}

}  // namespace dinghy
