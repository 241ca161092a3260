#include "features/vocabulary.h"

#include <farmhash.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace dinghy {
namespace {

constexpr int64_t kMaxRow = std::numeric_limits<int32_t>::max();

absl::Status Missing(absl::string_view field) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": expected a value, got none"));
}

// The row that `policy` gives; -1 for REFUSE.
absl::StatusOr<int32_t> PolicyRow(v1::IdPolicy policy, const v1::IdFeature& feature,
                                  absl::string_view field) {
  switch (policy) {
    case v1::OOV_ROW:
      if (!feature.has_oov_row()) return Missing(absl::StrCat("id.oov_row (", field, " is OOV_ROW)"));
      return static_cast<int32_t>(feature.oov_row());
    case v1::PAD_ROW:
      if (!feature.has_pad_row()) return Missing(absl::StrCat("id.pad_row (", field, " is PAD_ROW)"));
      return static_cast<int32_t>(feature.pad_row());
    case v1::REFUSE:
      return -1;
    default:
      return absl::InvalidArgumentError(
          absl::StrCat(field, ": expected OOV_ROW, PAD_ROW or REFUSE, got ", v1::IdPolicy_Name(policy)));
  }
}

std::string_view LittleEndian(uint64_t id, char (&buffer)[8]) {
  for (int i = 0; i < 8; ++i) buffer[i] = static_cast<char>(id >> (8 * i));
  return {buffer, sizeof(buffer)};
}

using Remainder = v1::Murmur3Vocabulary::Remainder;
constexpr Remainder kRemainders[] = {v1::Murmur3Vocabulary::UNSIGNED, v1::Murmur3Vocabulary::FLOOR,
                                     v1::Murmur3Vocabulary::ABSOLUTE};

// `hash` modulo `buckets`, 0 or more. ABSOLUTE takes the most negative hash, -2^31, as 2^31, as scikit-learn
// does.
uint64_t BucketOf(uint32_t hash, Remainder remainder, uint64_t buckets) {
  const int64_t is_signed = static_cast<int32_t>(hash);
  const auto size = static_cast<int64_t>(buckets);
  switch (remainder) {
    case v1::Murmur3Vocabulary::FLOOR:
      return static_cast<uint64_t>((is_signed % size + size) % size);
    case v1::Murmur3Vocabulary::ABSOLUTE:
      return static_cast<uint64_t>(is_signed < 0 ? -is_signed : is_signed) % buckets;
    default:
      return hash % buckets;
  }
}

// Whether there is a hash whose bucket depends on which of the two is meant.
bool CanDiffer(Remainder a, Remainder b, uint64_t buckets) {
  if (a == b) return false;
  if (a != v1::Murmur3Vocabulary::ABSOLUTE && b != v1::Murmur3Vocabulary::ABSOLUTE) {
    return (uint64_t{1} << 32) % buckets != 0;
  }
  return buckets > 2;  // h and -h
}

}  // namespace

uint32_t MurmurHash3(std::string_view bytes, uint32_t seed) {
  const auto scramble = [](uint32_t block) { return std::rotl(block * 0xcc9e2d51u, 15) * 0x1b873593u; };
  const auto read = [bytes](size_t begin, size_t count) {
    uint32_t block = 0;
    for (size_t i = 0; i < count; ++i) {
      block |= uint32_t{static_cast<unsigned char>(bytes[begin + i])} << (8 * i);
    }
    return block;
  };
  uint32_t hash = seed;
  const size_t tail = bytes.size() & ~size_t{3};
  for (size_t begin = 0; begin < tail; begin += 4) {
    hash = std::rotl(hash ^ scramble(read(begin, 4)), 13) * 5 + 0xe6546b64u;
  }
  if (tail < bytes.size()) hash ^= scramble(read(tail, bytes.size() - tail));
  hash ^= static_cast<uint32_t>(bytes.size());
  hash = (hash ^ (hash >> 16)) * 0x85ebca6bu;
  hash = (hash ^ (hash >> 13)) * 0xc2b2ae35u;
  return hash ^ (hash >> 16);
}

