// A connection to a server, for the commands.
//
//   ASSIGN_OR_RETURN(auto channel, Connect("127.0.0.1:8500"));
#ifndef DINGHY_SERVER_CLIENT_H_
#define DINGHY_SERVER_CLIENT_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace dinghy {

// Waits until the server answers. UNAVAILABLE: `no server answers on 127.0.0.1:8500`.
absl::StatusOr<std::shared_ptr<grpc::Channel>> Connect(const std::string& address,
                                                       absl::Duration timeout = absl::Seconds(5));

// The status of a call, with its code in front of the message, as `INVALID_ARGUMENT: user_id is empty`.
absl::Status CallError(const grpc::Status& status);

}  // namespace dinghy

#endif  // DINGHY_SERVER_CLIENT_H_
