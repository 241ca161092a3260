// SHA-256, incrementally.
//
//   Sha256 hash;
//   hash.Update(bytes);
//   std::string digest = hash.Hex();   // 64 lower-case hex digits
//
// Thread-compatible.
#ifndef DINGHY_MODEL_SHA256_H_
#define DINGHY_MODEL_SHA256_H_

#include <memory>
#include <string>

#include "absl/strings/string_view.h"

struct evp_md_ctx_st;  // OpenSSL's, so that its headers stay out of ours

namespace dinghy {

class Sha256 {
 public:
  Sha256();
  void Update(absl::string_view bytes);
  // The digest of all bytes so far. Ends the hash: no Update after it.
  std::string Hex();

 private:
  struct Free {
    void operator()(evp_md_ctx_st* context) const;
  };
  std::unique_ptr<evp_md_ctx_st, Free> context_;
};

}  // namespace dinghy

#endif  // DINGHY_MODEL_SHA256_H_
