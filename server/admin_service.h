// AdminService on a ModelRegistry. Thread-safe.
#ifndef DINGHY_SERVER_ADMIN_SERVICE_H_
#define DINGHY_SERVER_ADMIN_SERVICE_H_

#include <functional>
#include <string>
#include <utility>

#include "proto/admin.grpc.pb.h"
#include "server/model_registry.h"

namespace dinghy {

class AdminService : public v1::AdminService::Service {
 public:
  // `changed` is called after every call that may have changed versions or labels. The registry must outlive
  // the service.
  AdminService(ModelRegistry& registry, std::function<void()> changed)
      : registry_(registry), changed_(std::move(changed)) {}

  grpc::Status GetModelStatus(grpc::ServerContext* context, const v1::GetModelStatusRequest* request,
                              v1::GetModelStatusResponse* response) override;
  grpc::Status Reload(grpc::ServerContext* context, const v1::ReloadRequest* request,
                      v1::GetModelStatusResponse* response) override;
  grpc::Status Pin(grpc::ServerContext* context, const v1::PinRequest* request,
                   v1::GetModelStatusResponse* response) override;
  grpc::Status Rollback(grpc::ServerContext* context, const v1::RollbackRequest* request,
                        v1::GetModelStatusResponse* response) override;

 private:
  grpc::Status Answer(const std::string& model, v1::GetModelStatusResponse& response) const;

  ModelRegistry& registry_;
  const std::function<void()> changed_;
};

}  // namespace dinghy

#endif  // DINGHY_SERVER_ADMIN_SERVICE_H_
