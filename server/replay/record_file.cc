#include "server/replay/record_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "server/replay/crc32c.h"

namespace dinghy {
namespace {

constexpr size_t kHeaderBytes = 12;  // length, its checksum
constexpr size_t kFooterBytes = 4;
constexpr size_t kBufferBytes = 1 << 16;
constexpr uint64_t kReadStep = 1 << 20;

void PutLittleEndian(uint64_t value, int bytes, std::string& out) {
  for (int i = 0; i < bytes; ++i) out.push_back(static_cast<char>(value >> (8 * i)));
}

uint64_t GetLittleEndian(std::string_view bytes) {
  uint64_t value = 0;
  for (size_t i = bytes.size(); i > 0; --i) value = value << 8 | static_cast<unsigned char>(bytes[i - 1]);
  return value;
}

bool ChecksumHolds(std::string_view data, std::string_view stored) {
  return MaskCrc(Crc32c(data)) == GetLittleEndian(stored);
}

std::string LastError() { return std::strerror(errno); }

}  // namespace

absl::StatusOr<std::unique_ptr<RecordReader>> RecordReader::Open(const std::string& path) {
  std::FILE* const file = std::fopen(path.c_str(), "rb");
  if (file == nullptr) return absl::NotFoundError(absl::StrCat(path, ": cannot be opened: ", LastError()));
  return std::unique_ptr<RecordReader>(new RecordReader(path, file));
}

absl::StatusOr<bool> RecordReader::Next(std::string& record) {
  record.clear();
  if (!status_.ok()) return status_;
  if (ended_) return false;
  const auto end = [this](bool torn) {
    ended_ = true;
    torn_ = torn;
    return false;
  };

  if (absl::Status status = Read(kHeaderBytes, header_); !status.ok()) return status;
  if (header_.empty()) return end(false);
  if (header_.size() < kHeaderBytes) return end(true);
  const std::string_view header(header_);
  if (!ChecksumHolds(header.substr(0, 8), header.substr(8))) {
    if (std::all_of(header.begin(), header.end(), [](char c) { return c == 0; }) && OnlyZerosLeft()) {
      return end(true);
    }
    return Corrupt("the checksum of the length is wrong");
  }
  const uint64_t size = GetLittleEndian(header.substr(0, 8));
  if (absl::Status status = Read(size, record); !status.ok()) return status;
  if (record.size() == size) {
    if (absl::Status status = Read(kFooterBytes, footer_); !status.ok()) return status;
  }
  if (record.size() < size || footer_.size() < kFooterBytes) {
    record.clear();
    return end(true);
  }
  if (!ChecksumHolds(record, footer_)) {
    record.clear();
    if (AtEnd()) return end(true);
    return Corrupt(absl::StrCat("the checksum of ", size, " bytes of data is wrong"));
  }
  good_bytes_ += static_cast<int64_t>(kHeaderBytes + size + kFooterBytes);
  return true;
}

absl::Status RecordReader::Read(uint64_t size, std::string& out) {
  out.clear();
  // Step by step: a length beyond the end of the file must not cost its memory.
  while (out.size() < size) {
    const size_t before = out.size();
    const auto step = static_cast<size_t>(std::min<uint64_t>(size - before, kReadStep));
    out.resize(before + step);
    const size_t got = std::fread(out.data() + before, 1, step, file_.get());
    out.resize(before + got);
    if (got < step) break;
  }
  if (std::ferror(file_.get())) {
    status_ = absl::DataLossError(
        absl::StrCat(path_, ": reading failed at offset ", good_bytes_, ": ", LastError()));
    return status_;
  }
  return absl::OkStatus();
}

bool RecordReader::AtEnd() {
  const int c = std::fgetc(file_.get());
  if (c != EOF) std::ungetc(c, file_.get());
  return c == EOF;
}

bool RecordReader::OnlyZerosLeft() {
  for (int c; (c = std::fgetc(file_.get())) != EOF;) {
    if (c != 0) return false;
  }
  return true;
}

absl::Status RecordReader::Corrupt(const std::string& what) {
  status_ = absl::DataLossError(absl::StrCat(path_, ": the record at offset ", good_bytes_, ": ", what));
  return status_;
}

absl::StatusOr<std::unique_ptr<RecordWriter>> RecordWriter::Open(const std::string& path) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (file < 0)
    return absl::UnavailableError(absl::StrCat(path, ": cannot be opened for writing: ", LastError()));
  const auto fail = [file](absl::Status status) {
    ::close(file);
    return status;
  };
  if (::flock(file, LOCK_EX | LOCK_NB) != 0) {
    return fail(absl::FailedPreconditionError(absl::StrCat(path, ": another writer has the file open")));
  }
  auto reader = RecordReader::Open(path);
  if (!reader.ok()) return fail(reader.status());
  std::string record;
  for (;;) {
    const absl::StatusOr<bool> more = (*reader)->Next(record);
    if (!more.ok()) return fail(more.status());
    if (!*more) break;
  }
  const int64_t good = (*reader)->good_bytes();
  struct stat info;
  if (::fstat(file, &info) != 0) {
    return fail(absl::UnavailableError(absl::StrCat(path, ": its size cannot be read: ", LastError())));
  }
  if (info.st_size > good && ::ftruncate(file, good) != 0) {
    return fail(absl::UnavailableError(
        absl::StrCat(path, ": the torn tail at offset ", good, " cannot be cut: ", LastError())));
  }
  return std::unique_ptr<RecordWriter>(new RecordWriter(path, file, good, info.st_size - good));
}

