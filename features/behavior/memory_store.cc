#include "features/behavior/memory_store.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <utility>

namespace dinghy {
namespace {

class MemoryStore final : public BehaviorStore {
 public:
  explicit MemoryStore(std::function<absl::Time()> now) : now_(std::move(now)) {}

  absl::Status Fetch(std::string_view user_id, const v1::HistoryQuery& query,
                     EventList& events) const override {
    events.Clear();
    const auto wanted = [&](const v1::Event& event) {
      return query.actions().empty() || std::find(query.actions().begin(), query.actions().end(),
                                                  event.action()) != query.actions().end();
    };
    const auto full = [&] {
      return query.limit() > 0 && events.size() == static_cast<int64_t>(query.limit());
    };

    std::shared_lock lock(mutex_);
    const auto user = users_.find(user_id);
    if (user == users_.end()) return absl::OkStatus();
    const auto begin = user->second.begin();
    const auto end =
        query.has_before_ms() ? user->second.lower_bound({query.before_ms(), 0}) : user->second.end();
    if (query.oldest()) {
      for (auto it = begin; it != end && !full(); ++it) {
        if (wanted(it->second)) *events.Add() = it->second;
      }
    } else {
      for (auto it = end; it != begin && !full();) {
        if (wanted((--it)->second)) *events.Add() = it->second;
      }
      std::reverse(events.pointer_begin(), events.pointer_end());
    }
    return absl::OkStatus();
  }

  absl::StatusOr<AppendResult> Append(absl::Span<const v1::Event> events) override {
    for (const v1::Event& event : events) {
      if (absl::Status status = CheckEvent(event); !status.ok()) return status;
    }
    const int64_t now_ms = absl::ToUnixMillis(now_());
    AppendResult result;
    std::unique_lock lock(mutex_);
    for (const v1::Event& event : events) {
      const auto [it, added] =
          users_[event.user_id()].try_emplace({event.event_time_ms(), event.event_id()}, event);
      if (added && event.ingest_time_ms() == 0) it->second.set_ingest_time_ms(now_ms);
      ++(added ? result.appended : result.duplicates);
    }
    return result;
  }

  absl::StatusOr<int64_t> DeleteUser(std::string_view user_id) override {
    std::unique_lock lock(mutex_);
    const auto user = users_.find(user_id);
    if (user == users_.end()) return 0;
    const auto count = static_cast<int64_t>(user->second.size());
    users_.erase(user);
    return count;
  }

  std::string Describe() const override { return "memory: nothing survives the process"; }

 private:
  using History = std::map<std::pair<int64_t, uint64_t>, v1::Event>;  // by (event_time_ms, event_id)

  const std::function<absl::Time()> now_;
  mutable std::shared_mutex mutex_;
  std::map<std::string, History, std::less<>> users_;  // guarded by mutex_
};

}  // namespace

std::unique_ptr<BehaviorStore> NewMemoryStore(std::function<absl::Time()> now) {
  return std::make_unique<MemoryStore>(std::move(now));
}

}  // namespace dinghy
