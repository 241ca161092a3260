#include "model/ops/gemm.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <dnnl.hpp>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "model/ops/check.h"
#include "model/ops/cpu.h"
#include "model/ops/row_linear.h"
#include "model/ops/row_probe.h"

namespace dinghy::ops {
namespace {

using Dim = dnnl::memory::dim;
using Desc = dnnl::memory::desc;

// Tried in this order. 64 rows keep the kernels busy and cost a request of few candidates little.
constexpr std::array<int64_t, 5> kBlocks = {64, 48, 32, 16, 128};

Desc Strided(Dim rows, Dim columns, Dim row_stride, Dim column_stride) {
  return Desc({rows, columns}, dnnl::memory::data_type::f32, dnnl::memory::dims{row_stride, column_stride});
}

absl::Status OneDnnError(int64_t m, int64_t k, int64_t n, const dnnl::error& error) {
  return absl::InternalError(absl::StrCat("matrix product [", m, ", ", k, "] x [", k, ", ", n,
                                          "]: oneDNN: ", error.what(), " (status ", error.status, ")"));
}

void CopyRows(const float* from, int64_t from_stride, int64_t rows, int64_t width, float* to,
              int64_t to_stride) {
  for (int64_t r = 0; r < rows; ++r) {
    std::memcpy(to + r * to_stride, from + r * from_stride, static_cast<size_t>(width) * sizeof(float));
  }
}

// The one oneDNN primitive behind both classes. The constructor throws dnnl::error.
class Matmul {
 public:
  struct Options {
    Desc src;
    Desc weights;
    Desc bias;  // none if empty
    Desc dst;
    bool has_bias = false;
    bool accumulate = false;
  };

  explicit Matmul(const Options& options) : engine_(dnnl::engine::kind::cpu, 0), has_bias_(options.has_bias) {
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    attributes.set_fpmath_mode(dnnl::fpmath_mode::strict);
    if (options.accumulate) {
      dnnl::post_ops post_ops;
      post_ops.append_sum(1.0f);
      attributes.set_post_ops(post_ops);
    }
#if DNNL_VERSION_MAJOR >= 3
    description_ = has_bias_ ? dnnl::matmul::primitive_desc(engine_, options.src, options.weights,
                                                            options.bias, options.dst, attributes)
                             : dnnl::matmul::primitive_desc(engine_, options.src, options.weights,
                                                            options.dst, attributes);
#else
    const dnnl::matmul::desc operation =
        has_bias_ ? dnnl::matmul::desc(options.src, options.weights, options.bias, options.dst)
                  : dnnl::matmul::desc(options.src, options.weights, options.dst);
    description_ = dnnl::matmul::primitive_desc(operation, attributes, engine_);
#endif
    primitive_ = dnnl::matmul(description_);
    src_ = description_.src_desc();
    weights_ = description_.weights_desc();
    dst_ = description_.dst_desc();
    if (has_bias_) bias_ = description_.bias_desc();
    scratchpad_ = description_.scratchpad_desc();
    // As many as run at a time, as a rule; more are made when they are needed, and kept.
    static const size_t cpus = static_cast<size_t>(CpuBudget());
    for (size_t i = 0; i < std::min(cpus, kSlots); ++i) slots_[i].call = new Call(*this);
  }

  ~Matmul() {
    for (Slot& slot : slots_) delete slot.call.load();
  }

  const dnnl::engine& engine() const { return engine_; }
  const Desc& weights() const { return weights_; }

  // The oneDNN objects that one thread needs to run the primitive. Making them costs a microsecond, as much
  // as a small product, so they are kept and taken in turn.
  class Call {
   public:
    explicit Call(const Matmul& matmul)
        : primitive_(matmul.primitive_.get()),
          stream_(matmul.engine_),
          src_(matmul.src_, matmul.engine_, nullptr),
          weights_(matmul.weights_, matmul.engine_, nullptr),
          dst_(matmul.dst_, matmul.engine_, nullptr),
          scratchpad_(matmul.scratchpad_, matmul.engine_, nullptr) {
      arguments_[0] = {DNNL_ARG_SRC, src_.get()};
      arguments_[1] = {DNNL_ARG_WEIGHTS, weights_.get()};
      arguments_[2] = {DNNL_ARG_DST, dst_.get()};
      arguments_[3] = {DNNL_ARG_SCRATCHPAD, scratchpad_.get()};
      if (matmul.has_bias_) {
        bias_ = dnnl::memory(matmul.bias_, matmul.engine_, nullptr);
        arguments_[4] = {DNNL_ARG_BIAS, bias_.get()};
        count_ = 5;
      }
    }

    void Set(const float* weights, const float* bias, float* scratchpad) {
      weights_.set_data_handle(const_cast<float*>(weights));
      scratchpad_.set_data_handle(scratchpad);
      if (bias_) bias_.set_data_handle(const_cast<float*>(bias));
    }

    void Execute(const float* src, float* dst) {
      src_.set_data_handle(const_cast<float*>(src));
      dst_.set_data_handle(dst);
      DINGHY_OPS_CHECK(dnnl_primitive_execute(primitive_, stream_.get(), count_, arguments_.data()) ==
                       dnnl_success);
    }

