#pragma once

#include "latentd/v1/generation.grpc.pb.h"
#include "server/front_end.h"

namespace latentd {

// latentd.v1.Generation. Its methods run on gRPC's threads and never block: what takes time is a
// text worker's. Requests with strings arrive as bytes, so that broken UTF-8 gets an answer that
// names the field.
class GenerationService final
    : public v1::Generation::WithRawCallbackMethod_Generate<
          v1::Generation::WithRawCallbackMethod_Tokenize<
              v1::Generation::WithCallbackMethod_Detokenize<
                  v1::Generation::WithCallbackMethod_GetModel<
                      v1::Generation::WithCallbackMethod_GetStats<v1::Generation::Service>>>>> {
 public:
  // `front_end` is borrowed.
  explicit GenerationService(FrontEnd* front_end) : front_end_(front_end) {}

  grpc::ServerWriteReactor<grpc::ByteBuffer>* Generate(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* request) override;
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* context,
                                       const v1::DetokenizeRequest* request,
                                       v1::DetokenizeResponse* response) override;
  grpc::ServerUnaryReactor* GetModel(grpc::CallbackServerContext* context,
                                     const v1::GetModelRequest* request,
                                     v1::GetModelResponse* response) override;
  grpc::ServerUnaryReactor* GetStats(grpc::CallbackServerContext* context,
                                     const v1::GetStatsRequest* request,
                                     v1::GetStatsResponse* response) override;

 private:
  FrontEnd* const front_end_;
};

}  // namespace latentd
