#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/testing/reference/compare.h"

namespace dinghy::reference {
namespace {

constexpr int kMaxLength = 520;
constexpr int kWidth = 9;
constexpr auto kQuery = v1::DinScore::QUERY;
constexpr auto kKey = v1::DinScore::KEY;
constexpr auto kDifference = v1::DinScore::DIFFERENCE;
constexpr auto kProduct = v1::DinScore::PRODUCT;

struct Options {
  std::vector<std::string> query = {"item", "category"};
  std::vector<v1::DinScore::Part> parts = {kQuery, kKey, kDifference, kProduct};
  std::vector<int> hidden = {16, 5};
  v1::TargetAttention::Normalization normalization = v1::TargetAttention::NONE;
  float scale = 1;
  bool other_values = false;
};

RandomModel AttentionModel(const Options& options) {
  RandomModel model(13);
  model.AddSequence("purchases", 20);
  model.AddSequence("clicks", kMaxLength);
  model.AddTable("item", 30, 6);
  model.AddTable("category", 9, 3);
  model.AddId("item", v1::CANDIDATE, "item");
  model.AddId("category", v1::CANDIDATE, "category");
  model.AddId("favorite", v1::USER, "item");
  model.AddId("favorite_category", v1::USER, "category");
  model.AddId("clicks.item", v1::SEQUENCE, "item");
  model.AddId("clicks.category", v1::SEQUENCE, "category");
  model.AddVector("clicks.extra", v1::SEQUENCE, 11);
  v1::TargetAttention& attention = *model.AddLayer("interest", {})->mutable_target_attention();
  for (const std::string& name : options.query) attention.add_query(name);
  for (const char* name : {"clicks.item", "clicks.category"}) attention.add_keys(name);
  if (options.other_values) {
    for (const char* name : {"clicks.extra", "clicks.item"}) attention.add_values(name);
  } else {
    *attention.mutable_values() = attention.keys();
  }
  *attention.mutable_din() = model.MakeDin("interest", options.parts, kWidth, options.hidden);
  attention.set_normalization(options.normalization);
  attention.set_empty(v1::ZEROS);
  attention.set_scale(options.scale);
  *model.AddLayer("out", {"interest"})->mutable_dense() =
      model.MakeDense("out", options.other_values ? 17 : kWidth, 1, v1::LINEAR);
  model.AddOutput("out", "out", v1::Output::RAW);
  return model;
}

void Compare(const Options& options, const std::vector<int>& candidates, const std::vector<int>& lengths,
             bool fused = true) {
  const RandomModel random_model = AttentionModel(options);
  const std::unique_ptr<Model> model = CreateModel(random_model, {.fused_kernels = fused});
  ASSERT_NE(model, nullptr);
  for (const int count : candidates) {
    for (const int length : lengths) {
      SCOPED_TRACE(::testing::Message() << count << " candidates, length " << length);
      CompareWithReference(random_model, *model,
                           RandomBatch(random_model, {.candidates = count, .lengths = {3, length}}, 17));
    }
  }
}

TEST(TargetAttentionTest, AllLengths) {
  for (const auto normalization : {v1::TargetAttention::NONE, v1::TargetAttention::SOFTMAX}) {
    Compare({.normalization = normalization, .scale = 0.7f}, {3},
            {0, 1, 2, 7, 15, 16, 17, 50, 63, 64, 65, 257, kMaxLength});
  }
}

// Whose blocks end at 256.
TEST(TargetAttentionTest, AllLengthsByOneDnn) {
  for (const std::vector<int>& hidden : std::vector<std::vector<int>>{{16, 5}, {33}, {}}) {
    Compare({.hidden = hidden}, {3},
            {0, 1, 3, 4, 5, 17, 64, 250, 255, 256, 257, 300, 511, 512, 513, kMaxLength},
            /*fused=*/false);
  }
}

TEST(TargetAttentionTest, AllCandidateCounts) { Compare({}, {0, 1, 2, 7, 17, 63, 64, 65}, {0, 5, 33}); }

TEST(TargetAttentionTest, PartsInAnyOrderOrAbsent) {
  const std::vector<std::vector<v1::DinScore::Part>> orders = {{kProduct, kDifference, kKey, kQuery},
                                                               {kKey, kQuery},
                                                               {kProduct},
                                                               {kDifference},
                                                               {kQuery},
                                                               {kKey, kProduct, kQuery},
                                                               {kKey}};
  for (const auto& parts : orders) Compare({.parts = parts}, {2}, {1, 18});
}

TEST(TargetAttentionTest, OneLayerOrMany) {
  for (const std::vector<int>& hidden : std::vector<std::vector<int>>{{}, {1}, {33}, {8, 7, 6, 5}}) {
    Compare({.hidden = hidden, .normalization = v1::TargetAttention::SOFTMAX}, {2}, {1, 16, 40});
  }
}

TEST(TargetAttentionTest, ValuesOtherThanKeys) { Compare({.other_values = true}, {2}, {0, 1, 19}); }

TEST(TargetAttentionTest, QueryOfTheUser) {
  Compare({.query = {"favorite", "favorite_category"}}, {0, 1, 5}, {0, 1, 19});
}

TEST(TargetAttentionTest, QueryOfUserAndCandidate) {
  Compare({.query = {"favorite", "category"}}, {0, 1, 65}, {0, 1, 19});
  Compare({.query = {"item", "favorite_category"}}, {3}, {33});
}

}  // namespace
}  // namespace dinghy::reference
