// What a model computes of a user and the histories alone. Any range of candidates can be scored with it, by
// any thread, in this request or a later one of the same user and histories.
//
//   const UserState user = model.ScoreUser(batch, options, scratch);   // lives in scratch
//   const UserState kept = model.Keep(user);                           // lives on its own
//
// Const, so thread-safe while what it lives in is.
#ifndef DINGHY_MODEL_USER_STATE_H_
#define DINGHY_MODEL_USER_STATE_H_

#include <cstddef>
#include <cstdlib>
#include <memory>

#include "absl/types/span.h"

namespace dinghy {

struct UserPart;
struct Value;

class UserState {
 public:
  // Of memory of its own.
  size_t bytes() const { return bytes_; }

 private:
  friend class Model;
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };

  absl::Span<const Value> values_;    // features, then layers; of candidate level: empty
  absl::Span<const UserPart> parts_;  // of each layer
  std::unique_ptr<float[], Free> memory_;
  size_t bytes_ = 0;
};

}  // namespace dinghy

#endif  // DINGHY_MODEL_USER_STATE_H_
