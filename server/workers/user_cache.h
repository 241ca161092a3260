// States of users (UserState) kept from request to request, so that the next page of a user's candidates, or
// the other half of a split list, does not encode the same history again.
//
//   UserCache cache(64 << 20);
//   MakeUserKey(loaded, batch, key);
//   std::shared_ptr<const UserState> user = cache.Find(key);
//   if (user == nullptr) cache.Insert(key, loaded.model->Keep(computed));
//
// The key is all that a state is computed from, and is compared in full: a hit has the bits of a miss. What
// was used longest ago goes first. Thread-safe.
#ifndef DINGHY_SERVER_WORKERS_USER_CACHE_H_
#define DINGHY_SERVER_WORKERS_USER_CACHE_H_

#include <cstddef>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

#include "absl/base/thread_annotations.h"
#include "features/feature_batch.h"
#include "model/loaded_model.h"
#include "model/user_state.h"

namespace dinghy {

// Writes the bundle's digest and the user's and histories' part of the batch to `key`, whose memory is
// reused.
void MakeUserKey(const LoadedModel& loaded, const FeatureBatch& batch, std::string& key);

class UserCache {
 public:
  // Keys, states and the cache's own memory for them stay below `max_bytes`.
  explicit UserCache(size_t max_bytes) : max_bytes_(max_bytes) {}
  UserCache(const UserCache&) = delete;
  UserCache& operator=(const UserCache&) = delete;

  // Null where there is none. What is returned stays valid when the cache drops it.
  std::shared_ptr<const UserState> Find(const std::string& key);

  struct Inserted {
    int evicted = 0;
    size_t bytes = 0;  // in the cache
  };
  // Keeps `state`, unless the key is there already or it is larger than the whole cache.
  Inserted Insert(const std::string& key, UserState state);

  size_t bytes() const;

 private:
  struct Entry {
    std::string key;
    std::shared_ptr<const UserState> state;
    size_t bytes = 0;
  };
  using Entries = std::list<Entry>;

  struct Key {
    std::string_view bytes;
    size_t hash = 0;  // so that it is not computed under the lock: a key can be long
    bool operator==(const Key& other) const { return bytes == other.bytes; }
  };
  struct HashOfKey {
    size_t operator()(const Key& key) const { return key.hash; }
  };

  static Key KeyOf(const std::string& bytes);

  const size_t max_bytes_;
  mutable std::mutex mutex_;
  Entries entries_ ABSL_GUARDED_BY(mutex_);                                              // newest use first
  std::unordered_map<Key, Entries::iterator, HashOfKey> index_ ABSL_GUARDED_BY(mutex_);  // into Entry::key
  size_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace dinghy

#endif  // DINGHY_SERVER_WORKERS_USER_CACHE_H_
