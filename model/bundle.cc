#include "model/bundle.h"

#include <fcntl.h>
#include <google/protobuf/util/json_util.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "model/safetensors.h"
#include "model/sha256.h"

namespace dinghy {
namespace {

constexpr absl::string_view kComplete = "COMPLETE";
constexpr absl::string_view kManifest = "bundle.json";
constexpr absl::string_view kGolden = "golden.jsonl";
constexpr uint64_t kMaxComplete = uint64_t{16} << 20;

// A file of the bundle, read once from front to back and hashed on the way, so that what is used is what was
// checked.
class HashedFile {
 public:
  static absl::StatusOr<HashedFile> Open(const std::string& directory, absl::string_view name) {
    HashedFile file;
    file.name_ = std::string(name);
    // Not blocking: a named pipe must not hang the loader.
    file.fd_.value = open(absl::StrCat(directory, "/", name).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file.fd_.value < 0) {
      const int error = errno;
      const std::string message = absl::StrCat(directory, ": cannot open ", name, ": ", std::strerror(error));
      return error == ENOENT ? absl::NotFoundError(message) : absl::FailedPreconditionError(message);
    }
    struct stat info;
    if (fstat(file.fd_.value, &info) != 0 || !S_ISREG(info.st_mode)) {
      return absl::InvalidArgumentError(absl::StrCat(name, ": expected a regular file"));
    }
    file.size_ = static_cast<uint64_t>(info.st_size);
    return file;
  }

  uint64_t size() const { return size_; }

