#include "model/loaded_model.h"

#include <filesystem>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "google/protobuf/util/json_util.h"
#include "gtest/gtest.h"
#include "tests/testing/test_bundle.h"

namespace dinghy {
namespace {

using ::testing::HasSubstr;

class LoadedModelTest : public ::testing::Test {
 protected:
  LoadedModelTest() {
    const std::string test = ::testing::UnitTest::GetInstance()->current_test_info()->name();
    root_ = absl::StrCat(::testing::TempDir(), "/loaded_model_test_", test);
  }
  ~LoadedModelTest() override { std::filesystem::remove_all(root_); }

  // A whole bundle whose first golden request `edit` has changed; its folder.
  std::string WithGolden(const std::function<void(v1::ScoreLog&)>& edit) {
    const auto folder = WriteTestBundle(root_, {});
    EXPECT_TRUE(folder.ok()) << folder.status();
    BundleFiles files = MakeTestBundleFiles({});
    std::vector<std::string> lines = absl::StrSplit(ReadFileBytes(*folder + "/golden.jsonl"), '\n');
    v1::ScoreLog golden;
    EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(lines[0], &golden).ok());
    edit(golden);
    lines[0] = MessageToJson(golden);
    for (const std::string& line : lines) absl::StrAppend(&files["golden.jsonl"], line, "\n");
    WriteBundleFolder(*folder, files);
    return *folder;
  }

  void ExpectGoldenError(const std::function<void(v1::ScoreLog&)>& edit, const std::string& part) {
    const absl::Status status = LoadModel(WithGolden(edit), {}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("golden request 1 (\"request 1\")"));
    EXPECT_THAT(std::string(status.message()), HasSubstr(part));
  }

  // Loads a folder with these weights in place of the right ones.
  absl::Status LoadWith(const TestTensors& tensors) {
    BundleFiles files = MakeTestBundleFiles({});
    files["weights.safetensors"] = SerializeSafetensors(tensors);
    WriteBundleFolder(root_ + "/shop/1", files);
    return LoadModel(root_ + "/shop/1", {}).status();
  }

