#include "model/ops/pair_mlp.h"

#include <cstring>

#include "model/ops/vector_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/ops/pair_mlp.cc"
#include "hwy/foreach_target.h"  // must precede highway.h
#include "hwy/highway.h"
#include "model/ops/pair_activation-inl.h"
#include "model/ops/pair_tile-inl.h"
#include "model/ops/row_tile-inl.h"

#ifndef DINGHY_MODEL_OPS_PAIR_MLP_ONCE
#define DINGHY_MODEL_OPS_PAIR_MLP_ONCE
namespace dinghy::ops {

struct PairMlpArgs {
  const std::vector<PairMlp::Step>& steps;
  const float* key_weight;      // [in, first stride]
  const float* product_weight;  // the same; null: none
  const float* query;           // [in]
  const float* base;            // [first stride]
  const float* keys;            // [rows, in + 2], packed
  int64_t rows;
  float* scores;  // [rows]
  float* made;    // [in, first stride]: the query's weight; null without a product
  float* blocks;  // the hidden layers' values, each at its block_offset
  // Of pair sums alone.
  float* column_sums;   // [first stride], of the query's weight; null: plain products
  float* scaled_query;  // [in]
  float power;          // products are to be multiplied with 2^power
};

}  // namespace dinghy::ops
#endif

HWY_BEFORE_NAMESPACE();
namespace dinghy::ops {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2

// The first layer's weight while it is made: its rows are kept for the tiles that follow.
struct MadeRows {
  const float* key;
  const float* product;
  const float* query;
  float* made;
  int64_t stride;

  template <class D>
  HWY_INLINE hn::Vec<D> operator()(D d, int64_t i, int64_t column) const {
    const int64_t at = i * stride + column;
    const auto weight = hn::MulAdd(hn::Set(d, query[i]), hn::LoadU(d, product + at), hn::LoadU(d, key + at));
    hn::StoreU(weight, d, made + at);
    return weight;
  }
};

// As many rows as leave registers for an activation beside the products.
constexpr int RowsBeside(int vectors) {
  return HWY_TARGET == HWY_AVX2 ? RowsOf(vectors) : vectors >= 4 ? 4 : vectors == 3 ? 6 : 8;
}

// The sums of the lanes of four vectors, in rising order of the four. Each sum's order is its own.
HWY_INLINE hn::Vec<hn::Full128<float>> SumsOfLanes(Vec v0, Vec v1, Vec v2, Vec v3) {
  const Tag d;
  const hn::RepartitionToWide<Tag> dw;
  const Vec low = hn::Add(hn::InterleaveLower(d, v0, v1), hn::InterleaveUpper(d, v0, v1));
  const Vec high = hn::Add(hn::InterleaveLower(d, v2, v3), hn::InterleaveUpper(d, v2, v3));
  const auto low_pairs = hn::BitCast(dw, low), high_pairs = hn::BitCast(dw, high);
  const Vec blocks = hn::Add(hn::BitCast(d, hn::InterleaveLower(dw, low_pairs, high_pairs)),
                             hn::BitCast(d, hn::InterleaveUpper(dw, low_pairs, high_pairs)));
  const HalfTag dh;
  const HalfVec halves = hn::Add(hn::LowerHalf(dh, blocks), hn::UpperHalf(dh, blocks));
#if HWY_TARGET == HWY_AVX3
  const hn::Half<HalfTag> dq;
  return hn::Add(hn::LowerHalf(dq, halves), hn::UpperHalf(dq, halves));
#else
  return halves;
#endif
}

// scores [rows] = x w + bias; x [rows, stride]. What stands behind a row's step.in, of any value, is left
// out.
HWY_NOINLINE void LastLayer(const PairMlp::Step& step, const float* x, int64_t stride, int64_t rows,
                            float* scores) {
  const Tag d;
  const int64_t lanes = static_cast<int64_t>(hn::MaxLanes(d));
  const int64_t full = step.in / lanes * lanes;
  const auto tail = hn::FirstN(d, static_cast<size_t>(step.in - full));
  for (int64_t r = 0; r < rows; r += 4) {
    const int64_t count = HWY_MIN(4, rows - r);
    const float* row[4];
    Vec sum[4];
    HWY_UNROLL(4)
    for (int64_t j = 0; j < 4; ++j) {
      row[j] = x + (r + HWY_MIN(j, count - 1)) * stride;
      sum[j] = hn::Zero(d);
    }
    for (int64_t i = 0; i < full; i += lanes) {
      const Vec weight = hn::LoadU(d, step.weight.data() + i);
      HWY_UNROLL(4)
      for (int64_t j = 0; j < 4; ++j) sum[j] = hn::MulAdd(hn::LoadU(d, row[j] + i), weight, sum[j]);
    }
    if (full < step.in) {
      const Vec weight = hn::LoadU(d, step.weight.data() + full);
      HWY_UNROLL(4)
      for (int64_t j = 0; j < 4; ++j)
        sum[j] = hn::MulAdd(hn::MaskedLoad(tail, d, row[j] + full), weight, sum[j]);
    }
    const hn::Full128<float> dq;
    const auto sums = hn::Add(SumsOfLanes(sum[0], sum[1], sum[2], sum[3]), hn::Set(dq, step.bias[0]));
    if (count == 4) {
      hn::StoreU(sums, dq, scores + r);
    } else {
      alignas(16) float buffer[4];
      hn::Store(sums, dq, buffer);
      for (int64_t j = 0; j < count; ++j) scores[r + j] = buffer[j];
    }
  }
}

class PairMlpRun {
 public:
  explicit PairMlpRun(const PairMlpArgs& args) : args_(args) {}