  // Fills `bytes`. DATA_LOSS where the file ends before.
  absl::Status Read(absl::Span<char> bytes) {
    size_t done = 0;
    while (done < bytes.size()) {
      const ssize_t got = read(fd_.value, bytes.data() + done, bytes.size() - done);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return absl::DataLossError(absl::StrCat(name_, ": cannot read: ", std::strerror(errno)));
      if (got == 0) {
        return absl::DataLossError(absl::StrCat(name_, ": expected ", bytes.size() - done, " more bytes at ",
                                                position_ + done, ", got the end"));
      }
      done += static_cast<size_t>(got);
    }
    position_ += done;
    hash_.Update(absl::string_view(bytes.data(), bytes.size()));
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> ReadAll() {
    std::string bytes(size_ - position_, '\0');
    absl::Status status = Read(absl::MakeSpan(bytes));
    if (!status.ok()) return status;
    return bytes;
  }

  // Reads what is left; the SHA-256 of the whole file. Call it last.
  absl::StatusOr<std::string> Finish() {
    std::string buffer(std::min<uint64_t>(size_ - position_, uint64_t{1} << 20), '\0');
    while (position_ < size_) {
      const uint64_t count = std::min<uint64_t>(size_ - position_, buffer.size());
      absl::Status status = Read(absl::MakeSpan(buffer.data(), count));
      if (!status.ok()) return status;
    }
    return hash_.Hex();
  }

 private:
  struct Descriptor {
    Descriptor() = default;
    Descriptor(Descriptor&& other) noexcept : value(std::exchange(other.value, -1)) {}
    Descriptor& operator=(Descriptor&&) = delete;
    ~Descriptor() {
      if (value >= 0) close(value);
    }
    int value = -1;
  };

  HashedFile() = default;

  std::string name_;
  Descriptor fd_;
  uint64_t size_ = 0;
  uint64_t position_ = 0;
  Sha256 hash_;
};

absl::Status ParseJson(absl::string_view json, absl::string_view label, google::protobuf::Message& message) {
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = false;
  const auto status = google::protobuf::util::JsonStringToMessage(
      google::protobuf::StringPiece(json.data(), json.size()), &message, options);
  if (status.ok()) return absl::OkStatus();
  const auto text = status.message();
  return absl::InvalidArgumentError(absl::StrCat(label, ": ", absl::string_view(text.data(), text.size())));
}

// A name that stays in the folder and is not COMPLETE itself.
bool IsPlainName(absl::string_view path) {
  return !path.empty() && path != "." && path != ".." && path != kComplete &&
         path.find('/') == absl::string_view::npos && path.find('\0') == absl::string_view::npos;
}

absl::Status CheckComplete(const v1::CompleteFile& complete) {
  absl::string_view last;
  for (const v1::CompleteFile::Entry& entry : complete.files()) {
    const std::string label = absl::StrCat(kComplete, ": file \"", absl::CEscape(entry.path()), "\": ");
    if (!IsPlainName(entry.path())) {
      return absl::InvalidArgumentError(
          absl::StrCat(label, "expected a name of a file in the bundle folder"));
    }
    if (entry.path() <= last) {
      return absl::InvalidArgumentError(
          absl::StrCat(label, "expected files by rising path, each once, got it after \"", last, "\""));
    }
    last = entry.path();
    if (!entry.has_size()) return absl::InvalidArgumentError(absl::StrCat(label, "size is missing"));
    const bool hex = std::all_of(entry.sha256().begin(), entry.sha256().end(),
                                 [](unsigned char c) { return absl::ascii_isxdigit(c); });
    if (entry.sha256().size() != 64 || !hex) {
      return absl::InvalidArgumentError(absl::StrCat(label, "expected 64 hex digits in sha256, got \"",
                                                     absl::CEscape(entry.sha256()), "\""));
    }
  }
  return absl::OkStatus();
}

// Nothing lies in the folder but COMPLETE and the files that it lists.
absl::Status CheckFolder(const std::string& directory, const v1::CompleteFile& complete) {
  std::set<absl::string_view> listed = {kComplete};
  for (const v1::CompleteFile::Entry& entry : complete.files()) listed.insert(entry.path());
  std::error_code error;
  std::filesystem::directory_iterator it(directory, error);
  for (; !error && it != std::filesystem::directory_iterator(); it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (listed.contains(name)) continue;
    return absl::InvalidArgumentError(absl::StrCat(directory, ": expected only the files that ", kComplete,
                                                   " lists, got \"", absl::CEscape(name), "\" beside them"));
  }
  if (error) return absl::FailedPreconditionError(absl::StrCat(directory, ": ", error.message()));
  return absl::OkStatus();
}

absl::Status ParseGoldens(absl::string_view text, std::vector<v1::ScoreLog>& goldens) {
  int line_number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++line_number;
    if (absl::StripAsciiWhitespace(line).empty()) continue;
    absl::Status status =
        ParseJson(line, absl::StrCat(kGolden, " line ", line_number), goldens.emplace_back());
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

// Parses `file` by what its name says it is.
absl::Status ParseFile(absl::string_view name, HashedFile& file, Bundle& bundle) {
  if (absl::EndsWith(name, ".safetensors")) {
    return ReadSafetensors(
        name, file.size(), [&file](absl::Span<char> bytes) { return file.Read(bytes); }, bundle.tensors);
  }
  absl::StatusOr<std::string> text = file.ReadAll();
  if (!text.ok()) return text.status();
  if (name == kManifest) return ParseJson(*text, kManifest, bundle.manifest);
  if (name == kGolden) return ParseGoldens(*text, bundle.goldens);
  bundle.files.emplace(name, *std::move(text));
  return absl::OkStatus();
}

// Reads and checks one file that COMPLETE lists.
absl::Status ReadFile(const v1::CompleteFile::Entry& entry, Bundle& bundle) {
  absl::StatusOr<HashedFile> file = HashedFile::Open(bundle.directory, entry.path());
  if (!file.ok()) return file.status();
  if (file->size() != entry.size()) {
    return absl::DataLossError(absl::StrCat(entry.path(), ": expected ", entry.size(), " bytes, as ",
                                            kComplete, " says, got ", file->size()));
  }
  const absl::Status parsed = ParseFile(entry.path(), *file, bundle);
  absl::StatusOr<std::string> sha256 = file->Finish();
  if (!sha256.ok()) return sha256.status();
  // Before what parsing found: a changed byte is the cause, a bad offset its effect.
  if (*sha256 != absl::AsciiStrToLower(entry.sha256())) {
    return absl::DataLossError(absl::StrCat(entry.path(), ": expected SHA-256 ", entry.sha256(), ", as ",
                                            kComplete, " says, got ", *sha256));
  }
  return parsed;
}

// The folder's name as a version, 0 if it is none.
int64_t VersionOf(const std::string& directory) {
  std::filesystem::path path = std::filesystem::absolute(directory).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  const std::string name = path.filename().string();
  int64_t version = 0;
  const bool digits =
      std::all_of(name.begin(), name.end(), [](unsigned char c) { return absl::ascii_isdigit(c); });
  return digits && absl::SimpleAtoi(name, &version) ? version : 0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Bundle>> OpenBundle(const std::string& directory) {
  std::error_code error;
  if (!std::filesystem::is_directory(directory, error)) {
    return absl::NotFoundError(
        absl::StrCat(directory, ": expected a bundle folder, got ",
                     std::filesystem::exists(directory, error) ? "a file" : "nothing"));
  }
  auto bundle = std::make_unique<Bundle>();
  bundle->directory = directory;
  bundle->version = VersionOf(directory);

  absl::StatusOr<HashedFile> complete_file = HashedFile::Open(directory, kComplete);
  if (absl::IsNotFound(complete_file.status())) {
    return absl::NotFoundError(absl::StrCat(directory, ": has no ", kComplete,
                                            ": it is no bundle, or one that was not written to its end"));
  }
  if (!complete_file.ok()) return complete_file.status();
  if (complete_file->size() > kMaxComplete) {
    return absl::InvalidArgumentError(
        absl::StrCat(kComplete, ": expected at most ", kMaxComplete, " bytes, got ", complete_file->size()));
  }
  absl::StatusOr<std::string> complete_json = complete_file->ReadAll();
  if (!complete_json.ok()) return complete_json.status();
  absl::StatusOr<std::string> digest = complete_file->Finish();
  if (!digest.ok()) return digest.status();
  bundle->digest = *std::move(digest);
  v1::CompleteFile complete;
  absl::Status status = ParseJson(*complete_json, kComplete, complete);
  if (status.ok()) status = CheckComplete(complete);
  if (status.ok()) status = CheckFolder(directory, complete);
  if (!status.ok()) return status;

  const auto lists_manifest = [](const v1::CompleteFile::Entry& entry) { return entry.path() == kManifest; };
  if (std::none_of(complete.files().begin(), complete.files().end(), lists_manifest)) {
    return absl::NotFoundError(absl::StrCat(kComplete, ": expected it to list ", kManifest));
  }
  for (const v1::CompleteFile::Entry& entry : complete.files()) {
    status = ReadFile(entry, *bundle);
    if (!status.ok()) return status;
  }
  status = CheckManifest(bundle->manifest);
  if (!status.ok()) return status;
  return bundle;
}

}  // namespace dinghy
