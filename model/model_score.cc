// How a model scores: the user's part, and ranges of candidates.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <new>
#include <type_traits>

#include "model/layers/feature_lookup.h"
#include "model/layers/layer.h"
#include "model/model.h"
#include "model/ops/vector_math.h"

namespace dinghy {
namespace {

// Rounded up to whole cache lines, as kernels like what they read to be aligned.
size_t RoundUp(size_t floats) { return (floats + 15) / 16 * 16; }

template <typename T>
size_t FloatsOf(size_t count) {
  static_assert(alignof(T) <= 64 && std::is_trivially_destructible_v<T>);
  return RoundUp((count * sizeof(T) + sizeof(float) - 1) / sizeof(float));
}

// An array of empty elements at `memory`.
template <typename T>
absl::Span<T> NewArray(size_t count, void* memory) {
  T* elements = static_cast<T*>(memory);
  std::uninitialized_value_construct_n(elements, count);
  return absl::MakeSpan(elements, count);
}

// One in a request's scratch: what scoring allocates nothing for.
template <typename T>
absl::Span<T> NewArray(size_t count, ops::Scratch& scratch) {
  return NewArray<T>(count, static_cast<void*>(scratch.Floats(FloatsOf<T>(count))));
}

// Adds what passes between its calls to ModelScoreOptions.step_seconds; does nothing where nobody asked.
class StepClock {
 public:
  using Clock = std::chrono::steady_clock;

  explicit StepClock(absl::Span<double> seconds) : seconds_(seconds) {
    if (!seconds_.empty()) last_ = Clock::now();
  }

  void Done(size_t step) {
    if (seconds_.empty()) return;
    const Clock::time_point now = Clock::now();
    seconds_[step] += std::chrono::duration<double>(now - last_).count();
    last_ = now;
  }

