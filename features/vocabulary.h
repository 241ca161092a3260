// The vocabulary of an id feature: which row of the embedding table an id takes.
//
//   ASSIGN_OR_RETURN(auto vocabulary, Vocabulary::Create(feature.id(), files));
//   Vocabulary::Found found[2];
//   vocabulary->Find({17, 18}, found);         // found[0].row, found[0].known
//
// Thread-safe: const after Create.
#ifndef DINGHY_FEATURES_VOCABULARY_H_
#define DINGHY_FEATURES_VOCABULARY_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "features/file_contents.h"
#include "features/row_index.h"
#include "proto/bundle.pb.h"

namespace dinghy {

// MurmurHash3_x86_32 of `bytes`: Austin Appleby's hash, published into the public domain.
uint32_t MurmurHash3(std::string_view bytes, uint32_t seed);

class Vocabulary {
 public:
  // What became of an id. A row of -1: the policy says REFUSE.
  struct Found {
    int32_t row;
    bool known;  // false: the row is the one of a policy
  };

  // Checks every field of `feature` and finds its vocabulary file in `files`. The examples of a hash
  // must hold, and one of them must take another row under each other reading of `remainder` and `input`,
  // where there is such an id: a manifest that says them wrongly is found out. Errors: INVALID_ARGUMENT
  // naming the field or the line, or the hash example that does not hold; NOT_FOUND naming the file.
  static absl::StatusOr<std::unique_ptr<Vocabulary>> Create(const v1::IdFeature& feature,
                                                            const FileContents& files);

  // found[i] is what became of ids[i]; many at a time are found faster than each alone. For features of type
  // INT64.
  void Find(absl::Span<const int64_t> ids, Found* found) const;
  // For features of type STRING; the pointers as those of a repeated field of texts.
  void Find(absl::Span<const std::string* const> ids, Found* found) const;

  // The highest row that Find can give, pad and OOV rows included where the feature has them.
  int64_t max_row() const { return max_row_; }

 private:
  Vocabulary() = default;

  absl::Status ReadIdentity(const v1::IdFeature& feature);
  template <typename HashVocabulary>
  absl::Status ReadHash(const HashVocabulary& hash, v1::IdFeature::Type type, const std::string& field);
  absl::Status ReadFile(const v1::IdFeature& feature, const FileContents& files);
  absl::Status AddToken(std::string_view token, v1::IdFeature::Type type, int64_t row);
  template <typename Index, typename Id>
  void FindInFile(const Index& index, absl::Span<const Id> ids, Found* found) const;
  absl::Status SetRange(int64_t first_row, int64_t rows);

  // How a hash becomes a row.
  struct Hashing {
    v1::HashInput input = v1::HASH_INPUT_UNSPECIFIED;
    v1::Murmur3Vocabulary::Remainder remainder = v1::Murmur3Vocabulary::UNSIGNED;
  };
  template <typename Examples>
  absl::Status CheckExamplesTellApart(const Examples& examples, const Hashing& other,
                                      const std::string& field, const std::string& what) const;
  int32_t HashRow(std::string_view bytes, const Hashing& hashing) const;
  int32_t HashRow(int64_t id, const Hashing& hashing) const;
  int32_t HashRow(const v1::HashExample& example, const Hashing& hashing) const;

  v1::IdFeature::VocabularyCase kind_ = v1::IdFeature::VOCABULARY_NOT_SET;
  int32_t unknown_row_ = -1;
  int32_t negative_row_ = -1;
  int64_t max_row_ = 0;

  uint64_t size_ = 0;  // rows of an identity vocabulary, buckets of a hash
  int32_t first_row_ = 0;
  uint32_t seed_ = 0;
  Hashing hashing_;

  TextIndex text_rows_;
  IntegerIndex integer_rows_;
};

}  // namespace dinghy

#endif  // DINGHY_FEATURES_VOCABULARY_H_
