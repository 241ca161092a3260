#include "model/ops/pair_mlp.h"

#include "model/ops/vector_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/ops/pair_mlp.cc"
#include "hwy/foreach_target.h"  // must precede highway.h
#include "hwy/highway.h"
#include "model/ops/activation-inl.h"
#include "model/ops/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dinghy::ops {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2

#if HWY_TARGET == HWY_AVX3
constexpr int kMaxVectors =
    5;  // 5 rows of 5 vectors, the 5 of the weight and a broadcast: 31 of 32 registers
constexpr int RowsOf(int vectors) { return vectors >= 5 ? 5 : vectors == 4 ? 6 : 8; }
#else
constexpr int kMaxVectors = 2;  // 6 rows of 2 vectors, 2 of the weight and a broadcast: 15 of 16 registers
constexpr int RowsOf(int vectors) { return vectors >= 2 ? 6 : 8; }
#endif

using HalfTag = hn::Half<Tag>;

// c [kRows, kVectors vectors and perhaps half a one] = bias + a b.
template <int kRows, int kVectors, bool kHalf>
HWY_INLINE void Tile(const float* HWY_RESTRICT a, int64_t a_stride, int64_t k, const float* HWY_RESTRICT b,
                     int64_t b_stride, const float* HWY_RESTRICT bias, float* HWY_RESTRICT c,
                     int64_t c_stride) {
  const Tag d;
  const HalfTag dh;
  constexpr int64_t lanes = static_cast<int64_t>(hn::MaxLanes(Tag()));
  Vec sum[kRows][kVectors > 0 ? kVectors : 1];
  hn::Vec<HalfTag> half[kRows];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::LoadU(d, bias + v * lanes);
    if constexpr (kHalf) half[r] = hn::LoadU(dh, bias + kVectors * lanes);
  }
  for (int64_t i = 0; i < k; ++i, b += b_stride) {
    Vec weight[kVectors > 0 ? kVectors : 1];
    hn::Vec<HalfTag> half_weight;
    for (int v = 0; v < kVectors; ++v) weight[v] = hn::LoadU(d, b + v * lanes);
    if constexpr (kHalf) half_weight = hn::LoadU(dh, b + kVectors * lanes);
    for (int r = 0; r < kRows; ++r) {
      const Vec x = hn::Set(d, a[r * a_stride + i]);
      for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::MulAdd(x, weight[v], sum[r][v]);
      if constexpr (kHalf) half[r] = hn::MulAdd(hn::LowerHalf(dh, x), half_weight, half[r]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) hn::StoreU(sum[r][v], d, c + r * c_stride + v * lanes);
    if constexpr (kHalf) hn::StoreU(half[r], dh, c + r * c_stride + kVectors * lanes);
  }
}

template <int kVectors, bool kHalf>
HWY_NOINLINE void Columns(const float* a, int64_t a_stride, int64_t rows, int64_t k, const float* b,
                          int64_t b_stride, const float* bias, float* c, int64_t c_stride) {
  constexpr int kRows = RowsOf(kVectors + (kHalf ? 1 : 0));
  int64_t r = 0;
  const auto run = [&]<int kCount>() {
    Tile<kCount, kVectors, kHalf>(a + r * a_stride, a_stride, k, b, b_stride, bias, c + r * c_stride,
                                  c_stride);
    r += kCount;
  };
  while (r + kRows <= rows) run.template operator()<kRows>();
  if (r + 4 <= rows) run.template operator()<4>();
  if (r + 2 <= rows) run.template operator()<2>();
  while (r < rows) run.template operator()<1>();
}

