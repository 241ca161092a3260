// Interprets a manifest row by row in double precision: the truth that Model is compared with.
//
//   ReferenceResult expected = RunReferenceModel(manifest, tensors, batch);
//   expected.scores[o][c]
//
// The manifest must be one that Model::Create takes; anything else throws std::out_of_range or crashes.
// Thread-safe.
#ifndef DINGHY_TESTS_TESTING_REFERENCE_REFERENCE_MODEL_H_
#define DINGHY_TESTS_TESTING_REFERENCE_REFERENCE_MODEL_H_

#include <map>
#include <string>
#include <vector>

#include "features/feature_batch.h"
#include "model/tensor.h"
#include "proto/bundle.pb.h"
#include "tests/testing/reference/matrix.h"

namespace dinghy::reference {

struct ReferenceResult {
  std::vector<Row> scores;                  // [outputs][candidates]
  std::map<std::string, Matrix> values;     // of features and layers, by name
  std::map<std::string, Matrix> attention;  // of target attention layers: [queries][length]
};

ReferenceResult RunReferenceModel(const v1::BundleManifest& manifest, const TensorMap& tensors,
                                  const FeatureBatch& batch);

}  // namespace dinghy::reference

#endif  // DINGHY_TESTS_TESTING_REFERENCE_REFERENCE_MODEL_H_
