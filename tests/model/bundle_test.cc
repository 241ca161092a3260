#include "model/bundle.h"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/loaded_model.h"
#include "model/sha256.h"
#include "tests/testing/test_bundle.h"

namespace dinghy {
namespace {

using ::testing::HasSubstr;

class BundleTest : public ::testing::Test {
 protected:
  BundleTest() {
    const std::string test = ::testing::UnitTest::GetInstance()->current_test_info()->name();
    folder_ = absl::StrCat(::testing::TempDir(), "/bundle_test_", test, "/shop/7");
  }
  ~BundleTest() override { std::filesystem::remove_all(std::filesystem::path(folder_).parent_path()); }

  // What opening a folder of `files_` with a fitting COMPLETE says.
  absl::Status OpenFiles() {
    WriteBundleFolder(folder_, files_);
    return OpenBundle(folder_).status();
  }

  // Writes `content` over a file of the folder, leaving COMPLETE.
  void Overwrite(const std::string& name, const std::string& content) {
    std::ofstream(folder_ + "/" + name, std::ios::binary) << content;
  }

  void ReplaceInManifest(const std::string& from, const std::string& to) {
    const std::string changed = absl::StrReplaceAll(files_["bundle.json"], {{from, to}});
    ASSERT_NE(changed, files_["bundle.json"]);
    files_["bundle.json"] = changed;
  }