// c [rows, n] = bias + a b, for b [k, n] padded with zeros to whole vectors.
void Product(const float* a, int64_t a_stride, int64_t rows, int64_t k, const float* b, int64_t n,
             int64_t b_stride, const float* bias, float* c, int64_t c_stride) {
  const int64_t lanes = static_cast<int64_t>(hn::MaxLanes(Tag()));
  while (n > 0) {
    int64_t vectors = n / lanes;
    bool half = false;
    if (vectors >= kMaxVectors) {
      vectors = kMaxVectors;
    } else if (n % lanes > 0) {
      half = HWY_TARGET == HWY_AVX3 && n % lanes <= lanes / 2;
      vectors += half ? 0 : 1;
    }
    switch (vectors * 2 + (half ? 1 : 0)) {
#if HWY_TARGET == HWY_AVX3
      case 10:
        Columns<5, false>(a, a_stride, rows, k, b, b_stride, bias, c, c_stride);
        break;
      case 9:
        Columns<4, true>(a, a_stride, rows, k, b, b_stride, bias, c, c_stride);
        break;
      case 8:
        Columns<4, false>(a, a_stride, rows, k, b, b_stride, bias, c, c_stride);
        break;
      case 7:
        Columns<3, true>(a, a_stride, rows, k, b, b_stride, bias, c, c_stride);
        break;
      case 6:
        Columns<3, false>(a, a_stride, rows, k, b, b_stride, bias, c, c_stride);
        break;
      case 5:
        Columns<2, true>(a, a_stride, rows, k, b, b_stride, bias, c, c_stride);
        break;
      case 3:
        Columns<1, true>(a, a_stride, rows, k, b, b_stride, bias, c, c_stride);
        break;
      case 1:
        Columns<0, true>(a, a_stride, rows, k, b, b_stride, bias, c, c_stride);
        break;
#endif
      case 4:
        Columns<2, false>(a, a_stride, rows, k, b, b_stride, bias, c, c_stride);
        break;
      default:
        Columns<1, false>(a, a_stride, rows, k, b, b_stride, bias, c, c_stride);
        break;
    }
    const int64_t done = vectors * lanes + (half ? lanes / 2 : 0);
    n -= done;
    b += done;
    bias += done;
    c += done;
  }
}