absl::StatusOr<std::unique_ptr<Vocabulary>> Vocabulary::Create(const v1::IdFeature& feature,
                                                               const FileContents& files) {
  const bool integers = feature.type() == v1::IdFeature::INT64;
  if (!integers && feature.type() != v1::IdFeature::STRING) {
    return absl::InvalidArgumentError(
        absl::StrCat("id.type: expected INT64 or STRING, got ", v1::IdFeature::Type_Name(feature.type())));
  }
  if (!integers && feature.negative() != v1::ID_POLICY_UNSPECIFIED) {
    return absl::InvalidArgumentError(absl::StrCat("id.negative: expected none as id.type is STRING, got ",
                                                   v1::IdPolicy_Name(feature.negative())));
  }
  std::unique_ptr<Vocabulary> vocabulary(new Vocabulary());
  vocabulary->kind_ = feature.vocabulary_case();
  for (const uint32_t row :
       {feature.has_pad_row() ? feature.pad_row() : 0, feature.has_oov_row() ? feature.oov_row() : 0}) {
    if (row > kMaxRow) {
      return absl::InvalidArgumentError(
          absl::StrCat("id.pad_row and id.oov_row: expected at most ", kMaxRow, ", got ", row));
    }
    vocabulary->max_row_ = std::max<int64_t>(vocabulary->max_row_, row);
  }
  const absl::StatusOr<int32_t> unknown = PolicyRow(feature.unknown(), feature, "id.unknown");
  if (!unknown.ok()) return unknown.status();
  vocabulary->unknown_row_ = *unknown;
  if (integers) {
    const absl::StatusOr<int32_t> negative = PolicyRow(feature.negative(), feature, "id.negative");
    if (!negative.ok()) return negative.status();
    vocabulary->negative_row_ = *negative;
  }

  absl::Status status;
  switch (feature.vocabulary_case()) {
    case v1::IdFeature::kIdentity:
      status = vocabulary->ReadIdentity(feature);
      break;
    case v1::IdFeature::kFarmHash:
      status = vocabulary->ReadHash(feature.farm_hash(), feature.type(), "id.farm_hash");
      break;
    case v1::IdFeature::kMurmur3:
      if (!feature.murmur3().has_seed()) return Missing("id.murmur3.seed");
      if (!v1::Murmur3Vocabulary::Remainder_IsValid(feature.murmur3().remainder()) ||
          feature.murmur3().remainder() == v1::Murmur3Vocabulary::REMAINDER_UNSPECIFIED) {
        return absl::InvalidArgumentError(
            absl::StrCat("id.murmur3.remainder: expected UNSIGNED, FLOOR or ABSOLUTE, got ",
                         v1::Murmur3Vocabulary::Remainder_Name(feature.murmur3().remainder())));
      }
      vocabulary->seed_ = feature.murmur3().seed();
      vocabulary->hashing_.remainder = feature.murmur3().remainder();
      status = vocabulary->ReadHash(feature.murmur3(), feature.type(), "id.murmur3");
      break;
    case v1::IdFeature::kFile:
      status = vocabulary->ReadFile(feature, files);
      break;
    case v1::IdFeature::VOCABULARY_NOT_SET:
      return absl::InvalidArgumentError("id: expected identity, farm_hash, murmur3 or file, got none");
  }
  if (!status.ok()) return status;
  return vocabulary;
}

absl::Status Vocabulary::SetRange(int64_t first_row, int64_t rows) {
  if (first_row + rows - 1 > kMaxRow) {
    return absl::InvalidArgumentError(
        absl::StrCat("id: expected rows of at most ", kMaxRow, ", got ", first_row + rows - 1));
  }
  first_row_ = static_cast<int32_t>(first_row);
  size_ = static_cast<uint64_t>(rows);
  max_row_ = std::max(max_row_, first_row + rows - 1);
  return absl::OkStatus();
}

absl::Status Vocabulary::ReadIdentity(const v1::IdFeature& feature) {
  if (feature.type() != v1::IdFeature::INT64) {
    return absl::InvalidArgumentError("id.identity: expected id.type INT64, got STRING");
  }
  if (!feature.identity().has_rows()) return Missing("id.identity.rows");
  if (feature.identity().rows() == 0) {
    return absl::InvalidArgumentError("id.identity.rows: expected at least 1, got 0");
  }
  return SetRange(0, feature.identity().rows());
}

