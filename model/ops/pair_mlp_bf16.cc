#include "model/ops/pair_mlp_bf16.h"

#include <algorithm>
#include <array>
#include <utility>

#include "model/ops/bf16.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace dinghy::ops {

namespace {

// Columns are padded to a multiple of this, the floats of a vector.
constexpr int64_t kLanes = 16;

}  // namespace

#ifdef __x86_64__
// Highway 1.0 has no target with bfloat16 products.
#pragma GCC push_options
#pragma GCC target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")

namespace {

// A tile has at most so many rows; 5 rows of 5 vectors, the 5 of the weight and a broadcast are 31 of 32
// registers.
constexpr int kMostRows = 8;
constexpr int kMostHalves = 10;  // half vectors
constexpr int RowsOf(int halves) { return halves > 8 ? 5 : halves > 6 ? 6 : kMostRows; }

struct TileArgs {
  const uint32_t* a;  // [rows, pairs]
  int64_t a_stride;
  int64_t pairs;
  const uint32_t* b;  // [pairs, columns]
  int64_t b_stride;
  const float* bias;  // [columns]
  float* c;           // [rows, columns]
  int64_t c_stride;
};

// c = bias + a b for kRows rows by so many half vectors of columns. Loops over sums are unrolled by hand: GCC
// 12 does it too late and keeps sums in memory, a tenth of the kernel's time.
template <int kRows, int kHalves>
void Tile(const TileArgs& t) {
  constexpr int kVectors = kHalves / 2;
  constexpr bool kHalf = kHalves % 2 == 1;
  __m512 sum[kRows][kVectors > 0 ? kVectors : 1];
  __m256 half[kRows];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) sum[r][v] = _mm512_loadu_ps(t.bias + v * kLanes);
    if constexpr (kHalf) half[r] = _mm256_loadu_ps(t.bias + kVectors * kLanes);
  }
  const uint32_t* b = t.b;
  for (int64_t i = 0; i < t.pairs; ++i, b += t.b_stride) {
    __m512i weight[kVectors > 0 ? kVectors : 1];
    __m256i half_weight;
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) weight[v] = _mm512_loadu_si512(b + v * kLanes);
    if constexpr (kHalf)
      half_weight = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(b + kVectors * kLanes));
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const __m512i x = _mm512_set1_epi32(static_cast<int>(t.a[r * t.a_stride + i]));
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        sum[r][v] = _mm512_dpbf16_ps(sum[r][v], (__m512bh)weight[v], (__m512bh)x);
      }
      if constexpr (kHalf) {
        half[r] = _mm256_dpbf16_ps(half[r], (__m256bh)half_weight, (__m256bh)_mm512_castsi512_si256(x));
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    float* c = t.c + r * t.c_stride;
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) _mm512_storeu_ps(c + v * kLanes, sum[r][v]);
    if constexpr (kHalf) _mm256_storeu_ps(c + kVectors * kLanes, half[r]);
  }
}

using TileFunction = void (*)(const TileArgs&);

template <int kHalves, int... kRowsLessOne>
constexpr std::array<TileFunction, kMostRows> TilesOf(std::integer_sequence<int, kRowsLessOne...>) {
  return {(kRowsLessOne < RowsOf(kHalves) ? &Tile<std::min(kRowsLessOne + 1, RowsOf(kHalves)), kHalves>
                                          : nullptr)...};
}

template <int... kHalvesLessOne>
constexpr std::array<std::array<TileFunction, kMostRows>, kMostHalves> AllTiles(
    std::integer_sequence<int, kHalvesLessOne...>) {
  return {TilesOf<kHalvesLessOne + 1>(std::make_integer_sequence<int, kMostRows>())...};
}

// By half vectors and rows, each less one.
constexpr auto kTiles = AllTiles(std::make_integer_sequence<int, kMostHalves>());

// The half vectors that hold so many columns, at most those of one tile.
int64_t HalvesOf(int64_t columns) { return std::min<int64_t>(kMostHalves, (columns + 7) / 8); }

