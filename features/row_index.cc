#include "features/row_index.h"

#include <farmhash.h>

#include <algorithm>

namespace dinghy {
namespace {

// Keys whose slots are on their way at a time.
constexpr size_t kBatch = 32;

// Half of them stay empty, and one does even without keys, so that every probe ends.
size_t SlotsFor(int64_t keys) { return 2 * static_cast<size_t>(keys) + 1; }

// Which of `slots` slots a hash begins at: its place among all hashes, by its upper bits.
size_t Scaled(uint64_t hash, size_t slots) {
  __extension__ using Product = unsigned __int128;
  return static_cast<size_t>((Product{hash} * slots) >> 64);
}

size_t Next(size_t slot, size_t slots) { return slot + 1 == slots ? 0 : slot + 1; }

// The finalizer of MurmurHash3_x64_128: Austin Appleby's, published into the public domain.
uint64_t Mix(uint64_t key) {
  key ^= key >> 33;
  key *= 0xff51afd7ed558ccd;
  key ^= key >> 33;
  key *= 0xc4ceb9fe1a85ec53;
  return key ^ key >> 33;
}

uint64_t HashOf(std::string_view key) { return util::Fingerprint64(key.data(), key.size()); }

uint64_t TagOf(uint64_t hash) { return hash & 0xffffff; }

}  // namespace

IntegerIndex::IntegerIndex(int64_t keys) : slots_(SlotsFor(keys)) {}

size_t IntegerIndex::FirstSlot(int64_t key) const {
  return Scaled(Mix(static_cast<uint64_t>(key)), slots_.size());
}

size_t IntegerIndex::Probe(int64_t key, size_t slot) const {
  while (slots_[slot].row >= 0 && slots_[slot].key != key) slot = Next(slot, slots_.size());
  return slot;
}

bool IntegerIndex::Add(int64_t key, int32_t row) {
  Slot& slot = slots_[Probe(key, FirstSlot(key))];
  if (slot.row >= 0) return false;
  slot = {.key = key, .row = row};
  return true;
}

void IntegerIndex::Find(absl::Span<const int64_t> keys, int32_t* rows) const {
  size_t slots[kBatch];
  for (size_t begin = 0; begin < keys.size(); begin += kBatch) {
    const size_t count = std::min(kBatch, keys.size() - begin);
    for (size_t i = 0; i < count; ++i) {
      slots[i] = FirstSlot(keys[begin + i]);
      __builtin_prefetch(&slots_[slots[i]]);
    }
    for (size_t i = 0; i < count; ++i) rows[begin + i] = slots_[Probe(keys[begin + i], slots[i])].row;
  }
}

TextIndex::TextIndex(int64_t keys, int64_t bytes) : slots_(SlotsFor(keys)) {
  text_.reserve(static_cast<size_t>(bytes));
}

size_t TextIndex::FirstSlot(uint64_t hash) const { return Scaled(hash, slots_.size()); }

size_t TextIndex::NextLikely(uint64_t hash, size_t length, size_t slot) const {
  const uint64_t tag = TagOf(hash);
  for (;; slot = Next(slot, slots_.size())) {
    const Slot& at = slots_[slot];
    if (at.row < 0 || (at.tag == tag && at.length == length)) return slot;
  }
}

size_t TextIndex::Probe(std::string_view key, uint64_t hash, size_t slot) const {
  while (slots_[slot].row >= 0 && key != std::string_view(text_.data() + slots_[slot].begin, key.size())) {
    slot = NextLikely(hash, key.size(), Next(slot, slots_.size()));
  }
  return slot;
}

bool TextIndex::Add(std::string_view key, int32_t row) {
  const uint64_t hash = HashOf(key);
  Slot& slot = slots_[Probe(key, hash, NextLikely(hash, key.size(), FirstSlot(hash)))];
  if (slot.row >= 0) return false;
  slot.begin = text_.size();
  slot.tag = TagOf(hash);
  slot.length = static_cast<uint32_t>(key.size());
  slot.row = row;
  text_.insert(text_.end(), key.begin(), key.end());
  return true;
}

void TextIndex::Find(absl::Span<const std::string* const> keys, int32_t* rows) const {
  uint64_t hashes[kBatch];
  size_t slots[kBatch];
  for (size_t begin = 0; begin < keys.size(); begin += kBatch) {
    const size_t count = std::min(kBatch, keys.size() - begin);
    for (size_t i = 0; i < count; ++i) {
      hashes[i] = HashOf(*keys[begin + i]);
      slots[i] = FirstSlot(hashes[i]);
      __builtin_prefetch(&slots_[slots[i]]);
    }
    for (size_t i = 0; i < count; ++i) {
      slots[i] = NextLikely(hashes[i], keys[begin + i]->size(), slots[i]);
      __builtin_prefetch(text_.data() + slots_[slots[i]].begin);
    }
    for (size_t i = 0; i < count; ++i) {
      rows[begin + i] = slots_[Probe(*keys[begin + i], hashes[i], slots[i])].row;
    }
  }
}

}  // namespace dinghy
