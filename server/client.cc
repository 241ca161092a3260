#include "server/client.h"

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/grpc_status.h"

namespace dinghy {

absl::StatusOr<std::shared_ptr<grpc::Channel>> Connect(const std::string& address, absl::Duration timeout) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  auto channel = grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
  if (!channel->WaitForConnected(absl::ToChronoTime(absl::Now() + timeout))) {
    return absl::UnavailableError(absl::StrCat("no server answers on ", address));
  }
  return channel;
}

absl::Status CallError(const grpc::Status& status) {
  const absl::Status plain = FromGrpc(status);
  return {plain.code(), absl::StrCat(absl::StatusCodeToString(plain.code()), ": ", plain.message())};
}

}  // namespace dinghy
