// One score for short histories and another for long ones, by the history's length before anything was left
// out to save time.
#include <memory>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/layers/attention_score.h"
#include "model/ops/vector_math.h"

namespace dinghy {
namespace {

struct Branch {
  std::unique_ptr<AttentionScore> score;
  float scale = 1;
};

class AutoScore : public AttentionScore {
 public:
  AutoScore(int sequence, int64_t max_short, Branch short_history, Branch long_history)
      : sequence_(sequence),
        max_short_(max_short),
        short_history_(std::move(short_history)),
        long_history_(std::move(long_history)) {}

  void Prepare(const RunContext& context, UserPart& part) const override {
    Choose(context).score->Prepare(context, part);
  }

  Queries PrepareQueries(const RunContext& context) const override {
    return Choose(context).score->PrepareQueries(context);
  }

  void Run(const RunContext& context, const Queries& queries, int64_t q, float* scores,
           int64_t stride) const override {
    const Branch& branch = Choose(context);
    branch.score->Run(context, queries, q, scores, stride);
    if (branch.scale != 1) {
      ops::Scale(branch.scale, scores, context.batch.sequence_lengths[sequence_]);
    }
  }

  // Both branches' parameters; the flops of the long one, where they matter.
  void AddCost(LayerCost& cost) const override {
    LayerCost unused;
    short_history_.score->AddCost(unused);
    cost.parameters += unused.parameters;
    long_history_.score->AddCost(cost);
  }

 private:
  const Branch& Choose(const RunContext& context) const {
    return context.batch.full_lengths[sequence_] <= max_short_ ? short_history_ : long_history_;
  }

  const int sequence_;
  const int64_t max_short_;
  const Branch short_history_;
  const Branch long_history_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<AttentionScore>> CreateAutoScore(const v1::AutoScore& message,
                                                                const ScoreOptions& options,
                                                                LayerScope& scope) {
  if (!message.has_max_short()) return scope.Error("auto.max_short: expected a length, got nothing");
  Branch branches[2];
  for (const auto& [name, from, present, to] :
       {std::tuple{"short_history", &message.short_history(), message.has_short_history(), &branches[0]},
        std::tuple{"long_history", &message.long_history(), message.has_long_history(), &branches[1]}}) {
    if (!present) return scope.Error("auto.", name, ": expected a score, got nothing");
    if (!from->has_scale()) return scope.Error("auto.", name, ".scale: expected a number, got nothing");
    ScoreOptions inner = options;
    inner.prefix = absl::StrCat("auto.", name, ".");
    absl::StatusOr<std::unique_ptr<AttentionScore>> score = CreateAttentionScore(*from, inner, scope);
    if (!score.ok()) return score.status();
    to->score = *std::move(score);
    to->scale = from->scale();
  }
  return std::make_unique<AutoScore>(options.keys.sequence(), message.max_short(), std::move(branches[0]),
                                     std::move(branches[1]));
}

}  // namespace dinghy
