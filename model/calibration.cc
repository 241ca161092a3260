#include "model/calibration.h"

#include <algorithm>
#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace dinghy {
namespace {

template <typename... Parts>
absl::Status Invalid(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

double Sigmoid(double x) {
  const double e = std::exp(-std::abs(x));
  return x < 0 ? e / (1 + e) : 1 / (1 + e);
}

absl::Status CheckPoints(const v1::PiecewiseLinear& line) {
  if (line.x_size() != line.y_size() || line.x_size() == 0) {
    return Invalid("piecewise_linear: expected as many x as y, at least one, got ", line.x_size(), " and ",
                   line.y_size());
  }
  for (int i = 0; i < line.x_size(); ++i) {
    const double before = i == 0 ? 0 : line.x(i - 1);
    if (!(line.x(i) > before && line.x(i) < 1)) {
      return Invalid("piecewise_linear.x[", i, "]: expected above ", before, " and below 1, got ", line.x(i));
    }
    const double least = i == 0 ? 0 : line.y(i - 1);
    if (!(line.y(i) >= least && line.y(i) <= 1)) {
      return Invalid("piecewise_linear.y[", i, "]: expected ", least, " to 1, got ", line.y(i));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Calibration> Calibration::Create(const v1::Output& output) {
  Calibration out;
  out.kind_ = output.calibration_case();
  if (!out.empty() && output.link() != v1::Output::SIGMOID) {
    return Invalid("calibration: expected none with link RAW, got one");
  }
  switch (out.kind_) {
    case v1::Output::kNegativeDownsampling: {
      const double rate = output.negative_downsampling().rate();
      if (!(rate > 0 && rate <= 1)) {
        return Invalid("negative_downsampling.rate: expected above 0 and at most 1, got ", rate);
      }
      // p / (p + (1 - p) / rate) has the odds of p times the rate.
      out.intercept_ = std::log(rate);
      break;
    }
    case v1::Output::kPlatt:
      out.slope_ = output.platt().slope();
      out.intercept_ = output.platt().intercept();
      if (!(out.slope_ > 0) || !std::isfinite(out.slope_)) {
        return Invalid("platt.slope: expected a number above 0, got ", out.slope_);
      }
      if (!std::isfinite(out.intercept_)) {
        return Invalid("platt.intercept: expected a finite number, got ", out.intercept_);
      }
      break;
    case v1::Output::kPiecewiseLinear: {
      const v1::PiecewiseLinear& line = output.piecewise_linear();
      if (absl::Status status = CheckPoints(line); !status.ok()) return status;
      out.x_ = {0.0};
      out.y_ = {0.0};
      out.x_.insert(out.x_.end(), line.x().begin(), line.x().end());
      out.y_.insert(out.y_.end(), line.y().begin(), line.y().end());
      out.x_.push_back(1.0);
      out.y_.push_back(1.0);
      break;
    }
    case v1::Output::CALIBRATION_NOT_SET:
      break;
  }
  return out;
}

float Calibration::Probability(float logit) const {
  const double p = Sigmoid(slope_ * logit + intercept_);
  if (kind_ != v1::Output::kPiecewiseLinear || std::isnan(p)) return static_cast<float>(p);
  // The first point past p, or the last one.
  const size_t right =
      std::min<size_t>(std::upper_bound(x_.begin(), x_.end(), p) - x_.begin(), x_.size() - 1);
  const double share = (p - x_[right - 1]) / (x_[right] - x_[right - 1]);
  return static_cast<float>(y_[right - 1] + share * (y_[right] - y_[right - 1]));
}

}  // namespace dinghy
