#include "model/ops/scratch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
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

TEST(ScratchTest, DoesNotGrowOnceItHoldsTheLargestRequest) {
  Scratch scratch;
  std::vector<float*> before, after;
  for (std::vector<float*>* seen : {&before, &after}) {
    const Scratch::Scope scope(scratch);
    for (const size_t count : {200'000, 100'000, 300'000, 10}) seen->push_back(scratch.Floats(count));
  }
  EXPECT_EQ(before, after);
}

}  // namespace
}  // namespace dinghy::ops