  void Run() {
#if HWY_TARGET == HWY_AVX3
    if (args_.column_sums != nullptr) {
      query_power_ = ScaleRow(args_.query, nullptr, args_.steps[0].in, 0, args_.scaled_query);
      MakeWeight({.key = args_.key_weight,
                  .product = args_.product_weight,
                  .query = args_.scaled_query,
                  .power = query_power_,
                  .in = args_.steps[0].in,
                  .stride = args_.steps[0].stride,
                  .made = args_.made,
                  .column_sums = args_.column_sums});
    }
#endif
    for (begin_ = 0; begin_ < args_.rows; begin_ += PairMlp::kBlockRows) {
      for (size_t layer = 0; layer + 1 < args_.steps.size(); ++layer) RunLayer(layer);
    }
    FinishPending();
  }

 private:
  // Rows of a hidden layer that wait for their activation.
  struct Pending {
    const PairMlp::Step* step = nullptr;
    float* x = nullptr;       // [rows, step->stride]
    int64_t first = 0;        // row of the block
    int64_t rows = 0;         // 0: none
    int64_t block_rows = 0;   // of the block, where these complete its last hidden layer, else 0
    float* scores = nullptr;  // of the block
  };

  // All rows of the block at begin_.
  void RunLayer(size_t layer) {
    const PairMlp::Step& step = args_.steps[layer];
    RowTileArgs t{.k = step.in,
                  .b_stride = step.stride,
                  .c = args_.blocks + step.block_offset,
                  .c_stride = step.stride};
    if (layer == 0) {
      t.a_stride = step.in + 2;
      t.a = args_.keys + begin_ * t.a_stride;
      t.b = args_.made != nullptr ? args_.made : args_.key_weight;
      t.bias = args_.base;
    } else {
      t.a = args_.blocks + args_.steps[layer - 1].block_offset;
      t.a_stride = args_.steps[layer - 1].stride;
      t.b = step.weight.data();
      t.bias = step.bias.data();
    }
    ForPanels(step.stride, [&]<int kVectors, bool kHalf>(int64_t first, int64_t width) {
      if constexpr (HWY_TARGET == HWY_AVX3) {
        if (layer == 0 && args_.column_sums != nullptr) {
          return RunPanel<kVectors, kHalf, true>(layer, first, width, FromColumn(t, first));
        }
      }
      RunPanel<kVectors, kHalf, false>(layer, first, width, FromColumn(t, first));
    });
  }

