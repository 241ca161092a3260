// Encodes requests of the shop and looks at what comes out.
#ifndef DINGHY_TESTS_FEATURES_ENCODER_FIXTURE_H_
#define DINGHY_TESTS_FEATURES_ENCODER_FIXTURE_H_

#include <gtest/gtest.h>

#include <string>

#include "features/encoder.h"
#include "tests/features/shop_manifest.h"

namespace dinghy {

class EncoderTest : public ::testing::Test {
 protected:
  // Encodes, and expects that to work.
  void Encode(const v1::ScoreRequest& request) {
    const auto encoder = shop_.CreateEncoder();
    ASSERT_TRUE(encoder.ok()) << encoder.status();
    const absl::Status status = (*encoder)->Encode(request, batch_, notes_);
    ASSERT_TRUE(status.ok()) << status;
    ASSERT_EQ(batch_.columns.size(), static_cast<size_t>(shop_.manifest.features_size()));
    ASSERT_EQ(notes_.oov_ids.size(), batch_.columns.size());
  }
  const FeatureColumn& column(const std::string& feature) const {
    return batch_.columns[shop_.feature_index(feature)];
  }
  int64_t oov(const std::string& feature) const { return notes_.oov_ids[shop_.feature_index(feature)]; }

  v1::Column& candidate(const std::string& name) { return FindColumn(*request_.mutable_candidates(), name); }
  v1::Column& click(const std::string& name) {
    return FindColumn(*request_.mutable_sequences(0)->mutable_columns(), name);
  }

  ShopManifest shop_;
  v1::ScoreRequest request_ = MakeShopRequest();
  FeatureBatch batch_;
  EncodeNotes notes_;
};

}  // namespace dinghy

#endif  // DINGHY_TESTS_FEATURES_ENCODER_FIXTURE_H_
