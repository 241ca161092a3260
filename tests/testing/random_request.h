// Requests of random ids and numbers for any bundle whose ids are integers of an identity vocabulary, or
// texts.
//
//   FillRandomRequest(*loaded->bundle, {.candidates = 20, .behaviors = 50, .seed = 7}, request);
//
// Stateless, so thread-safe.
#ifndef DINGHY_TESTS_TESTING_RANDOM_REQUEST_H_
#define DINGHY_TESTS_TESTING_RANDOM_REQUEST_H_

#include <cstdint>

#include "model/bundle.h"
#include "proto/scoring.pb.h"

namespace dinghy {

struct RandomRequestOptions {
  int candidates = 1;
  int behaviors = 0;  // of each sequence, inline
  uint64_t seed = 1;
};

// Replaces `request`, and keeps its memory. Columns that come from the item catalog are left to it; bags hold
// one id. The same arguments give the same request.
void FillRandomRequest(const Bundle& bundle, const RandomRequestOptions& options, v1::ScoreRequest& request);

}  // namespace dinghy

#endif  // DINGHY_TESTS_TESTING_RANDOM_REQUEST_H_
