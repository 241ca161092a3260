#include "model/layers/latent_attention.h"

#include <utility>

#include "model/layers/history_buckets.h"
#include "model/layers/split_linear.h"
#include "model/ops/attention.h"

namespace dinghy {
namespace {

class LatentScore : public AttentionScore {
 public:
  LatentScore(const ScoreOptions& options, std::vector<std::unique_ptr<ops::RowLinear>> down)
      : query_(options.query), keys_(options.keys), down_(std::move(down)) {}

  void Prepare(const RunContext& context, UserPart& part) const override {
    part.keys = GatherTransposed(context, keys_);
  }

  Queries PrepareQueries(const RunContext& context) const override {
    const Value query = query_.Gather(context);
    const int64_t head_width = query_.width() / heads();
    const int64_t stride = heads() * keys_.width();
    float* projected = context.scratch.Floats(query.rows * stride);
    for (int64_t h = 0; h < heads(); ++h) {
      down_[h]->Run(query.data + h * head_width, query.stride, query.rows, projected + h * keys_.width(),
                    stride, context.scratch);
    }
    return {.query = {projected, query.rows, stride}};
  }

  void Run(const RunContext& context, const Queries& queries, int64_t q, float* scores,
           int64_t stride) const override {
    ops::DotScores(KeysOf(context), queries.query.data + q * queries.query.stride, keys_.width(), heads(),
                   scores, stride);
  }

  void AddCost(LayerCost& cost) const override {
    const double down = static_cast<double>(query_.width() * keys_.width());
    cost.parameters += query_.width() * keys_.width();
    cost.AddPerRow(query_.level(), 2.0 * down);
    AddPairCost(query_.level(), 2.0 * static_cast<double>(heads() * keys_.width()), cost);
  }

 private:
  int64_t heads() const { return static_cast<int64_t>(down_.size()); }

  const Inputs query_;
  const Inputs keys_;
  const std::vector<std::unique_ptr<ops::RowLinear>> down_;  // by head: key_up_h^T
};

}  // namespace

absl::StatusOr<std::unique_ptr<AttentionScore>> CreateLatentScore(const v1::LatentKeyValue& latent,
                                                                  const ScoreOptions& options,
                                                                  LayerScope& scope) {
  const int64_t width = options.query.width();
  const int64_t out = options.keys.width();
  const absl::StatusOr<const Tensor*> key_up =
      scope.FindTensor("latent.key_up", latent.key_up(), {width, out});
  if (!key_up.ok()) return key_up.status();
  const int64_t in = width / options.heads.heads;
  std::vector<std::unique_ptr<ops::RowLinear>> down;
  for (int64_t head = 0; head < options.heads.heads; ++head) {
    const float* from = (*key_up)->data.get() + head * in * out;
    DenseWeights weights{.weight = std::vector<float>(in * out), .in = in, .out = out};
    for (int64_t i = 0; i < in; ++i) {
      for (int64_t j = 0; j < out; ++j) weights.weight[j * in + i] = from[i * out + j];
    }
    absl::StatusOr<std::unique_ptr<ops::RowLinear>> linear =
        CreateRowLinear(options.query.level(), weights, scope);
    if (!linear.ok()) return linear.status();
    down.push_back(*std::move(linear));
  }
  return std::make_unique<LatentScore>(options, std::move(down));
}

absl::StatusOr<LatentValues> LatentValues::Create(const v1::LatentKeyValue& latent,
                                                  const ScoreOptions& options, int64_t pieces,
                                                  LayerScope& scope) {
  LatentValues out;
  out.pieces_ = pieces;
  out.latent_width_ = options.keys.width();
  const int64_t heads = options.heads.heads;
  const absl::StatusOr<const Tensor*> value_up =
      scope.FindTensor("latent.value_up", latent.value_up(), {-1, out.latent_width_});
  if (!value_up.ok()) return value_up.status();
  const int64_t rows = (*value_up)->shape[0];
  if (rows % heads != 0) {
    return scope.Error("latent.value_up \"", latent.value_up(), "\": expected rows that ", heads,
                       " heads divide, got ", rows);
  }
  out.head_width_ = rows / heads;
  const int64_t size = out.head_width_ * out.latent_width_;
  for (int64_t head = 0; head < heads; ++head) {
    const float* from = (*value_up)->data.get() + head * size;
    absl::StatusOr<std::unique_ptr<ops::RowLinear>> linear = CreateRowLinear(
        options.query.level(),
        {.weight = std::vector<float>(from, from + size), .in = out.latent_width_, .out = out.head_width_},
        scope);
    if (!linear.ok()) return linear.status();
    out.linear_.push_back(*std::move(linear));
  }
  return out;
}

void LatentValues::Run(const float* pooled, int64_t rows, float* out, ops::Scratch& scratch) const {
  const int64_t heads = static_cast<int64_t>(linear_.size());
  const int64_t stride = heads * pieces_ * latent_width_;
  for (int64_t piece = 0; piece < heads * pieces_; ++piece) {
    linear_[piece / pieces_]->Run(pooled + piece * latent_width_, stride, rows, out + piece * head_width_,
                                  width(), scratch);
  }
}

void LatentValues::AddCost(v1::Level query_level, LayerCost& cost) const {
  const int64_t size = static_cast<int64_t>(linear_.size()) * head_width_ * latent_width_;
  cost.parameters += size;
  cost.AddPerRow(query_level, 2.0 * static_cast<double>(size * pieces_));
}

}  // namespace dinghy
