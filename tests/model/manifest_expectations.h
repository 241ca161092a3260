// What tests of CheckManifest share: the parts of a manifest by name, and that one is refused.
#ifndef DINGHY_TESTS_MODEL_MANIFEST_EXPECTATIONS_H_
#define DINGHY_TESTS_MODEL_MANIFEST_EXPECTATIONS_H_

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/bundle.h"

namespace dinghy {

inline void ExpectInvalid(const v1::BundleManifest& manifest, const std::string& message) {
  const absl::Status status = CheckManifest(manifest);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(message));
}

inline v1::Feature& FeatureOf(v1::BundleManifest& manifest, const std::string& name) {
  for (v1::Feature& feature : *manifest.mutable_features()) {
    if (feature.name() == name) return feature;
  }
  ADD_FAILURE() << "no feature " << name;
  return *manifest.mutable_features(0);
}

inline v1::Layer& LayerOf(v1::BundleManifest& manifest, const std::string& name) {
  for (v1::Layer& layer : *manifest.mutable_layers()) {
    if (layer.name() == name) return layer;
  }
  ADD_FAILURE() << "no layer " << name;
  return *manifest.mutable_layers(0);
}

}  // namespace dinghy

#endif  // DINGHY_TESTS_MODEL_MANIFEST_EXPECTATIONS_H_