// 1 / (1 + exp(-x)), absolute error below 1e-4, which is a tenth of what rounding to bfloat16 costs: 2^y as a
// polynomial of third degree of y's fraction (relative error 7.5e-5) scaled by its integer, and the CPU's
// approximate reciprocal (6.2e-5). Whatever overflows ends at 0 or 1; NaN stays NaN.
inline __m512 Sigmoid(__m512 x) {
  const __m512 y = _mm512_mul_ps(x, _mm512_set1_ps(-1.44269504f));
  const __m512 fraction = _mm512_reduce_ps(y, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  __m512 p = _mm512_fmadd_ps(_mm512_set1_ps(0.07802455f), fraction, _mm512_set1_ps(0.22606718f));
  p = _mm512_fmadd_ps(p, fraction, _mm512_set1_ps(0.69583349f));
  p = _mm512_fmadd_ps(p, fraction, _mm512_set1_ps(0.99992523f));
  return _mm512_rcp14_ps(_mm512_add_ps(_mm512_scalef_ps(p, y), _mm512_set1_ps(1.0f)));
}

// Activations of one vector whose first column is `column`.
struct LinearOp {
  __m512 operator()(__m512 x, int64_t) const { return x; }
};
struct ReluOp {
  __m512 operator()(__m512 x, int64_t) const { return _mm512_max_ps(_mm512_setzero_ps(), x); }  // keeps NaN
};
struct SigmoidOp {
  __m512 operator()(__m512 x, int64_t) const { return Sigmoid(x); }
};
// tanh x = 2 sigmoid(2 x) - 1.
struct TanhOp {
  __m512 operator()(__m512 x, int64_t) const {
    const __m512 two = _mm512_set1_ps(2.0f);
    return _mm512_fmsub_ps(two, Sigmoid(_mm512_mul_ps(two, x)), _mm512_set1_ps(1.0f));
  }
};
struct SiluOp {
  __m512 operator()(__m512 x, int64_t) const { return _mm512_mul_ps(x, Sigmoid(x)); }
};
struct PreluOp {
  const float* alpha;
  __m512 operator()(__m512 x, int64_t column) const {
    const __mmask16 positive = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_GT_OQ);
    return _mm512_mask_mov_ps(_mm512_mul_ps(x, _mm512_loadu_ps(alpha + column)), positive, x);
  }
};
struct DiceOp {
  const PairMlpBf16::Step& step;
  __m512 operator()(__m512 x, int64_t column) const {
    const __m512 scale = _mm512_loadu_ps(step.norm_scale.data() + column);
    const __m512 p = Sigmoid(_mm512_fmadd_ps(x, scale, _mm512_loadu_ps(step.norm_shift.data() + column)));
    const __m512 alpha = _mm512_loadu_ps(step.alpha.data() + column);
    const __m512 rest = _mm512_mul_ps(alpha, _mm512_sub_ps(_mm512_set1_ps(1.0f), p));
    return _mm512_mul_ps(x, _mm512_add_ps(p, rest));
  }
};

// What becomes of the sums c [rows, stride] of a layer: of the last one before the scores, those; else the
// next layer's factors.
struct FinishArgs {
  const float* c;
  int64_t rows;
  int64_t stride;
  uint32_t* next;            // [rows, stride / 2], or null
  const float* last_weight;  // [stride], zeros behind the layer's width
  float last_bias;
  __mmask16 last_mask;  // of the last vector's columns within the width: the others may hold any number
  float* scores;        // [rows]
};

template <class Op>
void FinishRows(const Op& op, const FinishArgs& f) {
  const int64_t last = f.stride - kLanes;
  for (int64_t r = 0; r < f.rows; ++r) {
    const float* c = f.c + r * f.stride;
    if (f.next == nullptr) {
      __m512 sum = _mm512_setzero_ps();
      for (int64_t i = 0; i < last; i += kLanes) {
        sum = _mm512_fmadd_ps(op(_mm512_loadu_ps(c + i), i), _mm512_loadu_ps(f.last_weight + i), sum);
      }
      const __m512 tail = _mm512_maskz_mov_ps(f.last_mask, op(_mm512_loadu_ps(c + last), last));
      sum = _mm512_fmadd_ps(tail, _mm512_loadu_ps(f.last_weight + last), sum);
      f.scores[r] = _mm512_reduce_add_ps(sum) + f.last_bias;
      continue;
    }
    uint32_t* next = f.next + r * (f.stride / 2);
    int64_t i = 0;
    for (; i + 2 * kLanes <= f.stride; i += 2 * kLanes) {
      const __m512 low = op(_mm512_loadu_ps(c + i), i);
      const __m512 high = op(_mm512_loadu_ps(c + i + kLanes), i + kLanes);
      _mm512_storeu_si512(next + i / 2, (__m512i)_mm512_cvtne2ps_pbh(high, low));
    }
    if (i < f.stride) {
      const __m256i y = (__m256i)_mm512_cvtneps_pbh(op(_mm512_loadu_ps(c + i), i));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(next + i / 2), y);
    }
  }
}

