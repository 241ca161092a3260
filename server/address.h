// Addresses to listen on, host:port.
#ifndef DINGHY_SERVER_ADDRESS_H_
#define DINGHY_SERVER_ADDRESS_H_

#include <string>

#include "absl/status/status.h"

namespace dinghy {

// OK if this process could listen on `address` now, else `cannot listen on 127.0.0.1:8500: Address already in
// use` (UNAVAILABLE), or INVALID_ARGUMENT if it is not host:port. The libraries that listen do not say why
// they fail.
absl::Status CheckListen(const std::string& address);

}  // namespace dinghy

#endif  // DINGHY_SERVER_ADDRESS_H_