#if HWY_TARGET == HWY_AVX3
// 1 / (1 + exp(-x)), absolute error below 8e-7: exp as 2^(n / 16) from a table times a polynomial of second
// degree over |r| <= ln 2 / 32, and a reciprocal after one step of Newton. No division.
struct PairSigmoidOp {
  Vec table;
  PairSigmoidOp() {
    alignas(64) static constexpr float kPowers[16] = {
        1.0f,          1.0442737824f, 1.0905077327f, 1.1387886347f, 1.1892071150f, 1.2418578121f,
        1.2968395547f, 1.3542555469f, 1.4142135624f, 1.4768261459f, 1.5422108254f, 1.6104903319f,
        1.6817928305f, 1.7562521604f, 1.8340080864f, 1.9152065614f};
    table = hn::Load(Tag(), kPowers);
  }
  HWY_INLINE Vec operator()(Tag d, Vec x) const {
    const hn::RebindToSigned<Tag> di;
    const Vec clamped = AtLeast(d, -87.0f, AtMost(d, 87.0f, x));
    const Vec magic = hn::Set(d, 12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer, in the low bits
    const Vec shifted = hn::NegMulAdd(clamped, hn::Set(d, 23.083120654f), magic);  // -x * 16 / ln 2
    const Vec n = hn::Sub(shifted, magic);
    const Vec r = hn::MulAdd(n, hn::Set(d, 0.043321698785f), clamped);  // the negative of what is left of -x
    const Vec p = hn::MulAdd(r, hn::MulAdd(r, hn::Set(d, 0.5f), hn::Set(d, -1.0f)), hn::Set(d, 1.0f));
    const auto bits = hn::BitCast(di, shifted);
    const Vec power{_mm512_permutexvar_ps(bits.raw, table.raw)};
    const auto exponent = hn::And(hn::ShiftLeft<19>(bits), hn::Set(di, static_cast<int32_t>(0xFF800000)));
    const Vec scaled = hn::BitCast(d, hn::Add(hn::BitCast(di, power), exponent));
    const Vec divisor = hn::MulAdd(scaled, p, hn::Set(d, 1.0f));
    const Vec y = hn::ApproximateReciprocal(divisor);
    return hn::Mul(y, hn::NegMulAdd(divisor, y, hn::Set(d, 2.0f)));
  }
};
#else
using PairSigmoidOp = SigmoidOp;
#endif

// op(x, column) over x [rows, stride] in place.
template <class Op>
HWY_INLINE void MapTile(const Op& op, float* x, int64_t rows, int64_t stride) {
  const Tag d;
  const int64_t lanes = static_cast<int64_t>(hn::MaxLanes(d));
  for (int64_t r = 0; r < rows; ++r, x += stride) {
    for (int64_t i = 0; i < stride; i += lanes) hn::StoreU(op(hn::LoadU(d, x + i), i), d, x + i);
  }
}

void Activate(const PairMlp::Step& step, float* x, int64_t rows) {
  const Tag d;
  const PairSigmoidOp sigmoid;
  switch (step.activation) {
    case PairActivation::kLinear:
      break;
    case PairActivation::kRelu:
      MapTile([d](Vec v, int64_t) { return ReluOp()(d, v); }, x, rows, step.stride);
      break;
    case PairActivation::kSigmoid:
      MapTile([d, &sigmoid](Vec v, int64_t) { return sigmoid(d, v); }, x, rows, step.stride);
      break;
    case PairActivation::kTanh:
      MapTile([d](Vec v, int64_t) { return TanhOp()(d, v); }, x, rows, step.stride);
      break;
    case PairActivation::kSilu:
      MapTile([d, &sigmoid](Vec v, int64_t) { return hn::Mul(v, sigmoid(d, v)); }, x, rows, step.stride);
      break;
    case PairActivation::kPrelu:
      MapTile(
          [d, &step](Vec v, int64_t i) {
            const Vec alpha = hn::LoadU(d, step.alpha.data() + i);
            return hn::IfThenElse(hn::Gt(v, hn::Zero(d)), v, hn::Mul(alpha, v));
          },
          x, rows, step.stride);
      break;
    case PairActivation::kDice:
      MapTile(
          [d, &sigmoid, &step](Vec v, int64_t i) {
            const Vec scale = hn::LoadU(d, step.norm_scale.data() + i);
            const Vec shift = hn::LoadU(d, step.norm_shift.data() + i);
            const Vec p = sigmoid(d, hn::MulAdd(v, scale, shift));
            const Vec rest = hn::Mul(hn::LoadU(d, step.alpha.data() + i), hn::Sub(hn::Set(d, 1.0f), p));
            return hn::Mul(v, hn::Add(p, rest));
          },
          x, rows, step.stride);
      break;
  }
}

// scores [rows] = x w + bias; x [rows, step.in] with a stride. What stands behind a row, of any value, is
// left out.
void LastLayer(const PairMlp::Step& step, const float* x, int64_t stride, int64_t rows, float* scores) {
  const Tag d;
  const int64_t lanes = static_cast<int64_t>(hn::MaxLanes(d));
  const int64_t full = step.in / lanes * lanes;
  const auto tail = hn::FirstN(d, static_cast<size_t>(step.in - full));
  for (int64_t r = 0; r < rows; ++r, x += stride) {
    Vec sum = hn::Zero(d);
    for (int64_t i = 0; i < full; i += lanes) {
      sum = hn::MulAdd(hn::LoadU(d, x + i), hn::LoadU(d, step.weight.data() + i), sum);
    }
    if (full < step.in) {
      const Vec last = hn::IfThenElseZero(tail, hn::LoadU(d, x + full));
      sum = hn::MulAdd(last, hn::LoadU(d, step.weight.data() + full), sum);
    }
    scores[r] = hn::GetLane(hn::SumOfLanes(d, sum)) + step.bias[0];
  }
}

void RunPairMlp(const std::vector<PairMlp::Step>& steps, const float* keys, int64_t keys_stride, int64_t rows,
                const float* weight, const float* base, float* scores, float* first, float* second) {
  for (int64_t begin = 0; begin < rows; begin += PairMlp::kBlockRows) {
    const int64_t count = HWY_MIN(PairMlp::kBlockRows, rows - begin);
    const float* x = keys + begin * keys_stride;
    int64_t x_stride = keys_stride;
    for (size_t i = 0; i + 1 < steps.size(); ++i) {
      const PairMlp::Step& step = steps[i];
      float* y = i % 2 == 0 ? first : second;
      Product(x, x_stride, count, step.in, i == 0 ? weight : step.weight.data(), step.out, step.stride,
              i == 0 ? base : step.bias.data(), y, step.stride);
      Activate(step, y, count);
      x = y;
      x_stride = step.stride;
    }
    LastLayer(steps.back(), x, x_stride, count, scores + begin);
  }
}

#else

// Never called: Create gives none on this target.
void RunPairMlp(const std::vector<PairMlp::Step>&, const float*, int64_t, int64_t, const float*, const float*,
                float*, float*, float*) {
  HWY_ABORT("PairMlp: expected AVX2 or AVX-512");
}

#endif

bool HasPairMlp() { return HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2; }

}  // namespace HWY_NAMESPACE
}  // namespace dinghy::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <algorithm>

