// What Model::Create refuses of activations, batch norms, inner products and calibrations, word for word.
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <ostream>
#include <string>
#include <vector>

#include "model/model.h"
#include "tests/testing/reference/random_model.h"

namespace dinghy::reference {
namespace {

// item, age -> tower [8, 1] -> click.
RandomModel ValidModel() {
  RandomModel model(5);
  model.AddSequence("clicks", 20);
  model.AddTable("item", 30, 6);
  model.AddId("item", v1::CANDIDATE, "item");
  model.AddNumeric("age", v1::USER);
  model.AddId("clicks.item", v1::SEQUENCE, "item");
  v1::Mlp& mlp = *model.AddLayer("tower", {"age", "item"})->mutable_mlp();
  *mlp.add_layers() = model.MakeDense("tower.0", 7, 8, v1::RELU);
  *mlp.add_layers() = model.MakeDense("tower.1", 8, 1, v1::LINEAR);
  model.AddOutput("click", "tower", v1::Output::SIGMOID);
  return model;
}

struct Fault {
  std::string name;
  std::function<void(RandomModel&)> make;
  std::string message;
};

// ctest shows parameters beside the names.
void PrintTo(const Fault& fault, std::ostream* out) { *out << fault.name; }

v1::Dense& Tower(RandomModel& m) { return *m.manifest.mutable_layers(0)->mutable_mlp()->mutable_layers(0); }
v1::BatchNorm& Norm(RandomModel& m) {
  v1::BatchNorm& norm = *Tower(m).mutable_norm();
  norm = m.MakeBatchNorm("bn", 8);
  return norm;
}
v1::ActivationParameters& Dice(RandomModel& m) {
  v1::ActivationParameters& parameters = *Tower(m).mutable_parameters();
  parameters = m.MakeParameters("dice", v1::DICE, 8);
  Tower(m).set_activation(v1::DICE);
  return parameters;
}
v1::Output& Click(RandomModel& m) { return *m.manifest.mutable_outputs(0); }
void SetLine(RandomModel& m, const std::vector<double>& x, const std::vector<double>& y) {
  v1::PiecewiseLinear& line = *Click(m).mutable_piecewise_linear();
  line.mutable_x()->Add(x.begin(), x.end());
  line.mutable_y()->Add(y.begin(), y.end());
}
void AddDot(RandomModel& m, const std::string& left, const std::string& right) {
  v1::Dot& dot = *m.AddLayer("dot", {})->mutable_dot();
  if (!left.empty()) dot.add_left(left);
  if (!right.empty()) dot.add_right(right);
}

std::vector<Fault> ActivationFaults() {
  return {
      {"Unknown", [](RandomModel& m) { Tower(m).set_activation(static_cast<v1::Activation>(99)); },
       "layer \"tower\": mlp.layers[0].activation: expected an activation, got 99"},
      {"SlopeMissing", [](RandomModel& m) { Tower(m).set_activation(v1::LEAKY_RELU); },
       "layer \"tower\": mlp.layers[0].parameters.slope: expected one for LEAKY_RELU, got nothing"},
      {"SlopeNotTaken", [](RandomModel& m) { Tower(m).mutable_parameters()->set_slope(0.1f); },
       "layer \"tower\": mlp.layers[0].parameters.slope: expected none for RELU, got one"},
      {"SlopeNotFinite",
       [](RandomModel& m) {
         Tower(m).set_activation(v1::LEAKY_RELU);
         Tower(m).mutable_parameters()->set_slope(std::numeric_limits<float>::infinity());
       },
       "layer \"tower\": mlp.layers[0].parameters.slope: expected a finite number, got inf"},
      {"AlphaMissing", [](RandomModel& m) { Tower(m).set_activation(v1::PRELU); },
       "layer \"tower\": mlp.layers[0].parameters.alpha: expected one for PRELU, got nothing"},
      {"AlphaNotTaken", [](RandomModel& m) { Tower(m).mutable_parameters()->set_alpha("tower.1.weight"); },
       "layer \"tower\": mlp.layers[0].parameters.alpha: expected none for RELU, got one"},
      {"AlphaUnknown", [](RandomModel& m) { Dice(m).set_alpha("nowhere"); },
       "layer \"tower\": mlp.layers[0].parameters.alpha: expected a tensor of the bundle, got \"nowhere\", "
       "which is in no file"},
      {"AlphaShape", [](RandomModel& m) { Dice(m).set_alpha(m.AddTensor("alpha", {7}, 1)); },
       "layer \"tower\": mlp.layers[0].parameters.alpha \"alpha\": expected shape [8] or [1], got [7]"},
      {"AlphaMatrix",
       [](RandomModel& m) {
         Dice(m).set_alpha(m.AddTensor("alpha", {8, 1}, 1));
       },
       "layer \"tower\": mlp.layers[0].parameters.alpha \"alpha\": expected shape [8] or [1], got [8, 1]"},
      {"NormNotTaken",
       [](RandomModel& m) {
         Dice(m);
         Tower(m).set_activation(v1::PRELU);
       },
       "layer \"tower\": mlp.layers[0].parameters.norm: expected none for PRELU, got one"},
      {"NormOfDice", [](RandomModel& m) { Dice(m).mutable_norm()->set_epsilon(0); },
       "layer \"tower\": mlp.layers[0].parameters.norm.epsilon: expected a number above 0, got 0"},
      {"LayerWithoutAlpha",
       [](RandomModel& m) { m.AddLayer("dice", {"item"})->mutable_activation()->set_function(v1::DICE); },
       "layer \"dice\": parameters.alpha: expected one for DICE, got nothing"},
  };
}

std::vector<Fault> BatchNormFaults() {
  return {
      {"NormWidth", [](RandomModel& m) { *Tower(m).mutable_norm() = m.MakeBatchNorm("bn", 9); },
       "layer \"tower\": mlp.layers[0].norm.mean \"bn.mean\": expected shape [8], got [9]"},
      {"NormWeightUnsaid", [](RandomModel& m) { Norm(m).clear_weight(); },
       "layer \"tower\": mlp.layers[0].norm.weight: expected a tensor's name, or \"\" for none, got nothing"},
      {"NormBiasUnsaid", [](RandomModel& m) { Norm(m).clear_bias(); },
       "layer \"tower\": mlp.layers[0].norm.bias: expected a tensor's name, or \"\" for none, got nothing"},
      {"NormVarianceMissing", [](RandomModel& m) { Norm(m).clear_variance(); },
       "layer \"tower\": mlp.layers[0].norm.variance: expected a tensor of the bundle, got \"\", which is in "
       "no file"},
      {"NormVarianceNegative",
       [](RandomModel& m) {
         Norm(m);
         m.tensors["bn.variance"].data[3] = -0.5f;
       },
       "layer \"tower\": mlp.layers[0].norm.variance \"bn.variance\": expected numbers of at least 0, got "
       "-0.5 in column 3"},
      {"NormVarianceNan",
       [](RandomModel& m) {
         Norm(m);
         m.tensors["bn.variance"].data[7] = std::numeric_limits<float>::quiet_NaN();
       },
       "layer \"tower\": mlp.layers[0].norm.variance \"bn.variance\": expected numbers of at least 0, got "
       "nan "
       "in column 7"},
      {"NormEpsilonMissing", [](RandomModel& m) { Norm(m).clear_epsilon(); },
       "layer \"tower\": mlp.layers[0].norm.epsilon: expected a number above 0, got nothing"},
      {"NormEpsilonNegative", [](RandomModel& m) { Norm(m).set_epsilon(-1); },
       "layer \"tower\": mlp.layers[0].norm.epsilon: expected a number above 0, got -1"},
      {"NormTooSteep",
       [](RandomModel& m) {
         Norm(m).set_epsilon(1e-38f);
         m.tensors["bn.variance"].data[2] = 0;
         m.tensors["bn.mean"].data[2] = 1e30f;
       },
       "layer \"tower\": mlp.layers[0].norm: expected a finite scale and shift, got an overflow in column 2"},
      {"LayerNormWidth",
       [](RandomModel& m) {
         *m.AddLayer("normed", {"item", "age"})->mutable_batch_norm() = m.MakeBatchNorm("bn", 6);
       },
       "layer \"normed\": batch_norm.mean \"bn.mean\": expected shape [7], got [6]"},
  };
}

std::vector<Fault> DotFaults() {
  return {
      {"DotWidths", [](RandomModel& m) { AddDot(m, "item", "age"); },
       "layer \"dot\": right: expected width 6 as left has, got 1"},
      {"DotLevels", [](RandomModel& m) { AddDot(m, "item", "clicks.item"); },
       "layer \"dot\": expected inputs of one level beside the user's, got \"left\" (candidate level) and "
       "\"right\" (sequence \"clicks\"); only target attention takes these together"},
      {"DotEmpty", [](RandomModel& m) { AddDot(m, "item", ""); },
       "layer \"dot\": right: expected at least one input, got none"},
  };
}

std::vector<Fault> CalibrationFaults() {
  return {
      {"CalibratedRaw",
       [](RandomModel& m) {
         Click(m).set_link(v1::Output::RAW);
         Click(m).mutable_platt()->set_slope(1);
       },
       "output \"click\": calibration: expected none with link RAW, got one"},
      {"RateZero", [](RandomModel& m) { Click(m).mutable_negative_downsampling()->set_rate(0); },
       "output \"click\": negative_downsampling.rate: expected above 0 and at most 1, got 0"},
      {"RateAboveOne", [](RandomModel& m) { Click(m).mutable_negative_downsampling()->set_rate(1.5); },
       "output \"click\": negative_downsampling.rate: expected above 0 and at most 1, got 1.5"},
      {"PlattSlope", [](RandomModel& m) { Click(m).mutable_platt()->set_slope(-1); },
       "output \"click\": platt.slope: expected a number above 0, got -1"},
      {"PlattIntercept",
       [](RandomModel& m) {
         Click(m).mutable_platt()->set_slope(1);
         Click(m).mutable_platt()->set_intercept(std::numeric_limits<double>::quiet_NaN());
       },
       "output \"click\": platt.intercept: expected a finite number, got nan"},
      {"PiecewiseNone", [](RandomModel& m) { SetLine(m, {}, {}); },
       "output \"click\": piecewise_linear: expected as many x as y, at least one, got 0 and 0"},
      {"PiecewiseCounts", [](RandomModel& m) { SetLine(m, {0.5}, {}); },
       "output \"click\": piecewise_linear: expected as many x as y, at least one, got 1 and 0"},
      {"PiecewiseOrder",
       [](RandomModel& m) {
         SetLine(m, {0.5, 0.5}, {0.3, 0.4});
       },
       "output \"click\": piecewise_linear.x[1]: expected above 0.5 and below 1, got 0.5"},
      {"PiecewiseAtZero", [](RandomModel& m) { SetLine(m, {0}, {0.3}); },
       "output \"click\": piecewise_linear.x[0]: expected above 0 and below 1, got 0"},
      {"PiecewiseFalls",
       [](RandomModel& m) {
         SetLine(m, {0.2, 0.5}, {0.4, 0.3});
       },
       "output \"click\": piecewise_linear.y[1]: expected 0.4 to 1, got 0.3"},
      {"PiecewiseAboveOne", [](RandomModel& m) { SetLine(m, {0.2}, {1.25}); },
       "output \"click\": piecewise_linear.y[0]: expected 0 to 1, got 1.25"},
  };
}

class RowwiseErrorsTest : public ::testing::TestWithParam<Fault> {};

TEST_P(RowwiseErrorsTest, NamesWhatIsWrong) {
  RandomModel random_model = ValidModel();
  ASSERT_TRUE(Model::Create(random_model.manifest, random_model.tensors).ok());
  GetParam().make(random_model);
  const absl::StatusOr<std::unique_ptr<Model>> model =
      Model::Create(random_model.manifest, random_model.tensors);
  ASSERT_FALSE(model.ok());
  EXPECT_EQ(model.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(std::string(model.status().message()), GetParam().message);
}

INSTANTIATE_TEST_SUITE_P(Activation, RowwiseErrorsTest, ::testing::ValuesIn(ActivationFaults()),
                         [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(BatchNorm, RowwiseErrorsTest, ::testing::ValuesIn(BatchNormFaults()),
                         [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(Dot, RowwiseErrorsTest, ::testing::ValuesIn(DotFaults()),
                         [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(Calibration, RowwiseErrorsTest, ::testing::ValuesIn(CalibrationFaults()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace dinghy::reference