void Finish(const PairMlpBf16::Step& step, const FinishArgs& args) {
  switch (step.activation) {
    case PairActivation::kLinear:
      return FinishRows(LinearOp(), args);
    case PairActivation::kRelu:
      return FinishRows(ReluOp(), args);
    case PairActivation::kSigmoid:
      return FinishRows(SigmoidOp(), args);
    case PairActivation::kTanh:
      return FinishRows(TanhOp(), args);
    case PairActivation::kSilu:
      return FinishRows(SiluOp(), args);
    case PairActivation::kPrelu:
      return FinishRows(PreluOp{step.alpha.data()}, args);
    case PairActivation::kDice:
      return FinishRows(DiceOp{step}, args);
  }
}

// diag(query) product + key as pairs of bfloat16: both weights [pairs, stride, 2].
void BuildWeight(const float* query, int64_t in, const float* product, const float* key, int64_t stride,
                 uint32_t* out) {
  for (int64_t k = 0; k < in; k += 2, key += 2 * stride, product += 2 * stride, out += stride) {
    const __m512 q =
        _mm512_unpacklo_ps(_mm512_set1_ps(query[k]), _mm512_set1_ps(k + 1 < in ? query[k + 1] : 0));
    for (int64_t i = 0; i < stride; i += kLanes) {
      const float* p = product + 2 * i;
      const float* w = key + 2 * i;
      const __m512 low = _mm512_fmadd_ps(q, _mm512_loadu_ps(p), _mm512_loadu_ps(w));
      const __m512 high = _mm512_fmadd_ps(q, _mm512_loadu_ps(p + kLanes), _mm512_loadu_ps(w + kLanes));
      _mm512_storeu_si512(out + i, (__m512i)_mm512_cvtne2ps_pbh(high, low));
    }
  }
}

void PackRow(const float* x, int64_t in, uint32_t* out) {
  for (int64_t k = 0; k < in; k += kLanes) {
    const auto mask = static_cast<__mmask16>((1u << std::min(kLanes, in - k)) - 1);
    const auto pairs = static_cast<__mmask8>((1u << (std::min(kLanes, in - k) + 1) / 2) - 1);
    const __m256i y = (__m256i)_mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(mask, x + k));
    _mm256_mask_storeu_epi32(out + k / 2, pairs, y);
  }
}

// Rows that go through all layers together, so that they and the weights stay in the first-level cache.
constexpr int64_t kBlockRows = 40;

struct BlockArgs {
  const std::vector<PairMlpBf16::Step>& steps;
  const uint32_t* weight;  // of the first step
  const float* base;       // [stride]
  const float* last_weight;
  float last_bias;
  const uint32_t* keys;  // [rows, pairs]
  int64_t rows;
  float* scores;
  float* sums;          // [kMostRows, widest]
  uint32_t* hidden[2];  // each [kBlockRows, widest / 2]
};

void RunBlock(const BlockArgs& args) {
  const uint32_t* x = args.keys;
  int64_t x_stride = (args.steps[0].in + 1) / 2;
  for (size_t s = 0; s < args.steps.size(); ++s) {
    const PairMlpBf16::Step& step = args.steps[s];
    const uint32_t* weight = s == 0 ? args.weight : step.weight.data();
    const float* bias = s == 0 ? args.base : step.bias.data();
    uint32_t* y = s + 1 == args.steps.size() ? nullptr : args.hidden[s % 2];
    const int64_t most = RowsOf(static_cast<int>(HalvesOf(step.out)));
    for (int64_t r = 0; r < args.rows; r += most) {
      const int64_t rows = std::min(most, args.rows - r);
      for (int64_t n = 0; n < step.out; n += kMostHalves * kLanes / 2) {
        kTiles[HalvesOf(step.out - n) - 1][rows - 1]({.a = x + r * x_stride,
                                                      .a_stride = x_stride,
                                                      .pairs = (step.in + 1) / 2,
                                                      .b = weight + n,
                                                      .b_stride = step.stride,
                                                      .bias = bias + n,
                                                      .c = args.sums + n,
                                                      .c_stride = step.stride});
      }
      Finish(step, {.c = args.sums,
                    .rows = rows,
                    .stride = step.stride,
                    .next = y == nullptr ? nullptr : y + r * (step.stride / 2),
                    .last_weight = args.last_weight,
                    .last_bias = args.last_bias,
                    .last_mask = static_cast<__mmask16>((1u << (step.out - step.stride + kLanes)) - 1),
                    .scores = args.scores + r});
    }
    x = y;
    x_stride = step.stride / 2;
  }
}

}  // namespace

#pragma GCC pop_options

