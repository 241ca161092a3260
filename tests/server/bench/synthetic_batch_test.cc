#include "server/bench/synthetic_batch.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dinghy {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

v1::Feature* AddFeature(v1::BundleManifest& manifest, const char* name, v1::Level level) {
  v1::Feature* feature = manifest.add_features();
  feature->set_name(name);
  feature->set_level(level);
  if (level == v1::SEQUENCE) feature->set_sequence("clicks");
  return feature;
}

// One feature of each kind, at each level in turn; tables of 3 and of 100 rows.
v1::BundleManifest EveryKind() {
  v1::BundleManifest manifest;
  v1::Sequence* clicks = manifest.add_sequences();
  clicks->set_name("clicks");
  clicks->set_max_length(40);
  manifest.add_tables()->set_name("small");
  manifest.add_tables()->set_name("large");
  v1::Feature* item = AddFeature(manifest, "item", v1::CANDIDATE);
  item->mutable_id()->set_bag(v1::IdFeature::SINGLE);
  item->set_table("large");
  v1::Feature* age = AddFeature(manifest, "clicks.age", v1::SEQUENCE);
  age->mutable_time_since()->add_boundaries_ms(10);
  age->set_table("small");
  v1::Feature* tags = AddFeature(manifest, "tags", v1::CANDIDATE);
  tags->mutable_id()->set_bag(v1::IdFeature::BAG_MEAN);
  tags->set_table("small");
  AddFeature(manifest, "user", v1::USER)->mutable_vector()->set_dim(7);
  AddFeature(manifest, "clicks.price", v1::SEQUENCE)->mutable_numeric();
  return manifest;
}

constexpr int64_t kTableRows[] = {3, 100};

TEST(SyntheticBatchTest, FillsEveryKindOfFeature) {
  const auto batch = SyntheticBatch(EveryKind(), kTableRows, {.history = 33, .candidates = 500, .seed = 1});
  ASSERT_TRUE(batch.ok()) << batch.status();
  EXPECT_EQ(batch->candidates, 500);
  EXPECT_THAT(batch->sequence_lengths, ElementsAre(33));
  EXPECT_THAT(batch->full_lengths, ElementsAre(33));
  ASSERT_EQ(batch->columns.size(), 5);
  const auto within = [](int rows) { return Each(::testing::AllOf(::testing::Ge(0), ::testing::Lt(rows))); };

  const FeatureColumn& item = batch->columns[0];
  EXPECT_EQ(item.rows.size(), 500);
  EXPECT_THAT(item.rows, within(100));
  EXPECT_GT(*std::max_element(item.rows.begin(), item.rows.end()), 90);  // the whole of the table
  EXPECT_TRUE(item.offsets.empty());

  EXPECT_EQ(batch->columns[1].rows.size(), 33);
  EXPECT_THAT(batch->columns[1].rows, within(3));

  const FeatureColumn& tags = batch->columns[2];
  ASSERT_EQ(tags.offsets.size(), 501);
  EXPECT_EQ(tags.offsets.front(), 0);
  EXPECT_EQ(tags.offsets.back(), tags.rows.size());
  EXPECT_TRUE(std::is_sorted(tags.offsets.begin(), tags.offsets.end()));
  EXPECT_THAT(tags.rows, within(3));

  EXPECT_EQ(batch->columns[3].values.size(), 7);
  EXPECT_EQ(batch->columns[4].values.size(), 33);
  for (const int f : {3, 4}) {
    for (const float value : batch->columns[f].values) EXPECT_LE(std::abs(value), 1.0f);
  }
}

TEST(SyntheticBatchTest, TheSeedDecides) {
  const SyntheticBatchOptions options{.history = 9, .candidates = 20, .seed = 5};
  const FeatureBatch one = *SyntheticBatch(EveryKind(), kTableRows, options);
  const FeatureBatch same = *SyntheticBatch(EveryKind(), kTableRows, options);
  const FeatureBatch other =
      *SyntheticBatch(EveryKind(), kTableRows, {.history = 9, .candidates = 20, .seed = 6});
  EXPECT_EQ(one.columns[0].rows, same.columns[0].rows);
  EXPECT_EQ(one.columns[3].values, same.columns[3].values);
  EXPECT_NE(one.columns[0].rows, other.columns[0].rows);
}

TEST(SyntheticBatchTest, NoHistory) {
  const auto batch = SyntheticBatch(EveryKind(), kTableRows, {.history = 0, .candidates = 1, .seed = 1});
  ASSERT_TRUE(batch.ok()) << batch.status();
  EXPECT_TRUE(batch->columns[1].rows.empty());
  EXPECT_TRUE(batch->columns[4].values.empty());
}

TEST(SyntheticBatchTest, TheLongestHistoryIsTheBundles) {
  EXPECT_TRUE(SyntheticBatch(EveryKind(), kTableRows, {.history = 40, .candidates = 1, .seed = 1}).ok());
  const auto batch = SyntheticBatch(EveryKind(), kTableRows, {.history = 41, .candidates = 1, .seed = 1});
  EXPECT_EQ(batch.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(batch.status().message(),
            "history: expected at most 40, the max_length of sequence \"clicks\", got 41");
}

}  // namespace
}  // namespace dinghy