  std::string root_;
};

TEST_F(LoadedModelTest, LoadsAndChecksGoldens) {
  for (bool self_attention : {false, true}) {
    const auto folder = WriteTestBundle(root_, {.version = 3, .self_attention = self_attention});
    ASSERT_TRUE(folder.ok()) << folder.status();
    const auto loaded = LoadModel(*folder, {});
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    EXPECT_EQ((*loaded)->bundle->version, 3);
    EXPECT_EQ((*loaded)->golden.requests, 3);
    EXPECT_EQ((*loaded)->golden.scores, 2 * (5 + 3 + 70));
    EXPECT_EQ((*loaded)->golden.max_error, 0);  // the same engine made them
    EXPECT_FALSE((*loaded)->model->numerics_id().empty());
  }
}

TEST_F(LoadedModelTest, MeasuresTheError) {
  const std::string folder = WithGolden([](v1::ScoreLog& golden) {
    golden.set_tolerance(0.01);
    v1::OutputScores& click = *golden.mutable_outputs(0);
    click.set_scores(1, click.scores(1) + 0.005f);
  });
  const auto loaded = LoadModel(folder, {});
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_NEAR((*loaded)->golden.max_error, 0.005, 1e-6);
}

TEST_F(LoadedModelTest, RefusesAScoreBeyondTheTolerance) {
  ExpectGoldenError(
      [](v1::ScoreLog& golden) {
        v1::OutputScores& purchase = *golden.mutable_outputs(1);
        purchase.set_scores(4, purchase.scores(4) + 1e-5f);
      },
      "output \"purchase\", candidate 4: expected ");
  ExpectGoldenError(
      [](v1::ScoreLog& golden) {
        golden.mutable_outputs(0)->set_scores(0, std::numeric_limits<float>::quiet_NaN());
      },
      "output \"click\", candidate 0: expected nan");
}

TEST_F(LoadedModelTest, RefusesGoldensThatLackSomething) {
  ExpectGoldenError([](v1::ScoreLog& golden) { golden.clear_tolerance(); }, "tolerance is missing");
  ExpectGoldenError([](v1::ScoreLog& golden) { golden.set_tolerance(-1); }, "tolerance: expected");
  ExpectGoldenError(
      [](v1::ScoreLog& golden) { golden.set_tolerance(std::numeric_limits<double>::infinity()); },
      "tolerance: expected");
  ExpectGoldenError([](v1::ScoreLog& golden) { golden.clear_outputs(); }, "outputs is missing");
  ExpectGoldenError([](v1::ScoreLog& golden) { golden.mutable_outputs(0)->set_output("clack"); },
                    "output \"clack\" is not among the model's outputs");
  ExpectGoldenError([](v1::ScoreLog& golden) { golden.mutable_outputs(1)->set_output("click"); },
                    "output \"click\" is listed twice");
  ExpectGoldenError([](v1::ScoreLog& golden) { golden.mutable_outputs(0)->mutable_scores()->RemoveLast(); },
                    "output \"click\": expected 5 scores, one per candidate, got 4");
  ExpectGoldenError([](v1::ScoreLog& golden) { golden.mutable_request()->mutable_user(0)->clear_values(); },
                    "age");
}

TEST_F(LoadedModelTest, RefusesNoGoldens) {
  WriteBundleFolder(root_ + "/shop/1", MakeTestBundleFiles({}));
  const absl::Status status = LoadModel(root_ + "/shop/1", {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("at least one golden request"));
}

TEST_F(LoadedModelTest, NeedsScoresOfEveryOutput) {
  BundleFiles files = MakeTestBundleFiles({});
  const std::string folder = root_ + "/shop/1";
  WriteBundleFolder(folder, files);
  const auto goldens = MakeGoldens(folder, {MakeTestRequest({})});
  ASSERT_TRUE(goldens.ok()) << goldens.status();
  v1::ScoreLog golden;
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(*goldens, &golden).ok());
  golden.mutable_outputs()->RemoveLast();
  files["golden.jsonl"] = MessageToJson(golden);
  WriteBundleFolder(folder, files);
  const absl::Status status = LoadModel(folder, {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("output \"purchase\""));
}

TEST_F(LoadedModelTest, RefusesTablesOfAnotherShape) {
  TestTensors tensors = MakeTestTensors({});
  const TestTensor item = tensors.at("item.weight");
  tensors.erase("item.weight");
  absl::Status status = LoadWith(tensors);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("table \"item\": tensor \"item.weight\" is in no safetensors file"));
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{8, 50}, std::vector<int64_t>{400}, std::vector<int64_t>{50, 8, 1}}) {
    tensors["item.weight"] = {shape, item.values};
    status = LoadWith(tensors);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("table \"item\": tensor \"item.weight\": expected shape [rows, 8], got ["));
  }
}

TEST_F(LoadedModelTest, RefusesATableWithTooFewRows) {
  TestTensors tensors = MakeTestTensors({});
  TestTensor& item = tensors.at("item.weight");
  item.shape = {40, 8};
  item.values.resize(320);
  const absl::Status status = LoadWith(tensors);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("item"));
}

// Every weight in turn gets another shape, or is left out.
TEST_F(LoadedModelTest, RefusesEveryWeightOfAnotherShape) {
  const TestBundleOptions options = {.self_attention = true};
  BundleFiles files = MakeTestBundleFiles(options);
  const TestTensors whole = MakeTestTensors(options);
  const std::string folder = root_ + "/shop/1";
  for (const auto& [name, tensor] : whole) {
    SCOPED_TRACE(name);
    for (const bool remove : {true, false}) {
      TestTensors tensors = whole;
      if (remove) {
        tensors.erase(name);
      } else {
        // One more column, or one more element of a vector.
        TestTensor& changed = tensors.at(name);
        changed.shape.back() += 1;
        changed.values.resize(changed.values.size() + (changed.shape.size() == 2 ? changed.shape[0] : 1));
      }
      files["weights.safetensors"] = SerializeSafetensors(tensors);
      WriteBundleFolder(folder, files);
      const absl::Status status = LoadModel(folder, {}).status();
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr(name));
    }
  }
}

TEST_F(LoadedModelTest, PassesOnWhatOpeningSays) {
  EXPECT_EQ(LoadModel(root_, {}).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace dinghy
