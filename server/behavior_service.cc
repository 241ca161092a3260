#include "server/behavior_service.h"

#include <utility>
#include <vector>

#include "server/grpc_status.h"

namespace dinghy {
namespace {

grpc::Status NoStore() {
  return {grpc::StatusCode::FAILED_PRECONDITION, "the server has no behavior store (--store)"};
}

grpc::Status NoUser() { return {grpc::StatusCode::INVALID_ARGUMENT, "user_id: expected a user, got none"}; }

}  // namespace

grpc::Status BehaviorService::Append(grpc::ServerContext*, const v1::AppendRequest* request,
                                     v1::AppendResponse* response) {
  if (store_ == nullptr) return NoStore();
  const std::vector<v1::Event> events(request->events().begin(), request->events().end());
  const absl::StatusOr<AppendResult> result = store_->Append(events);
  if (!result.ok()) return ToGrpc(result.status());
  response->set_appended(result->appended);
  response->set_duplicates(result->duplicates);
  return grpc::Status::OK;
}

grpc::Status BehaviorService::Get(grpc::ServerContext*, const v1::GetRequest* request,
                                  v1::GetResponse* response) {
  if (store_ == nullptr) return NoStore();
  if (request->user_id().empty()) return NoUser();
  return ToGrpc(store_->Fetch(request->user_id(), request->query(), *response->mutable_events()));
}

grpc::Status BehaviorService::DeleteUser(grpc::ServerContext*, const v1::DeleteUserRequest* request,
                                         v1::DeleteUserResponse* response) {
  if (store_ == nullptr) return NoStore();
  if (request->user_id().empty()) return NoUser();
  const absl::StatusOr<int64_t> deleted = store_->DeleteUser(request->user_id());
  if (!deleted.ok()) return ToGrpc(deleted.status());
  response->set_deleted(*deleted);
  return grpc::Status::OK;
}

}  // namespace dinghy
