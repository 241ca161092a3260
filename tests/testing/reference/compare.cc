#include "tests/testing/reference/compare.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "absl/types/span.h"
#include "tests/testing/reference/reference_model.h"

namespace dinghy::reference {
namespace {

void ExpectNear(const std::string& what, const Matrix& expected, absl::Span<const float> got,
                double tolerance) {
  size_t size = 0;
  double magnitude = 1;
  for (const Row& row : expected) {
    size += row.size();
    for (const double value : row) magnitude = std::max(magnitude, std::abs(value));
  }
  ASSERT_EQ(got.size(), size) << what;
  size_t i = 0;
  for (size_t r = 0; r < expected.size(); ++r) {
    for (size_t j = 0; j < expected[r].size(); ++j, ++i) {
      ASSERT_NEAR(got[i], expected[r][j], tolerance * magnitude) << what << ", row " << r << ", column " << j;
    }
  }
}

}  // namespace

std::unique_ptr<Model> CreateModel(const RandomModel& random_model, const ModelOptions& options) {
  absl::StatusOr<std::unique_ptr<Model>> model =
      Model::Create(random_model.manifest, random_model.tensors, options);
  EXPECT_TRUE(model.ok()) << model.status();
  return model.ok() ? *std::move(model) : nullptr;
}

void CompareWithReference(const RandomModel& random_model, const Model& model, const FeatureBatch& batch,
                          double tolerance) {
  const v1::BundleManifest& manifest = random_model.manifest;
  const ReferenceResult expected = RunReferenceModel(manifest, random_model.tensors, batch);
  ModelScoreOptions options;
  options.attention = true;
  for (const auto& [name, matrix] : expected.values) options.debug_names.push_back(name);
  ops::Scratch scratch;
  ModelOutputs outputs;
  model.Score(batch, options, scratch, outputs);

  ASSERT_EQ(outputs.debug.size(), expected.values.size());
  for (const NamedValues& named : outputs.debug) {
    const Matrix& matrix = expected.values.at(named.name);
    EXPECT_EQ(named.rows, matrix.size()) << named.name;
    ExpectNear("value " + named.name, matrix, named.values, tolerance);
  }
  for (const AttentionWeights& attention : outputs.attention) {
    const std::string& name = manifest.layers(attention.layer).name();
    Matrix weights;
    if (expected.attention.count(name) != 0) weights = expected.attention.at(name);
    // One row a candidate, even where the query is the user's.
    if (!weights.empty()) weights.resize(batch.candidates, weights[0]);
    ExpectNear("attention " + name, weights, attention.weights, tolerance);
    EXPECT_GE(attention.sequence, 0);
  }
  ASSERT_EQ(outputs.scores.size(), expected.scores.size());
  for (size_t o = 0; o < outputs.scores.size(); ++o) {
    ExpectNear("output " + manifest.outputs(static_cast<int>(o)).name(), {expected.scores[o]},
               outputs.scores[o], tolerance);
  }
}

}  // namespace dinghy::reference
