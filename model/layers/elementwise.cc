// Add and multiply: terms of equal width, elementwise.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "model/layers/inputs.h"
#include "model/layers/kinds.h"
#include "model/ops/vector_math.h"

namespace dinghy {
namespace {

using Operation = void (*)(const float* x, float* y, int64_t n);

class Elementwise : public Layer {
 public:
  Elementwise(ValueInfo info, const LayerCost& cost, std::vector<Inputs> terms, Operation operation)
      : Layer(std::move(info), cost), terms_(std::move(terms)), operation_(operation) {}

  Value Run(const RunContext& context) const override {
    const int64_t rows = context.Rows(info().level, info().sequence);
    const int64_t width = info().width;
    float* y = context.scratch.Floats(rows * width);
    ops::Scratch::Scope scope(context.scratch);
    for (size_t t = 0; t < terms_.size(); ++t) {
      const Value x = terms_[t].Gather(context);
      const int64_t stride = terms_[t].level() == info().level ? x.stride : 0;
      if (t > 0 && stride == width) {
        operation_(x.data, y, rows * width);
        continue;
      }
      for (int64_t r = 0; r < rows; ++r) {
        const float* row = x.data + r * stride;
        if (t == 0) {
          std::copy_n(row, width, y + r * width);
        } else {
          operation_(row, y + r * width, width);
        }
      }
    }
    return {y, rows, width};
  }

 private:
  const std::vector<Inputs> terms_;
  const Operation operation_;
};

absl::StatusOr<std::unique_ptr<Layer>> Create(const v1::Layer& layer, LayerScope& scope,
                                              const google::protobuf::RepeatedPtrField<v1::InputList>& terms,
                                              Operation operation) {
  if (terms.empty()) return scope.Error("terms: expected at least one, got none");
  ValueInfo info{.name = layer.name()};
  std::string highest;
  std::vector<Inputs> inputs;
  for (int t = 0; t < terms.size(); ++t) {
    const std::string field = absl::StrCat("terms[", t, "]");
    absl::StatusOr<Inputs> term = Inputs::Create(field, terms[t].inputs(), scope);
    if (!term.ok()) return term.status();
    if (t == 0) {
      info.width = term->width();
    } else if (term->width() != info.width) {
      return scope.Error(field, ": expected width ", info.width, " as terms[0] has, got ", term->width());
    }
    if (absl::Status status =
            MixLevels(scope, highest, info.level, info.sequence, field, term->level(), term->sequence());
        !status.ok()) {
      return status;
    }
    if (info.level != v1::USER && highest.empty()) highest = field;
    inputs.push_back(*std::move(term));
  }
  LayerCost cost;
  cost.AddPerRow(info.level, static_cast<double>(inputs.size() - 1) * info.width);
  return std::make_unique<Elementwise>(std::move(info), cost, std::move(inputs), operation);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Layer>> CreateAdd(const v1::Layer& layer, LayerScope& scope) {
  return Create(layer, scope, layer.add().terms(), &ops::AddTo);
}

absl::StatusOr<std::unique_ptr<Layer>> CreateMultiply(const v1::Layer& layer, LayerScope& scope) {
  return Create(layer, scope, layer.multiply().terms(), &ops::MultiplyBy);
}

}  // namespace dinghy
