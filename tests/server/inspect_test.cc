#include "server/inspect.h"

#include <algorithm>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/loaded_model.h"
#include "tests/testing/test_bundle.h"

namespace dinghy {
namespace {

using ::testing::HasSubstr;

class InspectTest : public ::testing::Test {
 protected:
  InspectTest() {
    const std::string test = ::testing::UnitTest::GetInstance()->current_test_info()->name();
    root_ = absl::StrCat(::testing::TempDir(), "/inspect_test_", test);
    folder_ = WriteTestBundle(root_, {.version = 4, .self_attention = true}).value();
  }
  ~InspectTest() override { std::filesystem::remove_all(root_); }

  std::string root_;
  std::string folder_;
};

// The words of the first line that begins with `word`.
std::vector<std::string> Line(const std::string& text, const std::string& word) {
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(text, '\n'))) {
    std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    if (!words.empty() && words[0] == word) return words;
  }
  return {};
}

TEST_F(InspectTest, PrintsWhatTheBundleHolds) {
  std::ostringstream out;
  ASSERT_EQ(InspectBundle(folder_, out), absl::OkStatus());
  const std::string text = out.str();
  const auto loaded = LoadModel(folder_, {});
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_THAT(text, HasSubstr("shop version 4\ndigest   " + (*loaded)->bundle->digest));
  EXPECT_THAT(text, HasSubstr("data     random weights"));
  EXPECT_THAT(Line(text, "clicks"), ::testing::ElementsAre("clicks", "10", "newest", "click"));
  EXPECT_THAT(Line(text, "segment"), ::testing::ElementsAre("segment", "user", "request", "string", "id,",
                                                            "segments.txt", "segment", "pad", "row"));
  EXPECT_THAT(text, HasSubstr("item (item)"));
  EXPECT_THAT(Line(text, "time"), ::testing::ElementsAre("time", "5", "12", "F32", "0.000", "time.weight"));
  EXPECT_THAT(Line(text, "purchase"), ::testing::ElementsAre("purchase", "buy", "sigmoid", "-"));
  // [16, 29] + [16] + [1, 16] + [1]
  const std::vector<std::string> tower = Line(text, "tower");
  ASSERT_GE(tower.size(), 5u);
  EXPECT_THAT(std::vector<std::string>(tower.begin(), tower.begin() + 5),
              ::testing::ElementsAre("tower", "mlp", "candidate", "1", "497"));
}

TEST_F(InspectTest, CountsEveryParameterOnce) {
  std::ostringstream out;
  ASSERT_EQ(InspectBundle(folder_, out), absl::OkStatus());
  size_t parameters = 0;
  for (const auto& [name, tensor] : MakeTestTensors({.self_attention = true})) {
    parameters += tensor.values.size();
  }
  EXPECT_THAT(out.str(), HasSubstr(absl::StrCat("\n", parameters, " parameters: ")));
}

// 1,000,000 rows of 8 bytes and a float each; no golden requests are needed.
TEST_F(InspectTest, SaysWhatTablesAreStoredAs) {
  BundleFiles files = MakeTestBundleFiles({});
  v1::BundleManifest manifest = MakeTestManifest({});
  manifest.mutable_tables(0)->set_scale("item.scale");
  files["bundle.json"] = MessageToJson(manifest);
  TestTensors tensors = MakeTestTensors({});
  tensors.erase("item.weight");
  tensors["item.scale"] = {{1'000'000}, std::vector<float>(1'000'000, 0.5f)};
  files["weights.safetensors"] = SerializeSafetensors(tensors);
  files["items.safetensors"] =
      SafetensorsFile(R"({"item.weight":{"dtype":"I8","shape":[1000000,8],"data_offsets":[0,8000000]}})",
                      std::string(8'000'000, '\x01'));
  WriteBundleFolder(folder_, files);
  std::ostringstream out;
  ASSERT_EQ(InspectBundle(folder_, out), absl::OkStatus());
  EXPECT_THAT(Line(out.str().substr(out.str().find("\nTABLE  ")), "item"),
              ::testing::ElementsAre("item", "1000000", "8", "I8", "12.000", "item.weight"));
}

TEST_F(InspectTest, FitsATerminalOf100Columns) {
  std::ostringstream out;
  ASSERT_EQ(InspectBundle(folder_, out), absl::OkStatus());
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(out.str(), '\n'))) {
    EXPECT_LE(line.size(), 100u) << line;
  }
}

TEST_F(InspectTest, ValidatesWithGoldens) {
  std::ostringstream out;
  ASSERT_EQ(ValidateBundle(folder_, out), absl::OkStatus());
  const std::string text = out.str();
  EXPECT_THAT(text, HasSubstr("shop version 4 is valid"));
  EXPECT_THAT(text, HasSubstr("golden requests 3\ngolden scores   156\nlargest error   0\n"));
  EXPECT_THAT(text, HasSubstr("numerics_id     "));
}

TEST_F(InspectTest, GivesTheErrorsOfABadBundle) {
  std::ostringstream out;
  EXPECT_EQ(InspectBundle(root_ + "/none", out).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ValidateBundle(root_ + "/none", out).code(), absl::StatusCode::kNotFound);
  // Without golden requests there is something to see, but nothing valid.
  WriteBundleFolder(folder_, MakeTestBundleFiles({}));
  EXPECT_EQ(ValidateBundle(folder_, out).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(out.str(), "");
  EXPECT_EQ(InspectBundle(folder_, out), absl::OkStatus());
}

}  // namespace
}  // namespace dinghy
