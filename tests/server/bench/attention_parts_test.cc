#include "server/bench/attention_parts.h"

#include <filesystem>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "model/loaded_model.h"
#include "server/bench/synthetic_batch.h"
#include "tests/testing/test_bundle.h"

namespace dinghy {
namespace {

class AttentionPartsTest : public ::testing::TestWithParam<bool> {
 protected:
  AttentionPartsTest() {
    root_ = absl::StrCat(::testing::TempDir(), "/attention_parts_test_", GetParam());
    bundle_ = *OpenBundle(WriteTestBundle(root_, {.self_attention = GetParam()}).value());
    for (; !bundle_->manifest.layers(layer_).has_target_attention(); ++layer_) {
    }
    batch_ = *SyntheticBatch(bundle_->manifest, *TableRows(*bundle_),
                             {.history = kTestMaxLength, .candidates = 9, .seed = 1});
  }
  ~AttentionPartsTest() override { std::filesystem::remove_all(root_); }

  v1::TargetAttention& attention() {
    return *bundle_->manifest.mutable_layers(layer_)->mutable_target_attention();
  }

  // Of the only attention, after some runs.
  AttentionShares Shares() {
    const absl::StatusOr<std::unique_ptr<AttentionParts>> parts = AttentionParts::Create(*bundle_, {});
    EXPECT_TRUE(parts.ok()) << parts.status();
    int prepared = 0;
    for (int i = 0; i < 3; ++i) (*parts)->Run(batch_, [&] { ++prepared; });
    forms_ = prepared / 3;
    const std::map<int, AttentionShares> shares = (*parts)->TakeShares();
    EXPECT_EQ(shares.size(), 1);
    EXPECT_EQ(shares.begin()->first, layer_);
    return shares.begin()->second;
  }

  static double Sum(const AttentionShares& shares) {
    return shares.pair_gemm + shares.second_gemm + shares.activation + shares.pooling;
  }

  std::string root_;
  std::unique_ptr<Bundle> bundle_;
  int layer_ = 0;
  int forms_ = 0;
  FeatureBatch batch_;
};

TEST_P(AttentionPartsTest, Din) {
  const int layers = attention().din().layers_size();
  const AttentionShares shares = Shares();
  EXPECT_EQ(forms_, layers >= 3 ? 4 : 3);
  EXPECT_NEAR(Sum(shares), 1, 1e-9);
  EXPECT_GT(shares.pair_gemm, 0);
  for (const double part : {shares.second_gemm, shares.activation, shares.pooling}) EXPECT_GE(part, 0);
}

TEST_P(AttentionPartsTest, HeadsOfDotProducts) {
  attention().mutable_dot();
  attention().set_heads(2);
  const AttentionShares shares = Shares();
  EXPECT_EQ(forms_, 2);
  EXPECT_NEAR(Sum(shares), 1, 1e-9);
  EXPECT_EQ(shares.second_gemm, 0);
  EXPECT_EQ(shares.activation, 0);
}

TEST_P(AttentionPartsTest, WhatCannotBeSplitIsWhole) {
  attention().mutable_linear();
  attention().set_normalization(v1::TargetAttention::NONE);
  EXPECT_EQ(Shares().pair_gemm, 1);
  EXPECT_EQ(forms_, 1);
}

INSTANTIATE_TEST_SUITE_P(Encoder, AttentionPartsTest, ::testing::Bool());

}  // namespace
}  // namespace dinghy
