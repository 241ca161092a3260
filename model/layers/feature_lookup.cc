#include "model/layers/feature_lookup.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "model/ops/vector_math.h"

namespace dinghy {
namespace {

absl::StatusOr<const v1::Table*> FindTable(const LayerScope& scope, const std::string& name) {
  for (const v1::Table& table : scope.manifest().tables()) {
    if (table.name() != name) continue;
    if (!table.has_dim()) return scope.Error("table \"", name, "\": dim: expected a number, got nothing");
    return &table;
  }
  return scope.Error("table: expected a table of the manifest, got \"", name, "\"");
}

}  // namespace

absl::StatusOr<FeatureLookup> FeatureLookup::Create(LayerScope& scope) {
  const v1::BundleManifest& manifest = scope.manifest();
  FeatureLookup out;
  out.groups_.resize(2 + manifest.sequences_size());
  out.groups_[1].level = v1::CANDIDATE;
  for (int s = 0; s < manifest.sequences_size(); ++s) {
    out.groups_[2 + s].level = v1::SEQUENCE;
    out.groups_[2 + s].sequence = s;
  }
  for (const v1::Feature& feature : manifest.features()) {
    scope.SetSubject("feature", feature.name());
    Column column;
    if (feature.level() == v1::SEQUENCE) {
      const int sequence = scope.FindSequence(feature.sequence());
      if (sequence < 0) {
        return scope.Error("sequence: expected a sequence of the manifest, got \"", feature.sequence(), "\"");
      }
      column.group = 2 + sequence;
    } else if (feature.level() == v1::CANDIDATE || feature.level() == v1::USER) {
      column.group = feature.level() == v1::CANDIDATE ? 1 : 0;
    } else {
      return scope.Error("level: expected USER, SEQUENCE or CANDIDATE, got nothing");
    }
    int64_t width = 0;
    switch (feature.kind_case()) {
      case v1::Feature::kId:
      case v1::Feature::kTimeSince: {
        const absl::StatusOr<const v1::Table*> table = FindTable(scope, feature.table());
        if (!table.ok()) return table.status();
        width = (*table)->dim();
        const absl::StatusOr<const Tensor*> tensor =
            scope.FindTensor("table", (*table)->tensor(), {-1, width});
        if (!tensor.ok()) return tensor.status();
        column.table = (*tensor)->data.get();
        column.kind = Kind::kSingle;
        if (!feature.has_id()) break;
        if (feature.id().bag() == v1::IdFeature::BAG_SUM) {
          column.kind = Kind::kBagSum;
        } else if (feature.id().bag() == v1::IdFeature::BAG_MEAN) {
          column.kind = Kind::kBagMean;
        } else if (feature.id().bag() != v1::IdFeature::SINGLE) {
          return scope.Error("bag: expected SINGLE, BAG_SUM or BAG_MEAN, got nothing");
        }
        break;
      }
      case v1::Feature::kNumeric:
        width = 1;
        break;
      case v1::Feature::kVector:
        width = feature.vector().dim();
        break;
      case v1::Feature::KIND_NOT_SET:
        return scope.Error("expected a kind of feature, got none that is known");
    }
    if (width < 1 || width > kMaxValueWidth) {
      return scope.Error("dim: expected 1 to ", kMaxValueWidth, ", got ", width);
    }
    Group& group = out.groups_[column.group];
    column.width = static_cast<int>(width);
    column.offset = group.width;
    if (group.width + width > kMaxValueWidth) {
      return scope.Error("expected features of at most ", kMaxValueWidth, " columns in all, got more");
    }
    group.width += column.width;
    out.columns_.push_back(column);
    if (absl::Status status = scope.AddValue({.name = feature.name(),
                                              .level = group.level,
                                              .sequence = group.sequence,
                                              .width = column.width});
        !status.ok()) {
      return status;
    }
  }
  return out;
}

void FeatureLookup::Run(const FeatureBatch& batch, ops::Scratch& scratch, absl::Span<Value> values) const {
  const RunContext context{.batch = batch, .values = values, .scratch = scratch};
  for (size_t g = 0; g < groups_.size(); ++g) {
    const Group& group = groups_[g];
    if (group.width == 0) continue;
    const int64_t rows = context.Rows(group.level, group.sequence);
    float* data = scratch.Floats(rows * group.width);
    for (size_t f = 0; f < columns_.size(); ++f) {
      if (columns_[f].group != static_cast<int>(g)) continue;
      float* dst = data + columns_[f].offset;
      values[f] = {dst, rows, group.width};
      Fill(columns_[f], batch.columns[f], rows, group.width, dst);
    }
  }
}

void FeatureLookup::Fill(const Column& column, const FeatureColumn& encoded, int64_t rows, int64_t stride,
                         float* dst) {
  const int64_t width = column.width;
  switch (column.kind) {
    case Kind::kSingle:
      for (int64_t r = 0; r < rows; ++r) {
        std::memcpy(dst + r * stride, column.table + encoded.rows[r] * width, sizeof(float) * width);
      }
      break;
    case Kind::kFloats:
      for (int64_t r = 0; r < rows; ++r) {
        std::memcpy(dst + r * stride, encoded.values.data() + r * width, sizeof(float) * width);
      }
      break;
    case Kind::kBagSum:
    case Kind::kBagMean:
      for (int64_t r = 0; r < rows; ++r) {
        const int32_t begin = encoded.offsets[r];
        const int32_t end = encoded.offsets[r + 1];
        float* row = dst + r * stride;
        std::fill_n(row, width, 0.0f);
        for (int32_t i = begin; i < end; ++i) ops::AddTo(column.table + encoded.rows[i] * width, row, width);
        if (column.kind == Kind::kBagMean && end - begin > 1) {
          ops::Scale(1.0f / static_cast<float>(end - begin), row, width);
        }
      }
      break;
  }
}

}  // namespace dinghy
