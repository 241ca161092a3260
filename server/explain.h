// Explanations of scores: which behaviors drew a candidate's attention, and what each was worth.
//
//   RETURN_IF_ERROR(Explain(loaded, resolved, attention, state, response));
//
// Thread-safe with one WorkerState per thread.
#ifndef DINGHY_SERVER_EXPLAIN_H_
#define DINGHY_SERVER_EXPLAIN_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "model/loaded_model.h"
#include "proto/scoring.pb.h"
#include "server/scorer.h"

namespace dinghy {

// Most scorings that the removals of one request may cost.
inline constexpr int64_t kMaxRemovals = 10000;

// Checks `options` against a request of `candidates` candidates. INVALID_ARGUMENT naming the field.
absl::Status CheckExplain(const v1::ExplainOptions& options, const v1::BundleManifest& manifest,
                          int candidates);

// Fills response.explanations as resolved.explain() asks. `resolved` holds every sequence as used, after
// truncation; `attention` is what the model returned for it; `outputs` are the indices in manifest.outputs()
// of response.outputs(), whose scores are there. Overwrites state.batch and state.outputs.
absl::Status Explain(const LoadedModel& loaded, const v1::ScoreRequest& resolved,
                     const std::vector<AttentionWeights>& attention, absl::Span<const int> outputs,
                     WorkerState& state, v1::ScoreResponse& response);

}  // namespace dinghy

#endif  // DINGHY_SERVER_EXPLAIN_H_