 private:
  const absl::Span<double> seconds_;
  Clock::time_point last_;
};

// Copies the rows of `value` to dst [rows, width], packed.
void CopyRows(const Value& value, int64_t width, float* dst) {
  for (int64_t r = 0; r < value.rows; ++r) std::copy_n(value.data + r * value.stride, width, dst + r * width);
}

// Where a range's rows of a matrix begin that has one row a candidate.
float* RowsAt(std::vector<float>& matrix, int first, int64_t width) {
  return matrix.data() + static_cast<int64_t>(first) * width;
}

}  // namespace

const ValueInfo& Model::LayerValue(size_t layer) const {
  return values_[static_cast<size_t>(manifest_.features_size()) + layer];
}

void Model::Score(const FeatureBatch& batch, const ModelScoreOptions& options, ops::Scratch& scratch,
                  ModelOutputs& outputs) const {
  ops::Scratch::Scope scope(scratch);
  const UserState user = ScoreUser(batch, options, scratch);
  StartOutputs(batch, user, options, outputs);
  ScoreRange(batch, user, 0, batch.candidates, options, scratch, outputs);
}

UserState Model::ScoreUser(const FeatureBatch& batch, const ModelScoreOptions& options,
                           ops::Scratch& scratch) const {
  StepClock clock(options.step_seconds);
  const absl::Span<Value> values = NewArray<Value>(values_.size(), scratch);
  const absl::Span<UserPart> parts = NewArray<UserPart>(layers_.size(), scratch);
  RunContext context{
      .batch = batch, .values = values, .scratch = scratch, .complete = !options.debug_names.empty()};
  lookup_->RunUser(context, values);
  clock.Done(0);
  for (size_t i = 0; i < layers_.size(); ++i) {
    layers_[i]->Prepare(context, parts[i]);
    if (LayerValue(i).level != v1::CANDIDATE) {
      context.user = &parts[i];
      context.attention = nullptr;
      const int keys = attention_keys_[i];
      if (keys >= 0) {
        const int64_t length = batch.sequence_lengths[values_[keys].sequence];
        context.attention = scratch.Floats(length);
        parts[i].attention = {context.attention, 1, length};
      }
      values[manifest_.features_size() + i] = layers_[i]->Run(context);
    }
    clock.Done(ModelScoreOptions::kFirstLayerStep + i);
  }
  UserState user;
  user.values_ = values;
  user.parts_ = parts;
  return user;
}

UserState Model::Keep(const UserState& user) const {
  // Of each value one row: a history's values are none of the candidates' business.
  const auto is_users = [&](size_t value) { return values_[value].level == v1::USER; };
  const auto size = [](const Value& value) { return RoundUp(value.rows * value.stride); };
  size_t floats = FloatsOf<Value>(values_.size()) + FloatsOf<UserPart>(layers_.size());
  for (size_t i = 0; i < values_.size(); ++i) {
    if (is_users(i)) floats += RoundUp(values_[i].width);
  }
  for (UserPart part : user.parts_) part.ForEach([&](Value& value) { floats += size(value); });
  floats += 16;  // vector code may read past the end of a row

  void* memory = std::aligned_alloc(64, floats * sizeof(float));
  if (memory == nullptr) throw std::bad_alloc();
  UserState kept;
  kept.memory_.reset(static_cast<float*>(memory));
  kept.bytes_ = floats * sizeof(float);
  float* next = kept.memory_.get();
  const auto take = [&next](size_t count) {
    float* taken = next;
    next += count;
    return taken;
  };
  const auto values = NewArray<Value>(values_.size(), take(FloatsOf<Value>(values_.size())));
  const auto parts = NewArray<UserPart>(layers_.size(), take(FloatsOf<UserPart>(layers_.size())));
  for (size_t i = 0; i < values_.size(); ++i) {
    if (!is_users(i)) continue;
    const int64_t width = values_[i].width;
    values[i] = {std::copy_n(user.values_[i].data, width, take(RoundUp(width))) - width, 1, width};
  }
  for (size_t i = 0; i < layers_.size(); ++i) {
    parts[i] = user.parts_[i];
    parts[i].ForEach([&](Value& value) {
      const int64_t count = value.rows * value.stride;
      if (count > 0) value.data = std::copy_n(value.data, count, take(size(value))) - count;
    });
  }
  kept.values_ = values;
  kept.parts_ = parts;
  return kept;
}

double Model::Flops(const FeatureBatch& batch, bool user) const {
  double history = 0;
  for (const int length : batch.sequence_lengths) history = std::max<double>(history, length);
  double flops = 0;
  for (const std::unique_ptr<Layer>& layer : layers_) {
    const LayerCost& cost = layer->cost();
    flops += user ? cost.user + history * (cost.behavior + history * cost.behavior_pair)
                  : cost.candidate + history * cost.pair;
  }
  return flops;
}

double Model::UserFlops(const FeatureBatch& batch) const { return Flops(batch, true); }

double Model::CandidateFlops(const FeatureBatch& batch) const { return Flops(batch, false); }

void Model::StartOutputs(const FeatureBatch& batch, const UserState& user, const ModelScoreOptions& options,
                         ModelOutputs& outputs) const {
  outputs.scores.resize(outputs_.size());
  for (std::vector<float>& scores : outputs.scores) scores.resize(batch.candidates);
  outputs.attention.resize(options.attention ? attention_layers_.size() : 0);
  for (size_t a = 0; a < outputs.attention.size(); ++a) {
    const int layer = attention_layers_[a];
    AttentionWeights& attention = outputs.attention[a];
    attention.layer = layer;
    attention.sequence = values_[attention_keys_[layer]].sequence;
    const int64_t length = batch.sequence_lengths[attention.sequence];
    attention.weights.resize(batch.candidates * length);
    if (LayerValue(layer).level == v1::CANDIDATE) continue;
    for (int c = 0; c < batch.candidates; ++c) {
      std::copy_n(user.parts_[layer].attention.data, length, RowsAt(attention.weights, c, length));
    }
  }
  outputs.debug.resize(options.debug_names.size());
  for (size_t i = 0; i < options.debug_names.size(); ++i) {
    const int index = index_.find(options.debug_names[i])->second;
    const Value& value = user.values_[index];
    const bool candidates = values_[index].level == v1::CANDIDATE;
    NamedValues& named = outputs.debug[i];
    named.name = options.debug_names[i];
    named.rows = candidates ? batch.candidates : static_cast<int>(value.rows);
    named.width = values_[index].width;
    named.values.resize(static_cast<size_t>(named.rows) * named.width);
    if (!candidates) CopyRows(value, named.width, named.values.data());
  }
}

void Model::ScoreRange(const FeatureBatch& batch, const UserState& user, int begin, int end,
                       const ModelScoreOptions& options, ops::Scratch& scratch, ModelOutputs& outputs) const {
  ops::Scratch::Scope scope(scratch);
  StepClock clock(options.step_seconds);
  const absl::Span<Value> values = NewArray<Value>(values_.size(), scratch);
  std::copy(user.values_.begin(), user.values_.end(), values.begin());
  RunContext context{
      .batch = batch, .values = values, .scratch = scratch, .first = begin, .candidates = end - begin};
  lookup_->RunCandidates(context, values);
  clock.Done(0);
  size_t attention = 0;
  for (size_t i = 0; i < layers_.size(); ++i) {
    AttentionWeights* weights = nullptr;
    if (options.attention && attention_keys_[i] >= 0) weights = &outputs.attention[attention++];
    if (LayerValue(i).level != v1::CANDIDATE) continue;
    context.user = &user.parts_[i];
    context.attention = nullptr;
    if (weights != nullptr) {
      context.attention = RowsAt(weights->weights, begin, batch.sequence_lengths[weights->sequence]);
    }
    values[manifest_.features_size() + i] = layers_[i]->Run(context);
    clock.Done(ModelScoreOptions::kFirstLayerStep + i);
  }
  WriteScores(context, outputs);
  clock.Done(ModelScoreOptions::kFirstLayerStep + layers_.size());
  for (size_t i = 0; i < options.debug_names.size(); ++i) {
    const int index = index_.find(options.debug_names[i])->second;
    if (values_[index].level != v1::CANDIDATE) continue;
    CopyRows(values[index], values_[index].width,
             RowsAt(outputs.debug[i].values, begin, values_[index].width));
  }
}

void Model::WriteScores(const RunContext& context, ModelOutputs& outputs) const {
  const int64_t candidates = context.candidates;
  for (size_t o = 0; o < outputs_.size(); ++o) {
    const Value& value = context.values[outputs_[o].value];
    float* scores = outputs.scores[o].data() + context.first;
    for (int64_t c = 0; c < candidates; ++c) {
      scores[c] = value.data[values_[outputs_[o].value].level == v1::USER ? 0 : c * value.stride];
    }
    if (!outputs_[o].calibration.empty()) {
      for (int64_t c = 0; c < candidates; ++c) {
        scores[c] = outputs_[o].calibration.Probability(scores[c]);
      }
    } else if (outputs_[o].sigmoid) {
      ops::Sigmoid(scores, candidates);
    }
  }
}

}  // namespace dinghy
