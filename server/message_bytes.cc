#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/unknown_field_set.h"
#include "grpcpp/impl/codegen/proto_utils.h"
#include "grpcpp/support/proto_buffer_reader.h"
#include "server/convert.h"
#include "server/utf8.h"

namespace latentd {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::UnknownField;
using google::protobuf::UnknownFieldSet;

constexpr int kMaxDepth = 16;  // of messages in messages, where errors are looked for

// "text, byte 7": the first string field of `fields` that is not UTF-8; empty when there is none.
std::string FindBadString(const UnknownFieldSet& fields, const Descriptor& type,
                          const std::string& path, int depth) {
  for (int i = 0; i < fields.field_count(); ++i) {
    const UnknownField& field = fields.field(i);
    const FieldDescriptor* known = type.FindFieldByNumber(field.number());
    if (known == nullptr || field.type() != UnknownField::TYPE_LENGTH_DELIMITED) continue;
    const std::string name = absl::StrCat(path, known->name());
    if (known->type() == FieldDescriptor::TYPE_STRING) {
      const size_t bad = FirstBadUtf8(field.length_delimited());
      if (bad < field.length_delimited().size()) return absl::StrCat(name, ", byte ", bad);
    } else if (known->type() == FieldDescriptor::TYPE_MESSAGE && depth < kMaxDepth) {
      UnknownFieldSet inner;
      if (!inner.ParseFromString(field.length_delimited())) continue;
      std::string found = FindBadString(inner, *known->message_type(), name + ".", depth + 1);
      if (!found.empty()) return found;
    }
  }
  return "";
}

}  // namespace

absl::Status ParseMessage(const grpc::ByteBuffer& bytes, google::protobuf::Message* message) {
  const Descriptor& type = *message->GetDescriptor();
  {
    grpc::ByteBuffer copy = bytes;  // shares the slices; the reader wants its own buffer
    grpc::ProtoBufferReader reader(&copy);
    if (reader.status().ok() && message->ParseFromZeroCopyStream(&reader)) return absl::OkStatus();
  }
  grpc::ByteBuffer copy = bytes;
  grpc::ProtoBufferReader reader(&copy);
  google::protobuf::io::CodedInputStream stream(&reader);
  UnknownFieldSet fields;
  if (reader.status().ok() && fields.MergeFromCodedStream(&stream)) {
    const std::string bad = FindBadString(fields, type, "", 0);
    if (!bad.empty())
      return absl::InvalidArgumentError(absl::StrCat("a string is not UTF-8: ", bad));
  }
  return absl::InvalidArgumentError(absl::StrCat("the request's bytes are no ", type.full_name()));
}

grpc::ByteBuffer SerializeMessage(const google::protobuf::Message& message) {
  const size_t size = message.ByteSizeLong();
  grpc::Slice slice(size);
  message.SerializeWithCachedSizesToArray(const_cast<uint8_t*>(slice.begin()));
  return grpc::ByteBuffer(&slice, 1);
}

}  // namespace latentd