  std::string folder_;
  BundleFiles files_ = MakeTestBundleFiles({});
};

void ExpectError(const absl::Status& status, absl::StatusCode code, const std::string& part) {
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(part));
}

TEST(Sha256Test, GivesTheStandardsExamples) {
  Sha256 abc;
  abc.Update("a");
  abc.Update("");
  abc.Update("bc");
  EXPECT_EQ(abc.Hex(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(Sha256().Hex(), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

// What features read is what was checked, whatever becomes of the folder.
TEST_F(BundleTest, FilesAreReadOnce) {
  WriteBundleFolder(folder_, files_);
  const auto bundle = OpenBundle(folder_);
  ASSERT_TRUE(bundle.ok()) << bundle.status();
  Overwrite("segments.txt", "\n\n\n\n\n\n\n");
  std::filesystem::remove(folder_ + "/catalog.json");
  const auto table_rows = TableRows(**bundle);
  ASSERT_TRUE(table_rows.ok()) << table_rows.status();
  const auto encoder = RequestEncoder::Create((*bundle)->manifest, (*bundle)->files, *table_rows, {});
  EXPECT_TRUE(encoder.ok()) << encoder.status();
}

TEST_F(BundleTest, OpensAValidFolder) {
  files_["golden.jsonl"] = "{\"tolerance\":0.5}\n\n{\"request\":{\"requestId\":\"second\"}}\n";
  WriteBundleFolder(folder_, files_);
  const auto bundle = OpenBundle(folder_);
  ASSERT_TRUE(bundle.ok()) << bundle.status();
  EXPECT_EQ((*bundle)->directory, folder_);
  EXPECT_EQ((*bundle)->version, 7);
  EXPECT_EQ((*bundle)->manifest.SerializeAsString(), MakeTestManifest({}).SerializeAsString());
  EXPECT_EQ((*bundle)->tensors.size(), MakeTestTensors({}).size());
  const Tensor& items = (*bundle)->tensors.at("item.weight");
  EXPECT_EQ(std::vector<float>(items.data.get(), items.data.get() + items.size),
            MakeTestTensors({}).at("item.weight").values);
  ASSERT_EQ((*bundle)->goldens.size(), 2u);
  EXPECT_EQ((*bundle)->goldens[0].tolerance(), 0.5);
  EXPECT_EQ((*bundle)->goldens[1].request().request_id(), "second");
  const FileContents read = {{"catalog.json", files_["catalog.json"]},
                             {"segments.txt", files_["segments.txt"]}};
  EXPECT_EQ((*bundle)->files, read);
  Sha256 digest;
  digest.Update(ReadFileBytes(folder_ + "/COMPLETE"));
  EXPECT_EQ((*bundle)->digest, digest.Hex());
}

TEST_F(BundleTest, TakesTheVersionFromTheFoldersName) {
  const auto version_in = [&](const std::string& folder) -> int64_t {
    WriteBundleFolder(folder, files_);
    const auto bundle = OpenBundle(folder);
    return bundle.ok() ? (*bundle)->version : -1;
  };
  const std::string parent = std::filesystem::path(folder_).parent_path().string();
  EXPECT_EQ(version_in(parent + "/12"), 12);
  EXPECT_EQ(version_in(parent + "/13/"), 13);
  EXPECT_EQ(version_in(parent + "/12/../14/."), 14);
  EXPECT_EQ(version_in(parent + "/next"), 0);
  EXPECT_EQ(version_in(parent + "/-3"), 0);
  EXPECT_EQ(version_in(parent + "/3x"), 0);
  EXPECT_EQ(version_in(parent + "/99999999999999999999"), 0);
}

TEST_F(BundleTest, RefusesNoFolder) {
  ExpectError(OpenBundle(folder_).status(), absl::StatusCode::kNotFound, folder_);
  WriteBundleFolder(folder_, files_);
  ExpectError(OpenBundle(folder_ + "/bundle.json").status(), absl::StatusCode::kNotFound,
              "expected a bundle folder, got a file");
}

TEST_F(BundleTest, RefusesNoComplete) {
  WriteFiles(folder_, files_);
  ExpectError(OpenBundle(folder_).status(), absl::StatusCode::kNotFound, "has no COMPLETE");
}

TEST_F(BundleTest, RefusesACompleteOfAnotherForm) {
  WriteBundleFolder(folder_, files_);
  const std::string good = ReadFileBytes(folder_ + "/COMPLETE");
  for (const std::string& bad : {std::string(), std::string("{"), std::string("{\"files\":[{}]}"),
                                 std::string("{\"more\":1}"), good.substr(0, good.size() / 2)}) {
    Overwrite("COMPLETE", bad);
    ExpectError(OpenBundle(folder_).status(), absl::StatusCode::kInvalidArgument, "COMPLETE");
  }
  Overwrite("COMPLETE", "{}");
  EXPECT_FALSE(OpenBundle(folder_).ok());
  Overwrite("COMPLETE", good);
  EXPECT_EQ(OpenBundle(folder_).status(), absl::OkStatus());
}

// Each field of each entry of COMPLETE is needed.
TEST_F(BundleTest, RefusesCompleteEntriesThatLackAField) {
  WriteBundleFolder(folder_, files_);
  const std::string good = ReadFileBytes(folder_ + "/COMPLETE");
  for (const char* field : {"\"path\":", "\"size\":", "\"sha256\":"}) {
    const size_t at = good.find(field);
    ASSERT_NE(at, std::string::npos);
    const size_t end = good.find_first_of(",}", at);
    std::string bad = good;
    bad.erase(at, end - at + (good[end] == ','));
    if (bad[at] == '}') bad.erase(at - 1, 1);
    Overwrite("COMPLETE", bad);
    ExpectError(OpenBundle(folder_).status(), absl::StatusCode::kInvalidArgument, "COMPLETE: file");
  }
}

TEST_F(BundleTest, RefusesPathsOutOfTheFolder) {
  for (const char* path : {"../bundle.json", "/etc/hostname", "sub/file", "..", ".", "", "COMPLETE"}) {
    SCOPED_TRACE(path);
    WriteBundleFolder(folder_, files_);
    v1::CompleteFile complete;
    auto& entry = *complete.add_files();
    entry.set_path(path);
    entry.set_size(0);
    entry.set_sha256(Sha256().Hex());
    Overwrite("COMPLETE", MessageToJson(complete));
    ExpectError(OpenBundle(folder_).status(), absl::StatusCode::kInvalidArgument,
                "expected a name of a file in the bundle folder");
  }
}

TEST_F(BundleTest, RefusesAFileListedTwice) {
  WriteBundleFolder(folder_, files_);
  v1::CompleteFile complete;
  for (int i = 0; i < 2; ++i) {
    auto& entry = *complete.add_files();
    entry.set_path("bundle.json");
    entry.set_size(0);
    entry.set_sha256(Sha256().Hex());
  }
  Overwrite("COMPLETE", MessageToJson(complete));
  ExpectError(OpenBundle(folder_).status(), absl::StatusCode::kInvalidArgument, "rising path, each once");
}

TEST_F(BundleTest, RefusesAChangedByteOfAnyFile) {
  files_["golden.jsonl"] = "{\"tolerance\":0.5}\n";
  WriteBundleFolder(folder_, files_);
  for (const auto& [name, content] : files_) {
    for (size_t at : {size_t{0}, content.size() / 2, content.size() - 1}) {
      SCOPED_TRACE(absl::StrCat(name, " ", at));
      std::string changed = content;
      changed[at] = static_cast<char>(changed[at] ^ 1);
      Overwrite(name, changed);
      ExpectError(OpenBundle(folder_).status(), absl::StatusCode::kDataLoss, name + ": expected SHA-256");
    }
    Overwrite(name, content);
  }
  EXPECT_EQ(OpenBundle(folder_).status(), absl::OkStatus());
}

TEST_F(BundleTest, RefusesATruncatedOrGrownFile) {
  WriteBundleFolder(folder_, files_);
  for (const auto& [name, content] : files_) {
    for (const std::string& changed : {content.substr(0, content.size() - 1), std::string(), content + "x"}) {
      Overwrite(name, changed);
      ExpectError(OpenBundle(folder_).status(), absl::StatusCode::kDataLoss,
                  absl::StrCat(name, ": expected ", content.size(), " bytes, as COMPLETE says, got ",
                               changed.size()));
    }
    Overwrite(name, content);
  }
}

TEST_F(BundleTest, RefusesAMissingFile) {
  for (const auto& [name, content] : files_) {
    WriteBundleFolder(folder_, files_);
    std::filesystem::remove(folder_ + "/" + name);
    ExpectError(OpenBundle(folder_).status(), absl::StatusCode::kNotFound, name);
  }
}

TEST_F(BundleTest, RefusesWhatCompleteDoesNotList) {
  for (const char* name : {"notes.txt", ".hidden", "more.safetensors"}) {
    WriteBundleFolder(folder_, files_);
    Overwrite(name, "");
    ExpectError(OpenBundle(folder_).status(), absl::StatusCode::kInvalidArgument, name);
  }
  WriteBundleFolder(folder_, files_);
  std::filesystem::create_directory(folder_ + "/sub");
  ExpectError(OpenBundle(folder_).status(), absl::StatusCode::kInvalidArgument, "\"sub\"");
}

TEST_F(BundleTest, RefusesWhatIsNoRegularFile) {
  WriteBundleFolder(folder_, files_);
  std::filesystem::remove(folder_ + "/segments.txt");
  std::filesystem::create_directory(folder_ + "/segments.txt");
  ExpectError(OpenBundle(folder_).status(), absl::StatusCode::kInvalidArgument,
              "segments.txt: expected a regular file");
  std::filesystem::remove(folder_ + "/segments.txt");
  ASSERT_EQ(mkfifo((folder_ + "/segments.txt").c_str(), 0600), 0);
  ExpectError(OpenBundle(folder_).status(), absl::StatusCode::kInvalidArgument,
              "segments.txt: expected a regular file");
}

TEST_F(BundleTest, RefusesNoManifest) {
  files_.erase("bundle.json");
  ExpectError(OpenFiles(), absl::StatusCode::kNotFound, "bundle.json");
}

TEST_F(BundleTest, RefusesAnUnknownLayerByName) {
  ReplaceInManifest("\"targetAttention\"", "\"quantumAttention\"");
  ExpectError(OpenFiles(), absl::StatusCode::kInvalidArgument, "quantumAttention");
}

TEST_F(BundleTest, RefusesAnUnknownFieldByName) {
  ReplaceInManifest("\"empty\":\"ZEROS\"", "\"empty\":\"ZEROS\",\"dropout\":0.5");
  ExpectError(OpenFiles(), absl::StatusCode::kInvalidArgument, "dropout");
}

TEST_F(BundleTest, RefusesAnUnknownEnumValueByName) {
  ReplaceInManifest("\"SOFTMAX\"", "\"SPARSEMAX\"");
  ExpectError(OpenFiles(), absl::StatusCode::kInvalidArgument, "SPARSEMAX");
}

TEST_F(BundleTest, RefusesAMissingFieldByName) {
  ReplaceInManifest(",\"empty\":\"ZEROS\"", "");
  ExpectError(OpenFiles(), absl::StatusCode::kInvalidArgument,
              "layer \"interest\": targetAttention.empty is missing");
}

TEST_F(BundleTest, RefusesAManifestThatIsNoJson) {
  files_["bundle.json"] = "layers: none";
  ExpectError(OpenFiles(), absl::StatusCode::kInvalidArgument, "bundle.json: ");
}

TEST_F(BundleTest, RefusesAnotherFormat) {
  ReplaceInManifest("\"formatVersion\":1", "\"formatVersion\":2");
  ExpectError(OpenFiles(), absl::StatusCode::kInvalidArgument, "formatVersion: expected 1, got 2");
}

TEST_F(BundleTest, RefusesBadWeightsThatCompleteVouchesFor) {
  const std::string good = files_["weights.safetensors"];
  files_["weights.safetensors"] = good.substr(0, good.size() - 4);
  ExpectError(OpenFiles(), absl::StatusCode::kDataLoss, "weights.safetensors");
  files_["weights.safetensors"] = "";
  ExpectError(OpenFiles(), absl::StatusCode::kDataLoss, "weights.safetensors: expected at least 8 bytes");
}

TEST_F(BundleTest, RefusesATensorInTwoFiles) {
  files_["more.safetensors"] = SerializeSafetensors({{"buy.bias", {{1}, {0}}}});
  ExpectError(OpenFiles(), absl::StatusCode::kInvalidArgument, "tensor \"buy.bias\"");
}

TEST_F(BundleTest, RefusesABadGoldenLine) {
  files_["golden.jsonl"] = "{}\n{\"tolerance\":\"low\"}\n";
  ExpectError(OpenFiles(), absl::StatusCode::kInvalidArgument, "golden.jsonl line 2");
  files_["golden.jsonl"] = "{\"more\":1}";
  ExpectError(OpenFiles(), absl::StatusCode::kInvalidArgument, "golden.jsonl line 1");
}

}  // namespace
}  // namespace dinghy