template <typename HashVocabulary>
absl::Status Vocabulary::ReadHash(const HashVocabulary& hash, v1::IdFeature::Type type,
                                  const std::string& field) {
  if (!hash.has_buckets()) return Missing(field + ".buckets");
  if (!hash.has_first_row()) return Missing(field + ".first_row");
  if (hash.buckets() == 0) {
    return absl::InvalidArgumentError(field + ".buckets: expected at least 1, got 0");
  }
  const bool integers = type == v1::IdFeature::INT64;
  if (hash.input() != v1::TEXT && !(integers && hash.input() == v1::INT64_LE)) {
    return absl::InvalidArgumentError(absl::StrCat(field, ".input: expected TEXT",
                                                   integers ? " or INT64_LE" : " as id.type is STRING",
                                                   ", got ", v1::HashInput_Name(hash.input())));
  }
  hashing_.input = hash.input();
  if (absl::Status status = SetRange(hash.first_row(), hash.buckets()); !status.ok()) return status;

  if (hash.examples().empty()) {
    return absl::InvalidArgumentError(field + ".examples: expected at least one, got none");
  }
  for (const v1::HashExample& example : hash.examples()) {
    const bool right_type = integers ? example.has_integer() && example.integer() >= 0 : example.has_text();
    if (!right_type || !example.has_row()) {
      return absl::InvalidArgumentError(absl::StrCat(field, ".examples: expected ",
                                                     integers ? "an integer of at least 0" : "a text",
                                                     " and its row, got {", example.ShortDebugString(), "}"));
    }
    const int32_t row = HashRow(example, hashing_);
    if (row != static_cast<int64_t>(example.row())) {
      return absl::InvalidArgumentError(
          absl::StrCat(field, ".examples: expected {", example.ShortDebugString(), "}, got row ", row));
    }
  }
  for (const Remainder remainder : kRemainders) {
    if (kind_ != v1::IdFeature::kMurmur3 || !CanDiffer(remainder, hashing_.remainder, size_)) continue;
    absl::Status status = CheckExamplesTellApart(
        hash.examples(), {.input = hashing_.input, .remainder = remainder}, field,
        absl::StrCat("remainder ", v1::Murmur3Vocabulary::Remainder_Name(hashing_.remainder), " than by ",
                     v1::Murmur3Vocabulary::Remainder_Name(remainder)));
    if (!status.ok()) return status;
  }
  if (!integers || size_ == 1) return absl::OkStatus();
  const v1::HashInput input = hashing_.input == v1::TEXT ? v1::INT64_LE : v1::TEXT;
  return CheckExamplesTellApart(
      hash.examples(), {.input = input, .remainder = hashing_.remainder}, field,
      absl::StrCat("input ", v1::HashInput_Name(hashing_.input), " than by ", v1::HashInput_Name(input)));
}

template <typename Examples>
absl::Status Vocabulary::CheckExamplesTellApart(const Examples& examples, const Hashing& other,
                                                const std::string& field, const std::string& what) const {
  for (const v1::HashExample& example : examples) {
    if (HashRow(example, other) != HashRow(example, hashing_)) return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(field, ".examples: expected one that takes another row by ", what, ", got none"));
}

absl::Status Vocabulary::ReadFile(const v1::IdFeature& feature, const FileContents& files) {
  const std::string& name = feature.file().path();
  if (name.empty()) return Missing("id.file.path");
  if (name.find('/') != std::string::npos || name == "." || name == "..") {
    return absl::InvalidArgumentError(
        absl::StrCat("id.file.path: expected a file in the bundle folder, got \"", name, "\""));
  }
  if (!feature.file().has_first_row()) return Missing("id.file.first_row");
  const auto found = files.find(name);
  if (found == files.end()) {
    return absl::NotFoundError(
        absl::StrCat("id.file.path: expected a file of the bundle, got \"", name, "\", which it has not"));
  }
  const std::string_view file = found->second;
  const auto lines = std::count(file.begin(), file.end(), '\n') + 1;
  if (feature.type() == v1::IdFeature::STRING) {
    text_rows_ = TextIndex(lines, static_cast<int64_t>(file.size()));
  } else {
    integer_rows_ = IntegerIndex(lines);
  }

  int64_t line = 0;
  for (std::string_view rest = file; !rest.empty(); ++line) {
    const size_t end = rest.find('\n');
    const std::string_view token = rest.substr(0, end);
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    if (absl::Status status = AddToken(token, feature.type(), feature.file().first_row() + line);
        !status.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("vocabulary file \"", name, "\" line ", line + 1, ": ", status.message()));
    }
  }
  return SetRange(feature.file().first_row(), line);
}

