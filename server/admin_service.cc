#include "server/admin_service.h"

#include <vector>

#include "server/grpc_status.h"

namespace dinghy {

grpc::Status AdminService::GetModelStatus(grpc::ServerContext*, const v1::GetModelStatusRequest* request,
                                          v1::GetModelStatusResponse* response) {
  return Answer(request->model(), *response);
}

grpc::Status AdminService::Reload(grpc::ServerContext*, const v1::ReloadRequest*,
                                  v1::GetModelStatusResponse* response) {
  registry_.Reload();
  changed_();
  return Answer("", *response);
}

grpc::Status AdminService::Pin(grpc::ServerContext*, const v1::PinRequest* request,
                               v1::GetModelStatusResponse* response) {
  const absl::Status status = registry_.Pin(request->model(), request->label(), request->version());
  if (!status.ok()) return ToGrpc(status);
  changed_();
  return Answer(request->model(), *response);
}

grpc::Status AdminService::Rollback(grpc::ServerContext*, const v1::RollbackRequest* request,
                                    v1::GetModelStatusResponse* response) {
  const absl::Status status = registry_.Rollback(request->model());
  if (!status.ok()) return ToGrpc(status);
  changed_();
  return Answer(request->model(), *response);
}

grpc::Status AdminService::Answer(const std::string& model, v1::GetModelStatusResponse& response) const {
  const absl::StatusOr<std::vector<v1::ModelVersionStatus>> versions = registry_.Status(model);
  if (!versions.ok()) return ToGrpc(versions.status());
  response.mutable_versions()->Add(versions->begin(), versions->end());
  return grpc::Status::OK;
}

}  // namespace dinghy
