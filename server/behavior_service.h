// BehaviorService on a BehaviorStore. Thread-safe.
#ifndef DINGHY_SERVER_BEHAVIOR_SERVICE_H_
#define DINGHY_SERVER_BEHAVIOR_SERVICE_H_

#include "features/behavior/store.h"
#include "proto/behavior.grpc.pb.h"

namespace dinghy {

class BehaviorService : public v1::BehaviorService::Service {
 public:
  // `store` may be null: every call is FAILED_PRECONDITION then. It must outlive the service.
  explicit BehaviorService(BehaviorStore* store) : store_(store) {}

  grpc::Status Append(grpc::ServerContext* context, const v1::AppendRequest* request,
                      v1::AppendResponse* response) override;
  grpc::Status Get(grpc::ServerContext* context, const v1::GetRequest* request,
                   v1::GetResponse* response) override;
  grpc::Status DeleteUser(grpc::ServerContext* context, const v1::DeleteUserRequest* request,
                          v1::DeleteUserResponse* response) override;

 private:
  BehaviorStore* const store_;
};

}  // namespace dinghy

#endif  // DINGHY_SERVER_BEHAVIOR_SERVICE_H_