  // The columns from `first` on. The last of several panels completes the rows, which then are pending.
  template <int kVectors, bool kHalf, bool kPairs>
  HWY_NOINLINE void RunPanel(size_t layer, int64_t first, int64_t width, const RowTileArgs& t) {
    constexpr int kRows = RowsBeside(kVectors + (kHalf ? 1 : 0));
    const int64_t rows = HWY_MIN(PairMlp::kBlockRows, args_.rows - begin_);
    const bool completes = first + width == args_.steps[layer].stride;
    int64_t r = 0;
    if (!kPairs && layer == 0 && begin_ == 0 && args_.made != nullptr) {
      const MadeRows made{args_.key_weight + first, args_.product_weight + first, args_.query,
                          args_.made + first, t.b_stride};
      if (rows >= 4) {
        RunTile<4, kVectors, kHalf, kPairs>(layer, r, width, t, made, completes);
      } else {
        RunTile<1, kVectors, kHalf, kPairs>(layer, r, width, t, made, completes);
      }
    }
    const GivenRows given{t.b, t.b_stride};
    while (r + kRows <= rows) RunTile<kRows, kVectors, kHalf, kPairs>(layer, r, width, t, given, completes);
    if (r + 4 <= rows) RunTile<4, kVectors, kHalf, kPairs>(layer, r, width, t, given, completes);
    if (r + 2 <= rows) RunTile<2, kVectors, kHalf, kPairs>(layer, r, width, t, given, completes);
    while (r < rows) RunTile<1, kVectors, kHalf, kPairs>(layer, r, width, t, given, completes);
  }

  // Rows r to r + kRows of the block, and beside them the pending ones' activation.
  template <int kRows, int kVectors, bool kHalf, bool kPairs, class RowsOfB>
  HWY_INLINE void RunTile(size_t layer, int64_t& r, int64_t width, const RowTileArgs& t, const RowsOfB& b,
                          bool completes) {
    const PairMlp::Step& step = args_.steps[layer];
    const int64_t rows = HWY_MIN(PairMlp::kBlockRows, args_.rows - begin_);
    const bool reads = layer > 0 && pending_.step == &args_.steps[layer - 1] && pending_.first < r + kRows;
    const bool overwrites = pending_.step == &step && pending_.block_rows > 0;
    if (reads || overwrites) FinishPending();
    SigmoidJob job(pending_.x, pending_.rows > 0 ? pending_.rows * pending_.step->stride : 0);
#if HWY_TARGET == HWY_AVX3
    if constexpr (kPairs) {
      PairTile<kRows, kVectors, kHalf>(t, args_.power + query_power_,
                                       args_.column_sums + (t.bias - args_.base), r, job);
    } else {
      RowTile<kRows, kVectors, kHalf>(t, r, width, b, job);
    }
#else
    RowTile<kRows, kVectors, kHalf>(t, r, width, b, job);
#endif
    ScorePending();
    if (completes) {
      pending_ = {.step = &step,
                  .x = t.c - (step.stride - width) + r * step.stride,
                  .first = r,
                  .rows = kRows,
                  .block_rows = layer + 2 == args_.steps.size() && r + kRows == rows ? rows : 0,
                  .scores = args_.scores + begin_};
      if (HWY_TARGET != HWY_AVX3 || step.activation != PairActivation::kSigmoid) FinishPending();
    }
    r += kRows;
  }

  void FinishPending() {
    if (pending_.rows == 0) return;
    ActivateRows(*pending_.step, pending_.x, pending_.rows);
    ScorePending();
  }

  // The pending rows are activated: the last layer, once a block is complete.
  HWY_INLINE void ScorePending() {
    if (pending_.rows > 0 && pending_.block_rows > 0) {
      LastLayer(args_.steps.back(), args_.blocks + pending_.step->block_offset, pending_.step->stride,
                pending_.block_rows, pending_.scores);
    }
    pending_.rows = 0;
  }

