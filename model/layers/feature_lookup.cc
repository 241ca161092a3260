#include "model/layers/feature_lookup.h"

#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace dinghy {
namespace {

// What a pad behavior has as the feature, the scope's last value: its pad row, an empty bag, zeros. A time it
// has not.
absl::Status SetPadRow(const v1::Feature& feature, const ops::EmbeddingTable& table, int64_t width,
                       LayerScope& scope) {
  const int value = static_cast<int>(scope.values().size()) - 1;
  const absl::StatusOr<v1::Sequence::Pad> pad = scope.FindPad(scope.values()[value].sequence);
  if (!pad.ok()) return pad.status();
  if (*pad == v1::Sequence::NONE || feature.has_time_since()) return absl::OkStatus();
  std::vector<float> row(width, 0.0f);
  if (feature.has_id() && feature.id().bag() == v1::IdFeature::SINGLE) {
    if (!feature.id().has_pad_row()) {
      return scope.Error("id.pad_row: expected one, since the sequence is padded, got nothing");
    }
    if (feature.id().pad_row() >= table.rows) {
      return scope.Error("id.pad_row: expected a row of the table, which has ", table.rows, ", got ",
                         feature.id().pad_row());
    }
    const auto pad_row = static_cast<int32_t>(feature.id().pad_row());
    ops::GatherRows(table, &pad_row, {.data = row.data(), .rows = 1, .stride = width});
  }
  scope.SetPadRow(value, std::move(row));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<FeatureLookup> FeatureLookup::Create(LayerScope& scope) {
  const v1::BundleManifest& manifest = scope.manifest();
  FeatureLookup out;
  out.groups_.resize(2 + manifest.sequences_size());
  out.groups_[kCandidates].level = v1::CANDIDATE;
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
        const absl::StatusOr<ops::EmbeddingTable> table = scope.FindTable(feature.table());
        if (!table.ok()) return table.status();
        width = table->width;
        column.table = *table;
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
    if (feature.level() == v1::SEQUENCE) {
      if (absl::Status status = SetPadRow(feature, column.table, width, scope); !status.ok()) {
        return status;
      }
    }
  }
  return out;
}

void FeatureLookup::RunUser(const RunContext& context, absl::Span<Value> values) const {
  for (size_t g = 0; g < groups_.size(); ++g) {
    if (g != kCandidates) RunGroup(g, context, values);
  }
}

void FeatureLookup::RunCandidates(const RunContext& context, absl::Span<Value> values) const {
  RunGroup(kCandidates, context, values);
}

void FeatureLookup::RunGroup(size_t index, const RunContext& context, absl::Span<Value> values) const {
  const Group& group = groups_[index];
  if (group.width == 0) return;
  const int64_t first = index == kCandidates ? context.first : 0;
  const int64_t rows = context.Rows(group.level, group.sequence);
  float* data = context.scratch.Floats(rows * group.width);
  for (size_t f = 0; f < columns_.size(); ++f) {
    if (columns_[f].group != static_cast<int>(index)) continue;
    float* dst = data + columns_[f].offset;
    values[f] = {dst, rows, group.width};
    Fill(columns_[f], context.batch.columns[f], first, {.data = dst, .rows = rows, .stride = group.width});
  }
}

void FeatureLookup::Fill(const Column& column, const FeatureColumn& encoded, int64_t first,
                         const ops::GatheredRows& dst) {
  const int64_t width = column.width;
  switch (column.kind) {
    case Kind::kSingle:
      ops::GatherRows(column.table, encoded.rows.data() + first, dst);
      break;
    case Kind::kFloats:
      for (int64_t r = 0; r < dst.rows; ++r) {
        std::memcpy(dst.data + r * dst.stride, encoded.values.data() + (first + r) * width,
                    sizeof(float) * width);
      }
      break;
    case Kind::kBagSum:
      ops::GatherSums(column.table, encoded.rows.data(), encoded.offsets.data() + first, dst);
      break;
    case Kind::kBagMean:
      ops::GatherMeans(column.table, encoded.rows.data(), encoded.offsets.data() + first, dst);
      break;
  }
}

}  // namespace dinghy