RecordWriter::~RecordWriter() { Close().IgnoreError(); }

absl::Status RecordWriter::Append(std::string_view record) {
  if (!status_.ok()) return status_;
  if (file_ < 0) return absl::FailedPreconditionError(absl::StrCat(path_, ": the file is closed"));
  const size_t begin = buffer_.size();
  PutLittleEndian(record.size(), 8, buffer_);
  PutLittleEndian(MaskCrc(Crc32c(std::string_view(buffer_).substr(begin))), 4, buffer_);
  buffer_.append(record);
  PutLittleEndian(MaskCrc(Crc32c(record)), 4, buffer_);
  return buffer_.size() >= kBufferBytes ? Flush() : absl::OkStatus();
}

absl::Status RecordWriter::Flush() {
  if (!status_.ok()) return status_;
  size_t done = 0;
  while (done < buffer_.size()) {
    const ssize_t wrote = ::write(file_, buffer_.data() + done, buffer_.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) {
      std::string message = absl::StrCat(path_, ": writing failed at offset ", written_, ": ", LastError());
      // Half a record must not stay: what another writer appends later would be lost behind it.
      if (::ftruncate(file_, written_) != 0)
        absl::StrAppend(&message, "; and the file has a torn tail there");
      status_ = absl::UnavailableError(message);
      buffer_.clear();
      return status_;
    }
    done += static_cast<size_t>(wrote);
  }
  written_ += static_cast<int64_t>(buffer_.size());
  buffer_.clear();
  return absl::OkStatus();
}

absl::Status RecordWriter::Sync() {
  if (absl::Status status = Flush(); !status.ok()) return status;
  if (file_ >= 0 && ::fsync(file_) != 0) {
    status_ = absl::UnavailableError(absl::StrCat(path_, ": syncing failed: ", LastError()));
    return status_;
  }
  return absl::OkStatus();
}

absl::Status RecordWriter::Close() {
  if (file_ < 0) return absl::OkStatus();
  absl::Status status = Flush();
  if (::close(file_) != 0 && status.ok()) {
    status = absl::UnavailableError(absl::StrCat(path_, ": closing failed: ", LastError()));
  }
  file_ = -1;
  return status;
}

}  // namespace dinghy