namespace dinghy::ops {

HWY_EXPORT(RunPairMlp);
HWY_EXPORT(HasPairMlp);

namespace {

constexpr int64_t kLanes = 16;  // of the widest target

std::vector<float> Padded(const float* x, int64_t n, int64_t size) {
  std::vector<float> out(size, 0.0f);
  if (x != nullptr) std::copy_n(x, n, out.begin());
  return out;
}

}  // namespace

std::unique_ptr<PairMlp> PairMlp::Create(const std::vector<Layer>& layers) {
  if (layers.size() < 2 || layers.back().out != 1 || !HWY_DYNAMIC_DISPATCH(HasPairMlp)()) return nullptr;
  auto out = std::make_unique<PairMlp>();
  for (size_t l = 0; l < layers.size(); ++l) {
    const Layer& layer = layers[l];
    Step step;
    step.in = layer.in;
    step.out = layer.out;
    step.activation = layer.activation;
    step.stride = (layer.out + kLanes - 1) / kLanes * kLanes;
    step.bias = Padded(layer.bias, layer.out, step.stride);
    step.alpha = Padded(layer.alpha, layer.out, step.stride);
    step.norm_scale = Padded(layer.norm_scale, layer.out, step.stride);
    step.norm_shift = Padded(layer.norm_shift, layer.out, step.stride);
    if (l + 1 == layers.size()) {
      step.weight = Padded(layer.weight, layer.in, (layer.in + kLanes - 1) / kLanes * kLanes);
    } else if (l > 0) {
      step.weight.resize(layer.in * step.stride);
      for (int64_t n = 0; n < layer.out; ++n) {
        for (int64_t k = 0; k < layer.in; ++k)
          step.weight[k * step.stride + n] = layer.weight[n * layer.in + k];
      }
    }
    out->steps_.push_back(std::move(step));
  }
  return out;
}

void PairMlp::Run(const float* keys, int64_t keys_stride, int64_t rows, const float* weight,
                  const float* base, float* scores, Scratch& scratch) const {
  Scratch::Scope scope(scratch);
  int64_t widest = 0;
  for (const Step& step : steps_) widest = std::max(widest, step.stride);
  float* first = scratch.Floats(kBlockRows * widest);
  float* second = scratch.Floats(kBlockRows * widest);
  HWY_DYNAMIC_DISPATCH(RunPairMlp)(steps_, keys, keys_stride, rows, weight, base, scores, first, second);
}

}  // namespace dinghy::ops
#endif  // HWY_ONCE
