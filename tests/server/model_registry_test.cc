// Versions, labels, and when a version goes. The loader is a fake, apart from one test.
#include "server/model_registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "absl/strings/str_cat.h"
#include "tests/testing/test_bundle.h"

namespace dinghy {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class ModelRegistryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(::testing::TempDir()) /
            absl::StrCat("registry_", ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(root_);
    fs::create_directories(root_);
  }

  void AddVersion(const std::string& model, const std::string& version, bool complete = true) {
    fs::create_directories(root_ / model / version);
    if (complete) std::ofstream(root_ / model / version / "COMPLETE") << "{}";
  }

  // Loads a folder as a model of its parent's name (or `renamed_`), unless it is among `failing_`.
  ModelRegistry::Options Options() {
    ModelRegistry::Options options;
    options.root = root_.string();
    options.load = [this](const std::string& directory, const EncoderOptions&,
                          const ModelOptions&) -> absl::StatusOr<std::unique_ptr<LoadedModel>> {
      const fs::path path(directory);
      if (failing_.count(path.parent_path().filename().string() + "/" + path.filename().string()) > 0) {
        return absl::DataLossError("weights.safetensors: truncated");
      }
      auto loaded = std::make_unique<LoadedModel>();
      loaded->bundle = std::make_unique<Bundle>();
      loaded->bundle->manifest.set_name(renamed_.empty() ? path.parent_path().filename().string() : renamed_);
      loaded->bundle->version = std::stoll(path.filename().string());
      loaded->bundle->digest = absl::StrCat("digest ", path.filename().string());
      return loaded;
    };
    return options;
  }

  static int64_t VersionOf(const ModelRegistry& registry, const ModelChoice& choice) {
    const auto loaded = registry.Acquire(choice);
    return loaded.ok() ? (*loaded)->bundle->version : 0;
  }

  fs::path root_;
  std::set<std::string> failing_;
  std::string renamed_;
};

const ModelChoice kStable{.model = "shop", .version = 0, .by_version = false, .label = ""};
const ModelChoice kCanary{.model = "shop", .version = 0, .by_version = false, .label = "canary"};
ModelChoice ByVersion(int64_t version) {
  return {.model = "shop", .version = version, .by_version = true, .label = ""};
}

TEST_F(ModelRegistryTest, LoadsAllVersionsAndTheNewestIsStable) {
  AddVersion("shop", "2");
  AddVersion("shop", "10");
  AddVersion("shop", "11", /*complete=*/false);
  AddVersion("shop", "007");
  AddVersion("shop", "draft");
  auto registry = ModelRegistry::Create(Options());
  ASSERT_TRUE(registry.ok()) << registry.status();
  EXPECT_EQ(VersionOf(**registry, kStable), 10);
  EXPECT_EQ(VersionOf(**registry, ByVersion(2)), 2);
  EXPECT_EQ(VersionOf(**registry, {}), 10);  // one model: its name may be left out
  EXPECT_THAT(*(*registry)->Status("shop"), SizeIs(2));
  EXPECT_THAT((*registry)->Models(), ElementsAre("shop"));
}

