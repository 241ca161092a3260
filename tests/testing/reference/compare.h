// Runs Model and the reference on one batch and compares every value, score and attention weight.
//
//   std::unique_ptr<Model> model = CreateModel(random_model);
//   CompareWithReference(random_model, *model, batch);
#ifndef DINGHY_TESTS_TESTING_REFERENCE_COMPARE_H_
#define DINGHY_TESTS_TESTING_REFERENCE_COMPARE_H_

#include <memory>

#include "features/feature_batch.h"
#include "model/model.h"
#include "tests/testing/reference/random_model.h"

namespace dinghy::reference {

// Fails the test and returns null where Model::Create does not succeed.
std::unique_ptr<Model> CreateModel(const RandomModel& random_model, const ModelOptions& options = {});

// Expects each value within `tolerance` of the reference, times the largest absolute value of its matrix (at
// least 1).
void CompareWithReference(const RandomModel& random_model, const Model& model, const FeatureBatch& batch,
                          double tolerance = 1e-5);

}  // namespace dinghy::reference

#endif  // DINGHY_TESTS_TESTING_REFERENCE_COMPARE_H_