   private:
    const_dnnl_primitive_t primitive_;
    dnnl::stream stream_;
    dnnl::memory src_;
    dnnl::memory weights_;
    dnnl::memory dst_;
    dnnl::memory scratchpad_;
    dnnl::memory bias_;
    std::array<dnnl_exec_arg_t, 5> arguments_;
    int count_ = 4;
  };

  // A call with its operands set but for `src` and `dst`; oneDNN's scratchpad comes from `scratch`. Give it
  // back.
  std::unique_ptr<Call> Take(const float* weights, const float* bias, Scratch& scratch) const {
    std::unique_ptr<Call> call;
    const size_t home = Home(scratch);
    // Twice and more, since another thread may have given one back to a slot that was passed, and have taken
    // the one that was still to come.
    for (size_t i = 0; i < 4 * kSlots && call == nullptr; ++i) {
      call.reset(slots_[(home + i) % kSlots].call.exchange(nullptr));
    }
    if (call == nullptr) call = std::make_unique<Call>(*this);
    call->Set(weights, bias, scratch.Floats((scratchpad_.get_size() + sizeof(float) - 1) / sizeof(float)));
    return call;
  }

  void GiveBack(std::unique_ptr<Call> call, const Scratch& scratch) const {
    const size_t home = Home(scratch);
    for (size_t i = 0; i < kSlots; ++i) {
      Call* none = nullptr;
      if (slots_[(home + i) % kSlots].call.compare_exchange_strong(none, call.get())) {
        call.release();
        return;
      }
    }
  }

 private:
  static constexpr size_t kSlots = 16;
  struct alignas(64) Slot {
    std::atomic<Call*> call = nullptr;
  };

  // Each worker has its own Scratch, and so starts at its own slot.
  static size_t Home(const Scratch& scratch) { return reinterpret_cast<uintptr_t>(&scratch) / 64 % kSlots; }

  dnnl::engine engine_;
  bool has_bias_;
  dnnl::matmul::primitive_desc description_;
  dnnl::matmul primitive_;
  Desc src_, weights_, bias_, dst_, scratchpad_;
  mutable std::array<Slot, kSlots> slots_;
};

// RowLinear by blocks of one size through oneDNN. The constructor throws dnnl::error.
class BlockLinear : public RowLinear {
 public:
  BlockLinear(const Options& options, int64_t block, const float* weight, int64_t weight_stride,
              const float* bias)
      : in_(options.in),
        out_(options.out),
        block_(block),
        exact_(options.rows > 0),
        accumulate_(options.accumulate),
        matmul_({.src = Strided(block, in_, in_, 1),
                 .weights = Desc({in_, out_}, dnnl::memory::data_type::f32, dnnl::memory::format_tag::any),
                 .bias = Strided(1, out_, out_, 1),
                 .dst = Strided(block, out_, out_, 1),
                 .has_bias = bias != nullptr,
                 .accumulate = accumulate_}),
        weights_(matmul_.weights(), matmul_.engine()) {
    dnnl::memory given(Strided(in_, out_, 1, weight_stride), matmul_.engine(), const_cast<float*>(weight));
    dnnl::stream stream(matmul_.engine());
    dnnl::reorder(given, weights_).execute(stream, given, weights_);
    stream.wait();
    if (bias != nullptr) {
      bias_ = dnnl::memory(Strided(1, out_, out_, 1), matmul_.engine());
      std::copy_n(bias, out_, static_cast<float*>(bias_.get_data_handle()));
    }
  }

  void Run(const float* x, int64_t x_stride, int64_t rows, float* y, int64_t y_stride,
           Scratch& scratch) const override {
    DINGHY_OPS_CHECK(!exact_ || rows == block_);
    if (rows == 0) return;
    const Scratch::Scope scope(scratch);
    std::unique_ptr<Matmul::Call> call =
        matmul_.Take(static_cast<const float*>(weights_.get_data_handle()),
                     bias_ ? static_cast<const float*>(bias_.get_data_handle()) : nullptr, scratch);
    float* packed_x = nullptr;
    float* packed_y = nullptr;
    for (int64_t row = 0; row < rows; row += block_) {
      const int64_t count = std::min(block_, rows - row);
      const float* block_x = x + row * x_stride;
      float* block_y = y + row * y_stride;
      // The primitive knows packed blocks of the full size alone; anything else goes through a copy.
      const bool copy_x = count < block_ || x_stride != in_;
      const bool copy_y = count < block_ || y_stride != out_;
      if (copy_x) {
        if (packed_x == nullptr) packed_x = scratch.Floats(static_cast<size_t>(block_ * in_));
        CopyRows(block_x, x_stride, count, in_, packed_x, in_);
        std::fill(packed_x + count * in_, packed_x + block_ * in_, 0.0f);
      }
      if (copy_y) {
        if (packed_y == nullptr) packed_y = scratch.Floats(static_cast<size_t>(block_ * out_));
        if (accumulate_) {
          CopyRows(block_y, y_stride, count, out_, packed_y, out_);
          std::fill(packed_y + count * out_, packed_y + block_ * out_, 0.0f);
        }
      }
      call->Execute(copy_x ? packed_x : block_x, copy_y ? packed_y : block_y);
      if (copy_y) CopyRows(packed_y, out_, count, out_, block_y, y_stride);
    }
    matmul_.GiveBack(std::move(call), scratch);
  }

