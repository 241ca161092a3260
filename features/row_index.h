// Which row a key has: hash tables that are filled once and then only read, many keys at a time.
//
//   IntegerIndex index(/*keys=*/2);
//   index.Add(17, 0);
//   index.Find({17, 18}, rows);            // rows: 0, -1
//
// A table of 10^7 keys does not fit in the caches, so a look-up is a wait for memory. Here the slots of a
// batch of keys are on their way before the first is read, which no standard container can do. Open
// addressing with linear probing (Knuth, The Art of Computer Programming, volume 3, section 6.4); half of the
// slots stay empty.
//
// Thread-safe once it is filled. Finding allocates nothing.
#ifndef DINGHY_FEATURES_ROW_INDEX_H_
#define DINGHY_FEATURES_ROW_INDEX_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/types/span.h"
#include "features/large_block.h"

namespace dinghy {

class IntegerIndex {
 public:
  // For at most `keys` keys.
  explicit IntegerIndex(int64_t keys = 0);

  // Gives `key` the row `row`, at least 0. Returns false, and changes nothing, where it has one already.
  bool Add(int64_t key, int32_t row);

  // rows[i] is the row of keys[i], -1 where it has none.
  void Find(absl::Span<const int64_t> keys, int32_t* rows) const;

 private:
  struct Slot {
    int64_t key = 0;
    int32_t row = -1;  // -1: empty
  };
  size_t FirstSlot(int64_t key) const;
  // The slot of `key`, or the empty one where it would be, from `slot` on.
  size_t Probe(int64_t key, size_t slot) const;

  std::vector<Slot, LargeBlockAllocator<Slot>> slots_;
};

class TextIndex {
 public:
  // For at most `keys` keys of `bytes` bytes in all, below 2^40, each below 2^32.
  explicit TextIndex(int64_t keys = 0, int64_t bytes = 0);

  bool Add(std::string_view key, int32_t row);
  void Find(absl::Span<const std::string* const> keys, int32_t* rows) const;

 private:
  struct Slot {
    uint64_t begin : 40 = 0;  // of the key in text_
    uint64_t tag : 24 = 0;    // of its hash: other keys are told apart without a look at text_
    uint32_t length = 0;
    int32_t row = -1;  // -1: empty
  };
  size_t FirstSlot(uint64_t hash) const;
  // The first slot from `slot` on that is empty or may be the key's.
  size_t NextLikely(uint64_t hash, size_t length, size_t slot) const;
  // The slot of `key`, or the empty one where it would be, `slot` being the first that is likely.
  size_t Probe(std::string_view key, uint64_t hash, size_t slot) const;

  std::vector<char, LargeBlockAllocator<char>> text_;  // the keys, one behind the other
  std::vector<Slot, LargeBlockAllocator<Slot>> slots_;
};

}  // namespace dinghy

#endif  // DINGHY_FEATURES_ROW_INDEX_H_
