#include "features/behavior/rocksdb_store.h"

#include <rocksdb/convenience.h>
#include <rocksdb/db.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/table.h>
#include <rocksdb/write_batch.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <mutex>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace dinghy {
namespace {

constexpr size_t kMaxUserIdBytes = 1024;

void PutBigEndian(uint64_t value, int bytes, std::string& out) {
  for (int shift = 8 * (bytes - 1); shift >= 0; shift -= 8) out.push_back(static_cast<char>(value >> shift));
}

std::string UserPrefix(std::string_view user_id) {
  std::string key(1, '\x01');
  PutBigEndian(user_id.size(), 2, key);
  key.append(user_id);
  return key;
}

// The first key after all keys that begin with `prefix`.
std::string PrefixEnd(std::string prefix) {
  while (static_cast<unsigned char>(prefix.back()) == 0xFF) prefix.pop_back();  // the first byte is 1
  ++prefix.back();
  return prefix;
}

std::string EventKey(const v1::Event& event) {
  std::string key = UserPrefix(event.user_id());
  PutBigEndian(static_cast<uint64_t>(event.event_time_ms()), 8, key);
  PutBigEndian(event.event_id(), 8, key);
  return key;
}

uint64_t GetBigEndian64(const char* bytes) {
  uint64_t value = 0;
  for (int i = 0; i < 8; ++i) value = value << 8 | static_cast<unsigned char>(bytes[i]);
  return value;
}

// Whether `key`, of the user with this prefix, is EventKey(event).
bool IsKeyOf(const rocksdb::Slice& key, const std::string& prefix, std::string_view user_id,
             const v1::Event& event) {
  if (key.size() != prefix.size() + 16 || event.user_id() != user_id) return false;
  const char* order = key.data() + prefix.size();
  return GetBigEndian64(order) == static_cast<uint64_t>(event.event_time_ms()) &&
         GetBigEndian64(order + 8) == event.event_id();
}

class RocksDbStore final : public BehaviorStore {
 public:
  RocksDbStore(RocksDbOptions options, std::unique_ptr<rocksdb::DB> db)
      : options_(std::move(options)), db_(std::move(db)) {}

  absl::Status Fetch(std::string_view user_id, const v1::HistoryQuery& query,
                     EventList& events) const override {
    events.Clear();
    if (user_id.empty() || user_id.size() > kMaxUserIdBytes) return absl::OkStatus();
    if (query.has_before_ms() && query.before_ms() <= 0) return absl::OkStatus();
    const std::string lower = UserPrefix(user_id);
    std::string upper = lower;
    if (query.has_before_ms()) {
      PutBigEndian(static_cast<uint64_t>(query.before_ms()), 8, upper);
    } else {
      upper = PrefixEnd(std::move(upper));
    }
    const rocksdb::Slice lower_bound(lower), upper_bound(upper);
    rocksdb::ReadOptions read;
    read.iterate_lower_bound = &lower_bound;
    read.iterate_upper_bound = &upper_bound;
    const std::unique_ptr<rocksdb::Iterator> it(db_->NewIterator(read));
    // A step back costs a search in the memtable, a step forward costs little. So a history that is wanted
    // whole, as most are, is read forward; one that turns out to be longer is begun again from its end.
    const bool newest = query.limit() > 0 && !query.oldest();
    bool forward = true;
    uint32_t records = 0;
    for (it->SeekToFirst(); it->Valid(); forward ? it->Next() : it->Prev()) {
      if (newest && forward && ++records > query.limit()) {
        forward = false;
        events.Clear();
        it->SeekToLast();
      }
      v1::Event& event = *events.Add();
      if (!event.ParseFromArray(it->value().data(), static_cast<int>(it->value().size())) ||
          !IsKeyOf(it->key(), lower, user_id, event)) {
        return absl::DataLossError(absl::StrCat(
            "store ", options_.path, ": the record of key ", it->key().ToString(true), " (user \"",
            absl::CHexEscape(std::string(user_id)), "\"): expected the event of that key, got ",
            it->value().size(), " bytes that are not"));
      }
      if (!query.actions().empty() && std::find(query.actions().begin(), query.actions().end(),
                                                event.action()) == query.actions().end()) {
        events.RemoveLast();
        continue;
      }
      const bool full = query.limit() > 0 && events.size() == static_cast<int64_t>(query.limit());
      if (full && !(newest && forward)) break;
    }
    if (!it->status().ok()) return Failure("reading", it->status());
    if (!forward) std::reverse(events.pointer_begin(), events.pointer_end());
    return absl::OkStatus();
  }

  absl::StatusOr<AppendResult> Append(absl::Span<const v1::Event> events) override {
    std::set<size_t> stripes;
    for (const v1::Event& event : events) {
      if (absl::Status status = CheckEvent(event); !status.ok()) return status;
      stripes.insert(Stripe(event.user_id()));
    }
    const int64_t now_ms = absl::ToUnixMillis(options_.now());
    // Looking up and writing must be one step per user. Locks by user, in rising order, so that concurrent
    // appends for other users share one sync of the log.
    std::vector<std::unique_lock<std::mutex>> locks;
    for (const size_t stripe : stripes) locks.emplace_back(stripes_[stripe]);

    AppendResult result;
    rocksdb::WriteBatch batch;
    std::set<std::string> new_keys;
    std::string value;
    for (const v1::Event& event : events) {
      std::string key = EventKey(event);
      rocksdb::PinnableSlice stored;
      const rocksdb::Status found =
          db_->Get(rocksdb::ReadOptions(), db_->DefaultColumnFamily(), key, &stored);
      if (!found.ok() && !found.IsNotFound()) return Failure("reading", found);
      if (found.ok() || new_keys.contains(key)) {
        ++result.duplicates;
        continue;
      }
      if (event.ingest_time_ms() == 0) {
        v1::Event stamped = event;
        stamped.set_ingest_time_ms(now_ms);
        stamped.SerializeToString(&value);
      } else {
        event.SerializeToString(&value);
      }
      if (rocksdb::Status put = batch.Put(key, value); !put.ok()) return Failure("writing", put);
      new_keys.insert(std::move(key));
      ++result.appended;
    }
    if (result.appended > 0) {
      if (rocksdb::Status written = db_->Write(WriteOptions(), &batch); !written.ok()) {
        return Failure("writing", written);
      }
    }
    return result;
  }

