#include "model/calibration.h"

#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>
#include <limits>
#include <string>

#include "google/protobuf/text_format.h"
#include "tests/testing/reference/reference_layers.h"

namespace dinghy {
namespace {

v1::Output MakeOutput(const std::string& calibration) {
  v1::Output output;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString("link: SIGMOID " + calibration, &output));
  return output;
}

Calibration Create(const v1::Output& output) {
  const absl::StatusOr<Calibration> calibration = Calibration::Create(output);
  EXPECT_TRUE(calibration.ok()) << calibration.status();
  return calibration.ok() ? *calibration : Calibration();
}

TEST(CalibrationTest, NoneIsEmpty) {
  EXPECT_TRUE(Create(MakeOutput("")).empty());
  EXPECT_FALSE(Create(MakeOutput("platt { slope: 1 intercept: 0 }")).empty());
}

class CalibrationKindTest : public ::testing::TestWithParam<const char*> {};

TEST_P(CalibrationKindTest, FollowsItsFormula) {
  const v1::Output output = MakeOutput(GetParam());
  const Calibration calibration = Create(output);
  float before = 0;
  for (float logit = -30; logit <= 30; logit += 0.0625f) {
    const float p = calibration.Probability(logit);
    ASSERT_NEAR(p, reference::Calibrate(output, reference::Sigmoid(logit)), 1e-7) << logit;
    ASSERT_GE(p, before) << "probabilities keep their order";
    before = p;
  }
}

TEST_P(CalibrationKindTest, StaysAProbability) {
  const Calibration calibration = Create(MakeOutput(GetParam()));
  for (const float logit : {-FLT_MAX, -1000.0f, 0.0f, 1000.0f, FLT_MAX}) {
    const float p = calibration.Probability(logit);
    EXPECT_GE(p, 0) << logit;
    EXPECT_LE(p, 1) << logit;
  }
  EXPECT_TRUE(std::isnan(calibration.Probability(std::numeric_limits<float>::quiet_NaN())));
}

INSTANTIATE_TEST_SUITE_P(All, CalibrationKindTest,
                         ::testing::Values("negative_downsampling { rate: 0.05 }",
                                           "negative_downsampling { rate: 1 }",
                                           "platt { slope: 0.7 intercept: -1.3 }",
                                           "piecewise_linear { x: 0.25 y: 0.1 }",
                                           "piecewise_linear { x: 0.1 x: 0.5 x: 0.9 y: 0 y: 0.2 y: 0.2 }"));

// Worked by hand: at a rate of 0.1 even odds become one in eleven.
TEST(CalibrationTest, NegativeDownsamplingByHand) {
  const Calibration calibration = Create(MakeOutput("negative_downsampling { rate: 0.1 }"));
  EXPECT_FLOAT_EQ(calibration.Probability(0), 1.0f / 11);
}

// Far out, where a float probability is 1 or rounds to few digits, the logit still tells scores apart.
TEST(CalibrationTest, PlattReadsTheLogit) {
  const Calibration calibration = Create(MakeOutput("platt { slope: 0.1 intercept: 0 }"));
  EXPECT_NEAR(calibration.Probability(40), 1 / (1 + std::exp(-4.0)), 1e-7);
}

}  // namespace
}  // namespace dinghy
