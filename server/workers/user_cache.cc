#include "server/workers/user_cache.h"

#include <cstdint>
#include <functional>
#include <iterator>
#include <utility>
#include <vector>

namespace dinghy {
namespace {

// The number of elements goes before them, so that no two batches write the same bytes.
template <typename T>
void Append(const std::vector<T>& elements, std::string& key) {
  const uint64_t count = elements.size();
  key.append(reinterpret_cast<const char*>(&count), sizeof(count));
  key.append(reinterpret_cast<const char*>(elements.data()), count * sizeof(T));
}

}  // namespace

void MakeUserKey(const LoadedModel& loaded, const FeatureBatch& batch, std::string& key) {
  const v1::BundleManifest& manifest = loaded.bundle->manifest;
  key.assign(loaded.bundle->digest);
  Append(batch.sequence_lengths, key);
  Append(batch.full_lengths, key);
  for (int f = 0; f < manifest.features_size(); ++f) {
    if (manifest.features(f).level() == v1::CANDIDATE) continue;
    const FeatureColumn& column = batch.columns[f];
    Append(column.rows, key);
    Append(column.offsets, key);
    Append(column.values, key);
  }
}

UserCache::Key UserCache::KeyOf(const std::string& bytes) {
  return {bytes, std::hash<std::string_view>()(bytes)};
}

std::shared_ptr<const UserState> UserCache::Find(const std::string& key) {
  const Key wanted = KeyOf(key);
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = index_.find(wanted);
  if (found == index_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, found->second);
  return found->second->state;
}

UserCache::Inserted UserCache::Insert(const std::string& key, UserState state) {
  // The list's links, the index's node and bucket, the counts of shared_ptr, and what malloc adds to each.
  constexpr size_t kOverhead = sizeof(Entry) + sizeof(UserState) + sizeof(Key) + 12 * sizeof(void*) + 64;
  Entries added(1);
  Entry& entry = added.front();
  entry.key = key;
  entry.bytes = entry.key.capacity() + state.bytes() + kOverhead;
  entry.state = std::make_shared<const UserState>(std::move(state));

  const Key added_key = KeyOf(entry.key);
  Entries dropped;  // freed after the lock
  Inserted result;
  std::lock_guard<std::mutex> lock(mutex_);
  if (entry.bytes <= max_bytes_ && !index_.contains(added_key)) {
    while (bytes_ + entry.bytes > max_bytes_) {
      bytes_ -= entries_.back().bytes;
      index_.erase(KeyOf(entries_.back().key));
      dropped.splice(dropped.begin(), entries_, std::prev(entries_.end()));
      ++result.evicted;
    }
    bytes_ += entry.bytes;
    entries_.splice(entries_.begin(), added);
    index_.emplace(added_key, entries_.begin());
  }
  result.bytes = bytes_;
  return result;
}

size_t UserCache::bytes() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return bytes_;
}

}  // namespace dinghy
