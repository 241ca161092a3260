#include "server/explain.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "absl/strings/str_cat.h"

namespace dinghy {
namespace {

// Copies `count` values from `begin` on; no more than there are.
template <typename T>
void CopyValues(const T& from, int64_t begin, int64_t count, T& to) {
  for (int64_t i = begin; i < begin + count && i < from.size(); ++i) *to.Add() = from[static_cast<int>(i)];
}

// The column with row `row` alone. `from` has been checked by an Encode.
void CopyRow(const v1::Column& from, int row, v1::Column& to) {
  to.set_feature(from.feature());
  int64_t begin = row;
  int64_t count = 1;
  if (from.lengths_size() > 0) {
    begin = std::accumulate(from.lengths().begin(), from.lengths().begin() + row, int64_t{0});
    count = from.lengths(row);
    to.add_lengths(from.lengths(row));
  }
  switch (from.values_case()) {
    case v1::Column::kInts:
      CopyValues(from.ints().values(), begin, count, *to.mutable_ints()->mutable_values());
      break;
    case v1::Column::kStrings:
      CopyValues(from.strings().values(), begin, count, *to.mutable_strings()->mutable_values());
      break;
    case v1::Column::kFloats:
      CopyValues(from.floats().values(), begin, count, *to.mutable_floats()->mutable_values());
      break;
    case v1::Column::VALUES_NOT_SET:
      break;
  }
}

// `resolved` with one candidate alone.
v1::ScoreRequest WithOneCandidate(const v1::ScoreRequest& resolved, int candidate) {
  v1::ScoreRequest one;
  one.set_model(resolved.model());
  one.set_user_id(resolved.user_id());
  one.set_request_time_ms(resolved.request_time_ms());
  *one.mutable_user() = resolved.user();
  *one.mutable_context() = resolved.context();
  *one.mutable_sequences() = resolved.sequences();
  for (const v1::Column& column : resolved.candidates()) CopyRow(column, candidate, *one.add_candidates());
  return one;
}

// The behaviors of the largest |weight|, newer first where equal.
std::vector<int> TopBehaviors(absl::Span<const float> weights, uint32_t top_k) {
  std::vector<int> order(weights.size());
  std::iota(order.begin(), order.end(), 0);
  const size_t kept = std::min<size_t>(top_k, order.size());
  std::partial_sort(order.begin(), order.begin() + kept, order.end(), [&](int a, int b) {
    const float wa = std::abs(weights[a]);
    const float wb = std::abs(weights[b]);
    return wa != wb ? wa > wb : a > b;
  });
  order.resize(kept);
  return order;
}

const v1::SequenceData* FindSequence(const v1::ScoreRequest& request, const std::string& name) {
  for (const v1::SequenceData& data : request.sequences()) {
    if (data.sequence() == name) return &data;
  }
  return nullptr;
}

std::string ItemText(const v1::SequenceData& data, const std::string& item_feature, int behavior) {
  for (const v1::Column& column : data.columns()) {
    if (column.feature() != item_feature) continue;
    if (behavior < column.ints().values_size()) return absl::StrCat(column.ints().values(behavior));
    if (behavior < column.strings().values_size()) return column.strings().values(behavior);
  }
  return "";
}

}  // namespace

absl::Status CheckExplain(const v1::ExplainOptions& options, const v1::BundleManifest& manifest,
                          int candidates) {
  for (int i = 0; i < options.candidates_size(); ++i) {
    if (options.candidates(i) >= static_cast<uint32_t>(candidates)) {
      return absl::InvalidArgumentError(absl::StrCat("explain.candidates[", i, "]: expected below ",
                                                     candidates, ", got ", options.candidates(i)));
    }
  }
  if (!options.removal() || options.top_k() == 0) return absl::OkStatus();
  int64_t behaviors = 0;  // per candidate, at most
  for (const v1::Layer& layer : manifest.layers()) {
    if (!layer.has_target_attention()) continue;
    uint32_t longest = 0;
    for (const v1::Sequence& sequence : manifest.sequences())
      longest = std::max(longest, sequence.max_length());
    behaviors += std::min(options.top_k(), longest);
  }
  const int64_t explained = options.candidates_size() > 0 ? options.candidates_size() : candidates;
  if (explained * behaviors > kMaxRemovals) {
    return absl::InvalidArgumentError(absl::StrCat("explain.removal: expected at most ", kMaxRemovals,
                                                   " removals, got ", explained, " candidates with up to ",
                                                   behaviors, " behaviors each"));
  }
  return absl::OkStatus();
}

absl::Status Explain(const LoadedModel& loaded, const v1::ScoreRequest& resolved,
                     const std::vector<AttentionWeights>& attention, absl::Span<const int> outputs,
                     WorkerState& state, v1::ScoreResponse& response) {
  const v1::BundleManifest& manifest = loaded.bundle->manifest;
  const v1::ExplainOptions& options = resolved.explain();
  std::vector<int> explained(options.candidates().begin(), options.candidates().end());
  if (explained.empty()) {
    explained.resize(response.outputs_size() > 0 ? response.outputs(0).scores_size() : 0);
    std::iota(explained.begin(), explained.end(), 0);
  }
  // A history without one of its behaviors takes the same way through the model as the whole one.
  const std::vector<int> full_lengths = state.batch.full_lengths;
  EncodeNotes notes;
  for (const int candidate : explained) {
    v1::ScoreRequest one;
    if (options.removal()) one = WithOneCandidate(resolved, candidate);
    for (const AttentionWeights& layer : attention) {
      const v1::Sequence& sequence = manifest.sequences(layer.sequence);
      const v1::SequenceData* data = FindSequence(resolved, sequence.name());
      const size_t length = response.history(layer.sequence).length();
      v1::Explanation* explanation = response.add_explanations();
      explanation->set_candidate(candidate);
      explanation->set_layer(manifest.layers(layer.layer).name());
      explanation->set_sequence(sequence.name());
      const absl::Span<const float> weights =
          absl::MakeConstSpan(layer.weights).subspan(candidate * length, length);
      for (const int behavior : TopBehaviors(weights, options.top_k())) {
        v1::BehaviorAttention* entry = explanation->add_behaviors();
        entry->set_behavior(behavior);
        entry->set_weight(weights[behavior]);
        entry->set_item(ItemText(*data, manifest.item_feature(), behavior));
        if (behavior < data->event_time_ms_size()) entry->set_event_time_ms(data->event_time_ms(behavior));
        if (!options.removal()) continue;
        v1::ScoreRequest without = one;
        for (v1::SequenceData& changed : *without.mutable_sequences()) {
          if (changed.sequence() != sequence.name()) continue;
          std::vector<int> others(length);
          std::iota(others.begin(), others.end(), 0);
          others.erase(others.begin() + behavior);
          CopyBehaviors(*data, others, changed);
        }
        if (absl::Status status = loaded.encoder->Encode(without, state.batch, notes); !status.ok())
          return status;
        state.batch.full_lengths = full_lengths;
        loaded.model->Score(state.batch, {}, state.scratch, state.outputs);
        for (int o = 0; o < response.outputs_size(); ++o) {
          entry->add_score_change(response.outputs(o).scores(candidate) -
                                  state.outputs.scores[outputs[o]][0]);
        }
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace dinghy