namespace {

std::vector<float> Padded(const float* x, int64_t n, int64_t size) {
  std::vector<float> out(size, 0.0f);
  if (x != nullptr) std::copy_n(x, n, out.begin());
  return out;
}

// weight [in, out] as [pairs of inputs, stride, 2]. `row` and `column` are the floats from one to the next.
std::vector<float> Paired(const float* weight, int64_t row, int64_t column, const PairMlpBf16::Step& step) {
  std::vector<float> out((step.in + 1) / 2 * step.stride * 2, 0.0f);
  for (int64_t k = 0; k < step.in; ++k) {
    for (int64_t n = 0; n < step.out; ++n) {
      out[(k / 2 * step.stride + n) * 2 + k % 2] = weight[k * row + n * column];
    }
  }
  return out;
}

std::vector<uint32_t> Rounded(const std::vector<float>& paired) {
  std::vector<uint32_t> out(paired.size() / 2);
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = ToBf16(paired[2 * i]) | uint32_t{ToBf16(paired[2 * i + 1])} << 16;
  }
  return out;
}

}  // namespace

std::unique_ptr<PairMlpBf16> PairMlpBf16::Create(const Options& options) {
  const std::vector<PairMlp::Layer>& layers = options.layers;
  if (layers.size() < 2 || layers.back().out != 1 || !HasBf16()) return nullptr;
  auto out = std::make_unique<PairMlpBf16>();
  for (size_t l = 0; l + 1 < layers.size(); ++l) {
    const PairMlp::Layer& layer = layers[l];
    Step step;
    step.in = layer.in;
    step.out = layer.out;
    step.activation = layer.activation;
    step.stride = (layer.out + kLanes - 1) / kLanes * kLanes;
    step.bias = Padded(layer.bias, layer.out, step.stride);
    step.alpha = Padded(layer.alpha, layer.out, step.stride);
    step.norm_scale = Padded(layer.norm_scale, layer.out, step.stride);
    step.norm_shift = Padded(layer.norm_shift, layer.out, step.stride);
    if (l > 0) {
      step.weight = Rounded(Paired(layer.weight, 1, layer.in, step));
    } else {
      out->key_weight_ = Paired(options.key_weight, options.weight_stride, 1, step);
      if (options.product_weight != nullptr) {
        out->product_weight_ = Paired(options.product_weight, options.weight_stride, 1, step);
      } else {
        step.weight = Rounded(out->key_weight_);
      }
    }
    out->widest_ = std::max(out->widest_, step.stride);
    out->steps_.push_back(std::move(step));
  }
  const PairMlp::Layer& last = layers.back();
  out->last_weight_ = Padded(last.weight, last.in, out->steps_.back().stride);
  out->last_bias_ = last.bias != nullptr ? last.bias[0] : 0.0f;
  return out;
}

void PairMlpBf16::PackKeys(const float* keys, int64_t rows, uint32_t* packed) const {
  const int64_t in = steps_[0].in;
  for (int64_t r = 0; r < rows; ++r) PackRow(keys + r * in, in, packed + r * key_words());
}

void PairMlpBf16::Run(const uint32_t* keys, int64_t rows, const float* query, const float* base,
                      float* scores, Scratch& scratch) const {
  Scratch::Scope scope(scratch);
  const Step& first = steps_[0];
  const auto words = [&scratch](int64_t n) { return reinterpret_cast<uint32_t*>(scratch.Floats(n)); };
  const uint32_t* weight = first.weight.data();
  if (!product_weight_.empty()) {
    uint32_t* built = words(key_words() * first.stride);
    BuildWeight(query, first.in, product_weight_.data(), key_weight_.data(), first.stride, built);
    weight = built;
  }
  float* padded_base = scratch.Floats(first.stride);
  std::fill(std::copy_n(base, first.out, padded_base), padded_base + first.stride, 0.0f);
  BlockArgs args{.steps = steps_,
                 .weight = weight,
                 .base = padded_base,
                 .last_weight = last_weight_.data(),
                 .last_bias = last_bias_,
                 .keys = keys,
                 .rows = 0,
                 .scores = scores,
                 .sums = scratch.Floats(kMostRows * widest_),
                 .hidden = {words(kBlockRows * widest_ / 2), words(kBlockRows * widest_ / 2)}};
  for (int64_t r = 0; r < rows; r += kBlockRows) {
    args.rows = std::min(kBlockRows, rows - r);
    args.keys = keys + r * key_words();
    args.scores = scores + r;
    RunBlock(args);
  }
}

#else

std::unique_ptr<PairMlpBf16> PairMlpBf16::Create(const Options&) { return nullptr; }
// Never called: Create gives none.
void PairMlpBf16::PackKeys(const float*, int64_t, uint32_t*) const {}
void PairMlpBf16::Run(const uint32_t*, int64_t, const float*, const float*, float*, Scratch&) const {}

#endif

}  // namespace dinghy::ops
