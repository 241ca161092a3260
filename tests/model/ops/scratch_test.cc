#include "model/ops/scratch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

namespace dinghy::ops {
namespace {

TEST(ScratchTest, PiecesAreAlignedAndApart) {
  Scratch scratch;
  std::vector<std::pair<float*, size_t>> pieces;
  for (const size_t count : {0, 1, 15, 16, 17, 1000, 1 << 18, 3, (1 << 19) + 1, 64}) {
    pieces.emplace_back(scratch.Floats(count), count);
  }
  for (size_t i = 0; i < pieces.size(); ++i) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(pieces[i].first) % 64, 0u);
    // Up to the 64 bytes of slack behind it.
    std::fill_n(pieces[i].first, pieces[i].second + 16, static_cast<float>(i));
  }
  for (size_t i = 0; i < pieces.size(); ++i) {
    for (size_t j = 0; j < pieces[i].second + 16; ++j) ASSERT_EQ(pieces[i].first[j], static_cast<float>(i));
  }
}

TEST(ScratchTest, AScopeGivesBack) {
  Scratch scratch;
  scratch.Floats(100);
  float* first = nullptr;
  {
    const Scratch::Scope scope(scratch);
    first = scratch.Floats(100);
    scratch.Floats(size_t{1} << 20);
  }
  EXPECT_EQ(scratch.Floats(100), first);
}

// What a request of pieces of these sizes takes, in one scope.
std::vector<float*> Take(Scratch& scratch, const std::vector<size_t>& counts) {
  const Scratch::Scope scope(scratch);
  std::vector<float*> pieces;
  for (const size_t count : counts) pieces.push_back(scratch.Floats(count));
  return pieces;
}

TEST(ScratchTest, HoldsTheLargestRequestInOneBlockThatStays) {
  Scratch scratch;
  const std::vector<size_t> largest = {200'000, 100'000, 300'000, 10};
  Take(scratch, largest);
  const std::vector<float*> before = Take(scratch, largest);
  for (size_t i = 1; i < before.size(); ++i) {
    EXPECT_EQ(before[i] - before[i - 1], static_cast<ptrdiff_t>((largest[i - 1] + 31) / 16 * 16));
  }
  const size_t capacity = scratch.capacity();
  // As large in other pieces, and smaller: the same block.
  for (const std::vector<size_t>& counts :
       std::vector<std::vector<size_t>>{{10, 300'000, 300'000}, {1}, {600'000}, largest}) {
    EXPECT_EQ(Take(scratch, counts)[0], before[0]);
    EXPECT_EQ(scratch.capacity(), capacity);
  }
}

TEST(ScratchTest, GrowsFewTimesAndNotBeyondAQuarterMoreThanNeeded) {
  Scratch scratch;
  std::mt19937 random(1);
  size_t most = 0;
  int grown = 0;
  for (int request = 0; request < 3000; ++request) {
    // Larger and larger ones, in pieces of any size: what would need a block of its own each time.
    const size_t sum = 1000 * (request + 1);
    const size_t first = std::uniform_int_distribution<size_t>(0, sum)(random);
    const size_t before = scratch.capacity();
    Take(scratch, {first, sum - first});
    grown += scratch.capacity() > before ? 1 : 0;
    most = std::max(most, sum);
  }
  Take(scratch, {1});
  EXPECT_LT(scratch.capacity(), most + most / 4 + 1000);
  EXPECT_LT(grown, 30);
}

TEST(ScratchTest, AScopeThatOpensBeforeAnythingIsTakenMayGrowIt) {
  Scratch scratch;
  const Scratch::Scope outer(scratch);
  Take(scratch, {size_t{1} << 18, size_t{1} << 19});  // two blocks, which make way for one
  float* piece = scratch.Floats(size_t{1} << 19);
  std::fill_n(piece, size_t{1} << 19, 1.0f);
  EXPECT_EQ(Take(scratch, {10})[0], piece + (size_t{1} << 19) + 16);
}

}  // namespace
}  // namespace dinghy::ops
