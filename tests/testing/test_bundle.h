// A small valid bundle, made by code: a model of a shop with random weights.
//
//   absl::StatusOr<std::string> folder = WriteTestBundle(::testing::TempDir() + "models", {.version = 2});
//   v1::ScoreRequest request = MakeTestRequest({.candidates = 5, .behaviors = 3});
//
// Its golden scores are computed by the engine under test itself: they prove nothing about parity with a
// trainer. Not thread-safe.
#ifndef DINGHY_TESTS_TESTING_TEST_BUNDLE_H_
#define DINGHY_TESTS_TESTING_TEST_BUNDLE_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/bundle.pb.h"
#include "proto/score_log.pb.h"
#include "proto/scoring.pb.h"

namespace dinghy {

// Items of the catalog are 2 to kTestItems - 1, each with a category; 0 is the pad row, 1 the OOV row.
inline constexpr int kTestItems = 50;
inline constexpr int kTestMaxLength = 10;
inline constexpr int64_t kTestRequestTimeMs = 1'700'000'000'000;

struct TestBundleOptions {
  std::string model = "shop";
  int64_t version = 1;
  bool self_attention = false;  // din_sasrec: a self-attention block over the history; else din
  bool skip_pads = false;       // clicks on the pad row are left out
  int max_length = kTestMaxLength;
  uint32_t seed = 1;  // of the weights
};

struct TestTensor {
  std::vector<int64_t> shape;
  std::vector<float> values;
};
using TestTensors = std::map<std::string, TestTensor>;

// Files of a bundle folder by name.
using BundleFiles = std::map<std::string, std::string>;

// Reads user features "age" (numeric) and "segment" (string, vocabulary file), candidate features "item"
// (from the request) and "category" (from the catalog), and the sequence "clicks" (item, category, time) of
// action "click". Layers "behaviors", "history" (self_attention only), "interest", "tower" and "buy"; outputs
// "click" and "purchase".
v1::BundleManifest MakeTestManifest(const TestBundleOptions& options);

// Random weights of every tensor that the manifest names.
TestTensors MakeTestTensors(const TestBundleOptions& options);

std::string MessageToJson(const google::protobuf::Message& message);

// A safetensors file of this header and data, whatever they are.
std::string SafetensorsFile(const std::string& header, const std::string& data);
std::string SerializeSafetensors(const TestTensors& tensors);

// bundle.json, weights.safetensors, catalog.json and segments.txt; no golden requests, no COMPLETE.
BundleFiles MakeTestBundleFiles(const TestBundleOptions& options);

// Makes `folder` with these files, in place of what was there. `WriteBundleFolder` adds a COMPLETE that fits
// them.
void WriteFiles(const std::string& folder, const BundleFiles& files);
void WriteBundleFolder(const std::string& folder, const BundleFiles& files);
std::string MakeCompleteFile(const BundleFiles& files);
std::string ReadFileBytes(const std::string& path);

struct TestRequestOptions {
  int candidates = 5;
  int behaviors = 3;
  uint32_t seed = 1;
};

// A resolved request of random items, with its history inline.
v1::ScoreRequest MakeTestRequest(const TestRequestOptions& options);

// Scores `requests` with the bundle in `folder`, which needs no golden requests: golden.jsonl with a
// tolerance of 1e-6.
absl::StatusOr<std::string> MakeGoldens(const std::string& folder,
                                        const std::vector<v1::ScoreRequest>& requests);

// Writes the whole bundle, with golden requests, to <model_root>/<model>/<version> and returns that folder.
absl::StatusOr<std::string> WriteTestBundle(const std::string& model_root, const TestBundleOptions& options);

}  // namespace dinghy

#endif  // DINGHY_TESTS_TESTING_TEST_BUNDLE_H_