  absl::StatusOr<int64_t> DeleteUser(std::string_view user_id) override {
    if (user_id.empty() || user_id.size() > kMaxUserIdBytes) return 0;
    const std::string lower = UserPrefix(user_id);
    const std::string upper = PrefixEnd(lower);
    const std::lock_guard lock(stripes_[Stripe(user_id)]);
    int64_t count = 0;
    {
      const rocksdb::Slice lower_bound(lower), upper_bound(upper);
      rocksdb::ReadOptions read;
      read.iterate_lower_bound = &lower_bound;
      read.iterate_upper_bound = &upper_bound;
      const std::unique_ptr<rocksdb::Iterator> it(db_->NewIterator(read));
      for (it->SeekToFirst(); it->Valid(); it->Next()) ++count;
      if (!it->status().ok()) return Failure("reading", it->status());
    }
    if (count == 0) return 0;
    const rocksdb::Status deleted =
        db_->DeleteRange(WriteOptions(), db_->DefaultColumnFamily(), lower, upper);
    if (!deleted.ok()) return Failure("writing", deleted);
    return count;
  }

  std::string Describe() const override {
    return absl::StrCat("rocksdb: ", options_.path, ", write-ahead log ",
                        options_.sync ? "synced on every append"
                                      : "not synced: a crash of the machine may lose acknowledged events");
  }

 private:
  static constexpr size_t kStripes = 32;

  static size_t Stripe(std::string_view user_id) { return std::hash<std::string_view>()(user_id) % kStripes; }

  rocksdb::WriteOptions WriteOptions() const {
    rocksdb::WriteOptions write;
    write.sync = options_.sync;
    return write;
  }

  absl::Status Failure(absl::string_view doing, const rocksdb::Status& status) const {
    const std::string message = absl::StrCat("store ", options_.path, ": ", doing, ": ", status.ToString());
    return status.IsCorruption() ? absl::DataLossError(message) : absl::UnavailableError(message);
  }

  const RocksDbOptions options_;
  const std::unique_ptr<rocksdb::DB> db_;
  std::array<std::mutex, kStripes> stripes_;  // held from look-up to write, by user
};

rocksdb::CompressionType BestCompression() {
  const std::vector<rocksdb::CompressionType> linked = rocksdb::GetSupportedCompressions();
  for (const auto type : {rocksdb::kLZ4Compression, rocksdb::kSnappyCompression, rocksdb::kZSTD}) {
    if (std::find(linked.begin(), linked.end(), type) != linked.end()) return type;
  }
  return rocksdb::kNoCompression;
}

rocksdb::Options EngineOptions(bool sync) {
  rocksdb::Options options;
  options.create_if_missing = true;
  // Synced: only the tail can be torn, and damage before it must be seen. Not synced: a crash of the machine
  // may leave holes, and what lies before the first one is what there is.
  options.wal_recovery_mode = sync ? rocksdb::WALRecoveryMode::kTolerateCorruptedTailRecords
                                   : rocksdb::WALRecoveryMode::kPointInTimeRecovery;
  options.compression = BestCompression();
  // RocksDB's own LOG files: little and few.
  options.info_log_level = rocksdb::WARN_LEVEL;
  options.keep_log_file_num = 2;
  options.max_log_file_size = 1 << 20;
  options.stats_dump_period_sec = 0;
  options.stats_persist_period_sec = 0;
  // Most appends look up keys that do not exist yet.
  rocksdb::BlockBasedTableOptions table;
  table.filter_policy.reset(rocksdb::NewBloomFilterPolicy(10));
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  return options;
}

}  // namespace

absl::StatusOr<std::unique_ptr<BehaviorStore>> OpenRocksDbStore(RocksDbOptions options) {
  if (options.path.empty())
    return absl::InvalidArgumentError("store: expected the path of a folder, got none");
  std::error_code error;
  std::filesystem::create_directories(options.path, error);
  if (error) {
    return absl::FailedPreconditionError(
        absl::StrCat("store ", options.path, ": cannot make the folder: ", error.message()));
  }
  rocksdb::DB* opened = nullptr;
  const rocksdb::Status status = rocksdb::DB::Open(EngineOptions(options.sync), options.path, &opened);
  std::unique_ptr<rocksdb::DB> db(opened);
  if (!status.ok()) {
    const std::string text = status.ToString();
    if (absl::StrContains(text, "While lock file") ||
        absl::StrContains(text, "lock hold by current process")) {
      return absl::FailedPreconditionError(
          absl::StrCat("store ", options.path,
                       ": the folder is locked: a server or another process has "
                       "it open (",
                       text, ")"));
    }
    const std::string message = absl::StrCat("store ", options.path, ": opening: ", text);
    return status.IsCorruption() ? absl::DataLossError(message) : absl::UnavailableError(message);
  }
  return std::make_unique<RocksDbStore>(std::move(options), std::move(db));
}

}  // namespace dinghy