  const PairMlpArgs& args_;
  float query_power_ = 0;
  int64_t begin_ = 0;
  Pending pending_;
};

void RunPairMlp(const PairMlpArgs& args) { PairMlpRun(args).Run(); }

#else

// Never called: Create gives none on this target.
void RunPairMlp(const PairMlpArgs&) { HWY_ABORT("PairMlp: expected AVX2 or AVX-512"); }

#endif

// packed [rows, in + 2]; keys [rows, in]; scale [in], null for plain products.
void PackPairKeys(const float* keys, [[maybe_unused]] const float* scale, int64_t in, int64_t rows,
                  float* packed) {
  for (int64_t r = 0; r < rows; ++r, keys += in, packed += in + 2) {
#if HWY_TARGET == HWY_AVX3
    if (scale != nullptr) {
      PackRow(keys, scale, in, packed);
      continue;
    }
#endif
    std::memcpy(packed, keys, static_cast<size_t>(in) * sizeof(float));
  }
}

bool HasPairSums() { return HWY_TARGET == HWY_AVX3; }
bool HasPairMlp() { return HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2; }
float SigmoidUnit() { return kSigmoidUnit; }

}  // namespace HWY_NAMESPACE
}  // namespace dinghy::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <algorithm>
#include <cmath>

namespace dinghy::ops {

HWY_EXPORT(RunPairMlp);
HWY_EXPORT(PackPairKeys);
HWY_EXPORT(HasPairMlp);
HWY_EXPORT(HasPairSums);
HWY_EXPORT(SigmoidUnit);

namespace {

constexpr int64_t kLanes = 16;  // of the widest target
constexpr int kMostScale = 60;  // powers of two between the scales of a key's inputs

int64_t RoundUp(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// x [n] times `scale`, and zeros behind it.
AlignedFloats Padded(const float* x, int64_t n, int64_t size, float scale = 1) {
  AlignedFloats out(size, 0.0f);
  if (x != nullptr) std::transform(x, x + n, out.begin(), [scale](float v) { return v * scale; });
  return out;
}

// weight [in, out] of the first layer as its step wants it, [in, stride]; zeros where there is none.
AlignedFloats FirstWeight(const float* weight, int64_t weight_stride, const PairMlp::Step& step) {
  AlignedFloats out(step.in * step.stride, 0.0f);
  if (weight == nullptr) return out;
  for (int64_t k = 0; k < step.in; ++k) {
    for (int64_t n = 0; n < step.out; ++n)
      out[k * step.stride + n] = weight[k * weight_stride + n] * step.scale;
  }
  return out;
}

}  // namespace

std::unique_ptr<PairMlp> PairMlp::Create(const Options& options) {
  const std::vector<Layer>& layers = options.layers;
  if (layers.size() < 2 || layers.back().out != 1 || !HWY_DYNAMIC_DISPATCH(HasPairMlp)()) return nullptr;
  const float unit = HWY_DYNAMIC_DISPATCH(SigmoidUnit)();
  auto out = std::make_unique<PairMlp>();
  for (size_t l = 0; l < layers.size(); ++l) {
    const Layer& layer = layers[l];
    Step step;
    step.in = layer.in;
    step.out = layer.out;
    step.activation = layer.activation;
    step.stride = RoundUp(layer.out, kLanes / 2);
    step.scale = layer.activation == PairActivation::kSigmoid ? unit : 1.0f;
    const int64_t padded = step.stride + kLanes;
    step.bias = Padded(layer.bias, layer.out, padded, step.scale);
    step.alpha = Padded(layer.alpha, layer.out, padded);
    step.norm_scale = Padded(layer.norm_scale, layer.out, padded, unit);
    step.norm_shift = Padded(layer.norm_shift, layer.out, padded, unit);
    if (l + 1 == layers.size()) {
      step.weight = Padded(layer.weight, layer.in, RoundUp(layer.in, kLanes));
    } else {
      step.block_offset = out->block_floats_;
      out->block_floats_ += kBlockRows * step.stride + kLanes;
    }
    if (l > 0 && l + 1 < layers.size()) {
      step.weight.resize(layer.in * step.stride);
      for (int64_t n = 0; n < layer.out; ++n) {
        for (int64_t k = 0; k < layer.in; ++k)
          step.weight[k * step.stride + n] = layer.weight[n * layer.in + k] * step.scale;
      }
    }
    out->steps_.push_back(std::move(step));
  }
  const Step& first = out->steps_[0];
  out->key_weight_ = FirstWeight(options.key_weight, options.weight_stride, first);
  out->has_product_ = options.product_weight != nullptr;
  if (out->has_product_)
    out->product_weight_ = FirstWeight(options.product_weight, options.weight_stride, first);
  if (options.pair_sums && HWY_DYNAMIC_DISPATCH(HasPairSums)()) out->ScaleForPairSums();
  return out;
}

void PairMlp::ScaleForPairSums() {
  const int64_t in = steps_[0].in, stride = steps_[0].stride;
  // The weight's sums are made with the weight: without a product, from one of zeros.
  product_weight_.resize(key_weight_.size());
  std::vector<int> powers(in);
  for (int64_t k = 0; k < in; ++k) {
    float largest = 0;
    for (int64_t n = k * stride; n < (k + 1) * stride; ++n) {
      largest = std::max({largest, std::abs(key_weight_[n]), std::abs(product_weight_[n])});
    }
    std::frexp(largest, &powers[k]);
  }
  const int power = *std::max_element(powers.begin(), powers.end());
  for (int64_t k = 0; k < in; ++k) {
    const int row_power = std::max(powers[k], power - kMostScale);
    key_scale_.push_back(std::ldexp(1.0f, row_power - power));
    for (int64_t n = k * stride; n < (k + 1) * stride; ++n) {
      key_weight_[n] = std::ldexp(key_weight_[n], -row_power);
      product_weight_[n] = std::ldexp(product_weight_[n], -row_power);
    }
  }
  power_ = static_cast<float>(power);
}

void PairMlp::PackKeys(const float* keys, int64_t rows, float* packed) const {
  HWY_DYNAMIC_DISPATCH(PackPairKeys)
  (keys, key_scale_.empty() ? nullptr : key_scale_.data(), steps_[0].in, rows, packed);
}

void PairMlp::Run(const float* packed_keys, int64_t rows, const float* query, const float* base,
                  float* scores, Scratch& scratch) const {
  Scratch::Scope scope(scratch);
  const Step& first = steps_[0];
  float* padded_base = scratch.Floats(first.stride);
  std::transform(base, base + first.out, padded_base, [&first](float v) { return v * first.scale; });
  std::fill(padded_base + first.out, padded_base + first.stride, 0.0f);
  PairMlpArgs args{.steps = steps_,
                   .key_weight = key_weight_.data(),
                   .product_weight = product_weight_.data(),
                   .query = query,
                   .base = padded_base,
                   .keys = packed_keys,
                   .rows = rows,
                   .scores = scores,
                   .made = nullptr,
                   .blocks = scratch.Floats(block_floats_),
                   .column_sums = nullptr,
                   .scaled_query = nullptr,
                   .power = power_};
  if (!product_weight_.empty()) args.made = scratch.Floats(first.in * first.stride);
  if (!key_scale_.empty()) {
    args.column_sums = scratch.Floats(first.stride);
    args.scaled_query = scratch.Floats(first.in);
    if (!has_product_) {
      std::fill_n(args.scaled_query, first.in, 0.0f);
      args.query = args.scaled_query;
    }
  }
  HWY_DYNAMIC_DISPATCH(RunPairMlp)(args);
}

}  // namespace dinghy::ops
#endif  // HWY_ONCE