  std::string Choice() const override { return absl::StrCat("oneDNN ", block_); }

 private:
  const int64_t in_;
  const int64_t out_;
  const int64_t block_;
  const bool exact_;
  const bool accumulate_;
  const Matmul matmul_;
  dnnl::memory weights_;
  dnnl::memory bias_;  // empty: none
};

class OneDnnGemm : public Gemm {
 public:
  // The constructor throws dnnl::error.
  explicit OneDnnGemm(const Options& o)
      : m_(o.m),
        c_stride_(o.c_stride),
        // oneDNN 3.7 takes a column for packed, whatever its stride.
        pack_column_(o.n == 1 && o.m > 1 && o.c_stride > 1),
        accumulate_(o.accumulate),
        has_bias_(o.bias),
        matmul_({.src = Rows(o.m, o.k, o.a_stride),
                 .weights = o.transpose_b ? Strided(o.k, o.n, 1, o.n == 1 ? o.k : o.b_stride)
                                          : Rows(o.k, o.n, o.b_stride),
                 .bias = Strided(1, o.n, o.n, 1),
                 .dst = Rows(o.m, o.n, pack_column_ ? 1 : o.c_stride),
                 .has_bias = o.bias,
                 .accumulate = o.accumulate}) {}

  void Run(const float* a, const float* b, const float* bias, float* c, Scratch& scratch) const override {
    DINGHY_OPS_CHECK(has_bias_ == (bias != nullptr));
    const Scratch::Scope scope(scratch);
    std::unique_ptr<Matmul::Call> call = matmul_.Take(b, bias, scratch);
    if (pack_column_) {
      float* column = scratch.Floats(static_cast<size_t>(m_));
      if (accumulate_) CopyRows(c, c_stride_, m_, 1, column, 1);
      call->Execute(a, column);
      CopyRows(column, 1, m_, 1, c, c_stride_);
    } else {
      call->Execute(a, c);
    }
    matmul_.GiveBack(std::move(call), scratch);
  }

 private:
  // The stride of a single row means nothing, but may lead oneDNN astray.
  static Desc Rows(int64_t rows, int64_t columns, int64_t stride) {
    return Strided(rows, columns, rows == 1 ? columns : stride, 1);
  }

  const int64_t m_;
  const int64_t c_stride_;
  const bool pack_column_;
  const bool accumulate_;
  const bool has_bias_;
  const Matmul matmul_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<RowLinear>> RowLinear::Create(const Options& options, const float* weight,
                                                             int64_t weight_stride, const float* bias) {
  if (options.in < 1 || options.out < 1 || options.rows < 0 || weight_stride < options.in) {
    return absl::InvalidArgumentError(absl::StrCat(
        "row linear ", options.in, " -> ", options.out, ": expected at least one input and output, ",
        "rows >= 0 and a weight stride of at least the inputs, got ", options.rows, " rows and stride ",
        weight_stride));
  }
  if (!options.onednn) return CreateTiledLinear(options, weight, weight_stride, bias);
  int64_t block = options.rows;
  try {
    if (options.rows > 0) {
      return std::make_unique<BlockLinear>(options, options.rows, weight, weight_stride, bias);
    }
    for (const int64_t candidate : kBlocks) {
      block = candidate;
      auto linear = std::make_unique<BlockLinear>(options, block, weight, weight_stride, bias);
      Scratch scratch;
      const bool alike = RowsAreAlike(
          {.rows = block, .in = options.in, .out = options.out, .accumulate = options.accumulate},
          [&](const float* x, float* y) { linear->Run(x, options.in, block, y, options.out, scratch); });
      if (alike) return linear;
    }
  } catch (const dnnl::error& error) {
    return OneDnnError(block, options.in, options.out, error);
  }
  return CreateTiledLinear(options, weight, weight_stride, bias);
}

absl::StatusOr<std::unique_ptr<Gemm>> Gemm::Create(const Options& o) {
  if (o.m < 1 || o.n < 1 || o.k < 1 || o.a_stride < o.k || o.b_stride < (o.transpose_b ? o.k : o.n) ||
      o.c_stride < o.n) {
    return absl::InvalidArgumentError(
        absl::StrCat("matrix product [", o.m, ", ", o.k, "] x [", o.k, ", ", o.n,
                     "]: expected sizes of at least 1 and strides of at least a row, got strides ",
                     o.a_stride, ", ", o.b_stride, o.transpose_b ? " (transposed), " : ", ", o.c_stride));
  }
  try {
    return std::make_unique<OneDnnGemm>(o);
  } catch (const dnnl::error& error) {
    return OneDnnError(o.m, o.k, o.n, error);
  }
}

}  // namespace dinghy::ops
