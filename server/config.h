// The server's configuration: read, completed with defaults, checked.
//
//   ASSIGN_OR_RETURN(v1::ServerConfig config, ReadServerConfig("dinghy.txtpb"));
//   config.set_listen("0.0.0.0:8500");
//   ASSIGN_OR_RETURN(config, CompleteConfig(config));
#ifndef DINGHY_SERVER_CONFIG_H_
#define DINGHY_SERVER_CONFIG_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "features/behavior/store.h"
#include "proto/server_config.pb.h"

namespace dinghy {

// Reads protobuf text. NOT_FOUND naming the file; INVALID_ARGUMENT naming file, line and column.
absl::StatusOr<v1::ServerConfig> ReadServerConfig(const std::string& path);

// "memory" or "rocksdb:PATH". INVALID_ARGUMENT for anything else.
absl::StatusOr<v1::StoreConfig> ParseStore(const std::string& text);

// `config` with every default filled in. INVALID_ARGUMENT naming a field that is missing or out of range.
absl::StatusOr<v1::ServerConfig> CompleteConfig(v1::ServerConfig config);

// The store that `config` names; null where it names none. Errors as OpenRocksDbStore.
absl::StatusOr<std::unique_ptr<BehaviorStore>> OpenStore(const v1::StoreConfig& config);

}  // namespace dinghy

#endif  // DINGHY_SERVER_CONFIG_H_
