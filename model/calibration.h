// What is done to a model's probability before it is served, as Output.calibration in bundle.proto says.
//
//   ASSIGN_OR_RETURN(Calibration calibration, Calibration::Create(output));
//   float p = calibration.Probability(logit);
//
// Const after Create, so thread-safe.
#ifndef DINGHY_MODEL_CALIBRATION_H_
#define DINGHY_MODEL_CALIBRATION_H_

#include <vector>

#include "absl/status/statusor.h"
#include "proto/bundle.pb.h"

namespace dinghy {

class Calibration {
 public:
  Calibration() = default;  // none

  // Errors: INVALID_ARGUMENT naming the field, what was expected and what came.
  static absl::StatusOr<Calibration> Create(const v1::Output& output);

  // There is nothing to do.
  bool empty() const { return kind_ == v1::Output::CALIBRATION_NOT_SET; }

  // The calibrated probability for a logit, computed in double: finite for every finite logit, NaN for NaN.
  float Probability(float logit) const;

 private:
  v1::Output::CalibrationCase kind_ = v1::Output::CALIBRATION_NOT_SET;
  double slope_ = 1;           // of the logit: Platt
  double intercept_ = 0;       // of the logit: Platt, negative downsampling
  std::vector<double> x_, y_;  // piecewise linear, from (0, 0) to (1, 1)
};

}  // namespace dinghy

#endif  // DINGHY_MODEL_CALIBRATION_H_