TEST_F(ModelRegistryTest, UnknownNamesAreNotFound) {
  AddVersion("shop", "1");
  AddVersion("news", "4");
  auto registry = *ModelRegistry::Create(Options());
  const auto expect = [&](const ModelChoice& choice, absl::StatusCode code, const std::string& text) {
    const absl::Status status = registry->Acquire(choice).status();
    EXPECT_EQ(status.code(), code);
    EXPECT_THAT(status.message(), HasSubstr(text));
  };
  ModelChoice choice = kStable;
  choice.model = "shoe";
  expect(choice, absl::StatusCode::kNotFound, "model \"shoe\": this server has \"news\", \"shop\"");
  expect({}, absl::StatusCode::kInvalidArgument, "several (\"news\", \"shop\")");
  expect(ByVersion(3), absl::StatusCode::kNotFound, "model \"shop\", version 3: loaded versions are 1");
  expect(kCanary, absl::StatusCode::kNotFound, "\"canary\" points at no version");
  choice = kStable;
  choice.label = "beta";
  expect(choice, absl::StatusCode::kNotFound, "label \"beta\": expected stable or canary");
  EXPECT_EQ(registry->Status("shoe").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(ModelRegistryTest, NothingToLoadIsAnError) {
  auto none = ModelRegistry::Create(Options());
  EXPECT_EQ(none.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(none.status().message(), HasSubstr("expected <model>/<integer version>/COMPLETE"));
  ModelRegistry::Options options = Options();
  options.root = (root_ / "absent").string();
  EXPECT_EQ(ModelRegistry::Create(std::move(options)).status().code(), absl::StatusCode::kNotFound);
  AddVersion("shop", "1");
  failing_ = {"shop/1"};
  const auto all_fail = ModelRegistry::Create(Options());
  EXPECT_EQ(all_fail.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(all_fail.status().message(), HasSubstr("shop/1: weights.safetensors: truncated"));
}

TEST_F(ModelRegistryTest, AFailedVersionIsReportedAndTriedAgain) {
  AddVersion("shop", "1");
  AddVersion("shop", "2");
  failing_ = {"shop/2"};
  auto registry = ModelRegistry::Create(Options());
  ASSERT_TRUE(registry.ok()) << registry.status();
  EXPECT_EQ(VersionOf(**registry, kStable), 1);
  auto status = *(*registry)->Status("");
  ASSERT_THAT(status, SizeIs(2));
  EXPECT_EQ(status[1].state(), v1::ModelVersionStatus::FAILED);
  EXPECT_EQ(status[1].error(), "weights.safetensors: truncated");
  EXPECT_EQ((*registry)->Pin("shop", "", 2).code(), absl::StatusCode::kNotFound);
  failing_.clear();
  (*registry)->Reload();
  EXPECT_EQ(VersionOf(**registry, kStable), 2);
}

TEST_F(ModelRegistryTest, ABundleOfAnotherNameIsRefused) {
  AddVersion("shop", "1");
  renamed_ = "news";
  const auto registry = ModelRegistry::Create(Options());
  EXPECT_THAT(registry.status().message(),
              HasSubstr("name: expected \"shop\" as the folder says, got \"news\""));
}

TEST_F(ModelRegistryTest, PinsHoldAndUnpinningFollowsTheNewest) {
  AddVersion("shop", "1");
  AddVersion("shop", "2");
  auto registry = *ModelRegistry::Create(Options());
  ASSERT_TRUE(registry->Pin("shop", "stable", 1).ok());
  ASSERT_TRUE(registry->Pin("shop", "canary", 2).ok());
  AddVersion("shop", "3");
  registry->Reload();
  EXPECT_EQ(VersionOf(*registry, kStable), 1);
  EXPECT_EQ(VersionOf(*registry, kCanary), 2);
  auto status = *registry->Status("shop");
  EXPECT_THAT(status[0].pinned_labels(), ElementsAre("stable"));
  EXPECT_THAT(status[1].labels(), ElementsAre("canary"));
  EXPECT_THAT(status[2].labels(), SizeIs(0));
  ASSERT_TRUE(registry->Pin("shop", "", 0).ok());
  EXPECT_EQ(VersionOf(*registry, kStable), 3);
  ASSERT_TRUE(registry->Pin("shop", "canary", 0).ok());
  EXPECT_EQ(VersionOf(*registry, kCanary), 0);
  EXPECT_EQ(registry->Pin("shop", "beta", 1).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(registry->Pin("shop", "", 9).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(registry->Pin("shoe", "", 1).code(), absl::StatusCode::kNotFound);
}

TEST_F(ModelRegistryTest, RollbackGoesBackStepByStep) {
  AddVersion("shop", "1");
  auto registry = *ModelRegistry::Create(Options());
  EXPECT_EQ(registry->Rollback("shop").code(), absl::StatusCode::kFailedPrecondition);
  for (const char* version : {"2", "3"}) {
    AddVersion("shop", version);
    registry->Reload();
  }
  ASSERT_TRUE(registry->Rollback("shop").ok());
  EXPECT_EQ(VersionOf(*registry, kStable), 2);
  registry->Reload();  // pinned there: version 3 does not come back
  EXPECT_EQ(VersionOf(*registry, kStable), 2);
  ASSERT_TRUE(registry->Rollback("shop").ok());
  EXPECT_EQ(VersionOf(*registry, kStable), 1);
  EXPECT_EQ(registry->Rollback("shop").code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(registry->Rollback("shoe").code(), absl::StatusCode::kNotFound);
}

TEST_F(ModelRegistryTest, ARetiredVersionLivesAsLongAsARequestHoldsIt) {
  AddVersion("shop", "1");
  AddVersion("shop", "2");
  auto registry = *ModelRegistry::Create(Options());
  std::shared_ptr<const LoadedModel> held = *registry->Acquire(ByVersion(1));
  const std::weak_ptr<const LoadedModel> watched = held;
  fs::remove_all(root_ / "shop" / "1");
  registry->Reload();
  EXPECT_EQ(VersionOf(*registry, ByVersion(1)), 0);
  EXPECT_EQ(held->bundle->version, 1);
  held.reset();
  registry->Reload();  // the loader frees what is unused before it looks
  EXPECT_TRUE(watched.expired());
}

TEST_F(ModelRegistryTest, APinnedVersionStaysWhenItsFolderGoes) {
  AddVersion("shop", "1");
  AddVersion("shop", "2");
  auto registry = *ModelRegistry::Create(Options());
  ASSERT_TRUE(registry->Pin("shop", "canary", 1).ok());
  fs::remove_all(root_ / "shop" / "1");
  registry->Reload();
  EXPECT_EQ(VersionOf(*registry, kCanary), 1);
}

TEST_F(ModelRegistryTest, LoadsRealBundles) {
  ASSERT_TRUE(WriteTestBundle(root_.string(), {.version = 1}).ok());
  const auto truncated = WriteTestBundle(root_.string(), {.version = 2, .self_attention = true});
  ASSERT_TRUE(truncated.ok());
  fs::resize_file(fs::path(*truncated) / "weights.safetensors", 100);
  ModelRegistry::Options options;
  options.root = root_.string();
  auto registry = ModelRegistry::Create(std::move(options));
  ASSERT_TRUE(registry.ok()) << registry.status();
  EXPECT_EQ(VersionOf(**registry, kStable), 1);
  EXPECT_THAT((*(*registry)->Status("shop"))[1].error(), HasSubstr("weights.safetensors"));
}

}  // namespace
}  // namespace dinghy