absl::Status Vocabulary::AddToken(std::string_view token, v1::IdFeature::Type type, int64_t row) {
  if (row > kMaxRow) {
    return absl::InvalidArgumentError(absl::StrCat("expected a row of at most ", kMaxRow, ", got ", row));
  }
  // A file with line ends of another system would make every id unknown.
  if (token.ends_with('\r')) {
    return absl::InvalidArgumentError("expected lines that end in \"\\n\", got \"\\r\\n\"");
  }
  bool added = false;
  if (type == v1::IdFeature::STRING) {
    added = text_rows_.Add(token, static_cast<int32_t>(row));
  } else {
    int64_t id = 0;
    const auto [end, error] = std::from_chars(token.data(), token.data() + token.size(), id);
    if (error != std::errc() || end != token.data() + token.size() || id < 0 || std::to_string(id) != token) {
      return absl::InvalidArgumentError(
          absl::StrCat("expected the decimal digits of an id, got \"", std::string(token), "\""));
    }
    added = integer_rows_.Add(id, static_cast<int32_t>(row));
  }
  if (!added) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected each token once, got \"", std::string(token), "\" again"));
  }
  return absl::OkStatus();
}

// Those of a file that are unknown take the policy's row.
template <typename Index, typename Id>
void Vocabulary::FindInFile(const Index& index, absl::Span<const Id> ids, Found* found) const {
  constexpr size_t kBatch = 64;
  int32_t rows[kBatch];
  for (size_t begin = 0; begin < ids.size(); begin += kBatch) {
    const absl::Span<const Id> batch = ids.subspan(begin, kBatch);
    index.Find(batch, rows);
    for (size_t i = 0; i < batch.size(); ++i) {
      found[begin + i] = rows[i] >= 0 ? Found{rows[i], true} : Found{unknown_row_, false};
    }
  }
}

void Vocabulary::Find(absl::Span<const int64_t> ids, Found* found) const {
  switch (kind_) {
    case v1::IdFeature::kIdentity:
      for (size_t i = 0; i < ids.size(); ++i) {
        found[i] = static_cast<uint64_t>(ids[i]) < size_ ? Found{static_cast<int32_t>(ids[i]), true}
                                                         : Found{unknown_row_, false};
      }
      break;
    case v1::IdFeature::kFile:
      FindInFile(integer_rows_, ids, found);
      break;
    default:
      for (size_t i = 0; i < ids.size(); ++i) found[i] = {HashRow(ids[i], hashing_), true};
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0) found[i] = {negative_row_, false};
  }
}

void Vocabulary::Find(absl::Span<const std::string* const> ids, Found* found) const {
  if (kind_ == v1::IdFeature::kFile) return FindInFile(text_rows_, ids, found);
  for (size_t i = 0; i < ids.size(); ++i) found[i] = {HashRow(std::string_view(*ids[i]), hashing_), true};
}

int32_t Vocabulary::HashRow(const v1::HashExample& example, const Hashing& hashing) const {
  return example.has_integer() ? HashRow(example.integer(), hashing)
                               : HashRow(std::string_view(example.text()), hashing);
}

int32_t Vocabulary::HashRow(int64_t id, const Hashing& hashing) const {
  if (hashing.input == v1::INT64_LE) {
    char bytes[8];
    return HashRow(LittleEndian(static_cast<uint64_t>(id), bytes), hashing);
  }
  char digits[24];
  const char* end = std::to_chars(digits, digits + sizeof(digits), id).ptr;
  return HashRow(std::string_view(digits, static_cast<size_t>(end - digits)), hashing);
}

int32_t Vocabulary::HashRow(std::string_view bytes, const Hashing& hashing) const {
  const uint64_t bucket = kind_ == v1::IdFeature::kFarmHash
                              ? util::Fingerprint64(bytes.data(), bytes.size()) % size_
                              : BucketOf(MurmurHash3(bytes, seed_), hashing.remainder, size_);
  return static_cast<int32_t>(static_cast<uint64_t>(first_row_) + bucket);
}

}  // namespace dinghy
