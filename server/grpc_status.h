// Status between Abseil and gRPC: the codes are the same numbers.
#ifndef DINGHY_SERVER_GRPC_STATUS_H_
#define DINGHY_SERVER_GRPC_STATUS_H_

#include <grpcpp/support/status.h>

#include <string>

#include "absl/status/status.h"

namespace dinghy {

inline grpc::Status ToGrpc(const absl::Status& status) {
  return {static_cast<grpc::StatusCode>(status.code()), std::string(status.message())};
}

inline absl::Status FromGrpc(const grpc::Status& status) {
  return {static_cast<absl::StatusCode>(status.error_code()), status.error_message()};
}

}  // namespace dinghy

#endif  // DINGHY_SERVER_GRPC_STATUS_H_
