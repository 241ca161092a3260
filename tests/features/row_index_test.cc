#include "features/row_index.h"

#include <farmhash.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

namespace dinghy {
namespace {

constexpr int kCounts[] = {0, 1, 2, 7, 17, 31, 32, 33, 63, 64, 65, 1000};

std::vector<int32_t> Find(const IntegerIndex& index, const std::vector<int64_t>& keys) {
  std::vector<int32_t> rows(keys.size(), -7);
  index.Find(keys, rows.data());
  return rows;
}

std::vector<int32_t> Find(const TextIndex& index, const std::vector<std::string>& keys) {
  std::vector<const std::string*> pointers;
  for (const std::string& key : keys) pointers.push_back(&key);
  std::vector<int32_t> rows(keys.size(), -7);
  index.Find(pointers, rows.data());
  return rows;
}

// Adds `keys` under random rows, then finds all of `asked`, in batches of every size, as a std::map would.
template <typename Index, typename Key>
void ExpectLikeAMap(Index index, const std::vector<Key>& keys, const std::vector<Key>& asked) {
  std::mt19937 random(3);
  std::map<Key, int32_t> map;
  for (const Key& key : keys) {
    const auto row = static_cast<int32_t>(random() >> 1);
    EXPECT_EQ(index.Add(key, row), map.emplace(key, row).second);
  }
  for (const int count : kCounts) {
    std::vector<Key> some;
    std::vector<int32_t> want;
    for (int i = 0; i < count; ++i) {
      some.push_back(asked[random() % asked.size()]);
      const auto found = map.find(some.back());
      want.push_back(found == map.end() ? -1 : found->second);
    }
    EXPECT_EQ(Find(index, some), want) << count << " of " << keys.size();
  }
}

TEST(IntegerIndexTest, FindsWhatAMapFinds) {
  std::mt19937_64 random(1);
  for (const int count : kCounts) {
    // Any number; those in a row; those that differ in their upper bits alone.
    for (const auto& make : {+[](uint64_t r, int) { return static_cast<int64_t>(r); },
                             +[](uint64_t, int i) { return static_cast<int64_t>(i); },
                             +[](uint64_t, int i) { return static_cast<int64_t>(i) << 40; }}) {
      std::vector<int64_t> keys;
      for (int i = 0; i < count; ++i) keys.push_back(make(random(), i));
      std::vector<int64_t> asked = keys;
      for (int i = 0; i < 2 + count / 2; ++i) asked.push_back(static_cast<int64_t>(random()));
      asked.insert(asked.end(), {0, -1, INT64_MIN, INT64_MAX});
      ExpectLikeAMap(IntegerIndex(count), keys, asked);
    }
  }
}

TEST(IntegerIndexTest, KeepsTheFirstRowOfAKey) {
  IntegerIndex index(2);
  EXPECT_TRUE(index.Add(5, 1));
  EXPECT_FALSE(index.Add(5, 2));
  EXPECT_TRUE(index.Add(-5, 0));
  EXPECT_EQ(Find(index, {5, -5, 0}), (std::vector<int32_t>{1, 0, -1}));
}

TEST(TextIndexTest, FindsWhatAMapFinds) {
  std::mt19937 random(1);
  for (const int count : kCounts) {
    std::vector<std::string> keys;
    int64_t bytes = 0;
    for (int i = 0; i < count; ++i) {
      std::string key(random() % 40, '\0');  // any bytes; short ones come twice
      for (char& c : key) c = static_cast<char>(random());
      keys.push_back(key);
      bytes += static_cast<int64_t>(key.size());
    }
    std::vector<std::string> asked = keys;
    for (const std::string& key : keys) {  // almost a key
      asked.push_back(key + "x");
      if (key.empty()) continue;
      asked.push_back(key.substr(1));
      asked.push_back(key);
      asked.back().back() ^= 1;
    }
    asked.push_back("");
    ExpectLikeAMap(TextIndex(count, bytes), keys, asked);
  }
}

// Texts of one length whose hashes have equal tags look alike in their slots.
TEST(TextIndexTest, TellsKeysApartThatLookAlike) {
  std::unordered_map<uint64_t, std::string> by_tag;
  int pairs = 0;
  int met = 0;  // pairs that begin at the same one of three slots
  for (int i = 100'000; i < 200'000; ++i) {
    const std::string key = std::to_string(i);
    const uint64_t hash = util::Fingerprint64(key.data(), key.size());
    const auto [other, is_new] = by_tag.emplace(hash & 0xffffff, key);
    if (is_new) continue;
    ++pairs;
    const uint64_t other_hash = util::Fingerprint64(other->second.data(), key.size());
    if (hash / (UINT64_MAX / 3) == other_hash / (UINT64_MAX / 3)) ++met;
    TextIndex one(1, 6);
    EXPECT_TRUE(one.Add(other->second, 4));
    EXPECT_EQ(Find(one, {key, other->second}), (std::vector<int32_t>{-1, 4}));
    TextIndex two(2, 12);
    EXPECT_TRUE(two.Add(other->second, 4));
    EXPECT_TRUE(two.Add(key, 5));
    EXPECT_EQ(Find(two, {key, other->second}), (std::vector<int32_t>{5, 4}));
  }
  EXPECT_GT(pairs, 100);
  EXPECT_GT(met, 30);
}

TEST(LargeBlockTest, IsAlignedAndAllOfItIsThere) {
  for (const size_t bytes : {size_t{1}, size_t{4} << 20, (size_t{4} << 20) + 1}) {
    void* p = AllocateLargeBlock(bytes);
    ASSERT_NE(p, nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(p) % (bytes > 1 ? size_t{2} << 20 : 64), 0u);
    std::memset(p, 1, bytes);
    std::free(p);
  }
  EXPECT_EQ(AllocateLargeBlock(SIZE_MAX), nullptr);
}

}  // namespace
}  // namespace dinghy
