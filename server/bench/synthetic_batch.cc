#include "server/bench/synthetic_batch.h"

#include <random>
#include <string>

#include "absl/strings/str_cat.h"

namespace dinghy {
namespace {

constexpr int kMostOfABag = 4;

class Draw {
 public:
  explicit Draw(uint64_t seed) : generator_(seed) {}

  int64_t Below(int64_t bound) { return std::uniform_int_distribution<int64_t>(0, bound - 1)(generator_); }
  float Number() { return std::uniform_real_distribution<float>(-1.0f, 1.0f)(generator_); }

 private:
  std::mt19937_64 generator_;
};

// The rows of the table named `name`; 0 where there is none.
int64_t RowsOf(const v1::BundleManifest& manifest, absl::Span<const int64_t> table_rows,
               const std::string& name) {
  for (int t = 0; t < manifest.tables_size(); ++t) {
    if (manifest.tables(t).name() == name) return table_rows[t];
  }
  return 0;
}

void FillIds(const v1::Feature& feature, int64_t rows, int64_t table_rows, Draw& draw,
             FeatureColumn& column) {
  const bool bag = feature.has_id() && feature.id().bag() != v1::IdFeature::SINGLE;
  int64_t ids = rows;
  if (bag) {
    column.offsets.push_back(0);
    for (int64_t r = 0; r < rows; ++r) {
      column.offsets.push_back(column.offsets.back() + static_cast<int32_t>(draw.Below(kMostOfABag + 1)));
    }
    ids = column.offsets.back();
  }
  for (int64_t i = 0; i < ids; ++i) column.rows.push_back(static_cast<int32_t>(draw.Below(table_rows)));
}

}  // namespace

absl::StatusOr<FeatureBatch> SyntheticBatch(const v1::BundleManifest& manifest,
                                            absl::Span<const int64_t> table_rows,
                                            const SyntheticBatchOptions& options) {
  for (const v1::Sequence& sequence : manifest.sequences()) {
    if (options.history <= static_cast<int64_t>(sequence.max_length())) continue;
    return absl::InvalidArgumentError(absl::StrCat("history: expected at most ", sequence.max_length(),
                                                   ", the max_length of sequence \"", sequence.name(),
                                                   "\", got ", options.history));
  }
  Draw draw(options.seed);
  FeatureBatch batch;
  batch.candidates = options.candidates;
  batch.sequence_lengths.assign(manifest.sequences_size(), options.history);
  batch.full_lengths = batch.sequence_lengths;
  for (const v1::Feature& feature : manifest.features()) {
    const int64_t rows = feature.level() == v1::CANDIDATE  ? options.candidates
                         : feature.level() == v1::SEQUENCE ? options.history
                                                           : 1;
    FeatureColumn column;
    if (feature.has_id() || feature.has_time_since()) {
      FillIds(feature, rows, RowsOf(manifest, table_rows, feature.table()), draw, column);
    } else {
      const int64_t width = feature.has_vector() ? feature.vector().dim() : 1;
      for (int64_t i = 0; i < rows * width; ++i) column.values.push_back(draw.Number());
    }
    batch.columns.push_back(std::move(column));
  }
  return batch;
}

}  // namespace dinghy
