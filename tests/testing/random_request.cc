#include "tests/testing/random_request.h"

#include <random>
#include <string>

#include "absl/strings/str_cat.h"

namespace dinghy {
namespace {

constexpr int64_t kRequestTimeMs = 1'700'000'000'000;
constexpr int kTexts = 8;

void FillColumn(const v1::Feature& feature, const std::string& name, int rows, std::mt19937_64& random,
                v1::Column& column) {
  column.set_feature(name);
  std::uniform_real_distribution<float> number(-1.0f, 1.0f);
  if (feature.has_id() && feature.id().type() == v1::IdFeature::INT64) {
    std::uniform_int_distribution<int64_t> id(0, int64_t{feature.id().identity().rows()} - 1);
    auto& values = *column.mutable_ints()->mutable_values();
    for (int r = 0; r < rows; ++r) values.Add(id(random));
  } else if (feature.has_id()) {
    std::uniform_int_distribution<int> text(0, kTexts - 1);
    for (int r = 0; r < rows; ++r) column.mutable_strings()->add_values(absl::StrCat("text", text(random)));
  } else {
    const int width = feature.has_vector() ? static_cast<int>(feature.vector().dim()) : 1;
    auto& values = *column.mutable_floats()->mutable_values();
    for (int r = 0; r < rows * width; ++r) values.Add(number(random));
    // A vector of a sequence says its width, so that it is not taken for as many behaviors.
    for (int r = 0; r < rows && width > 1; ++r) column.add_lengths(static_cast<uint32_t>(width));
  }
}

}  // namespace

void FillRandomRequest(const Bundle& bundle, const RandomRequestOptions& options, v1::ScoreRequest& request) {
  const v1::BundleManifest& manifest = bundle.manifest;
  std::mt19937_64 random(options.seed);
  request.Clear();
  request.set_request_time_ms(kRequestTimeMs);
  for (const v1::Sequence& sequence : manifest.sequences()) {
    v1::SequenceData& data = *request.add_sequences();
    data.set_sequence(sequence.name());
    for (int b = 0; b < options.behaviors; ++b) {
      data.add_event_time_ms(kRequestTimeMs - 1000 * int64_t{options.behaviors - b});
    }
    for (const v1::Feature& feature : manifest.features()) {
      if (feature.sequence() != sequence.name() || feature.has_time_since() ||
          feature.from() == v1::CATALOG) {
        continue;
      }
      FillColumn(feature, feature.name().substr(sequence.name().size() + 1), options.behaviors, random,
                 *data.add_columns());
    }
  }
  for (const v1::Feature& feature : manifest.features()) {
    if (feature.level() == v1::USER) {
      FillColumn(feature, feature.name(), 1, random, *request.add_user());
    } else if (feature.level() == v1::CANDIDATE && feature.from() != v1::CATALOG) {
      FillColumn(feature, feature.name(), options.candidates, random, *request.add_candidates());
    }
  }
}

}  // namespace dinghy
