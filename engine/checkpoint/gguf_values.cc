// Metadata values of a GGUF file. Parsing has checked their lengths, so that here only types can be
// wrong.

#include <utility>

#include "base/message.h"
#include "engine/checkpoint/gguf_file.h"
#include "engine/checkpoint/gguf_types.h"

namespace latentd {
namespace {

using namespace gguf;

// The integer of a scalar; nullopt when its type is no integer or it passes int64.
std::optional<int64_t> LoadInt(uint32_t type, const std::byte* bytes) {
  switch (type) {
    case kUint8:
      return Load<uint8_t>(bytes);
    case kInt8:
      return Load<int8_t>(bytes);
    case kUint16:
      return Load<uint16_t>(bytes);
    case kInt16:
      return Load<int16_t>(bytes);
    case kUint32:
      return Load<uint32_t>(bytes);
    case kInt32:
      return Load<int32_t>(bytes);
    case kInt64:
      return Load<int64_t>(bytes);
    case kUint64: {
      const uint64_t value = Load<uint64_t>(bytes);
      if (value > uint64_t{INT64_MAX}) return std::nullopt;
      return static_cast<int64_t>(value);
    }
    default:
      return std::nullopt;
  }
}

std::optional<double> LoadFloat(uint32_t type, const std::byte* bytes) {
  if (type == kFloat32) return Load<float>(bytes);
  if (type == kFloat64) return Load<double>(bytes);
  const std::optional<int64_t> integer = LoadInt(type, bytes);
  if (!integer.has_value()) return std::nullopt;
  return static_cast<double>(*integer);
}

}  // namespace

const GgufFile::Value* GgufFile::FindValue(std::string_view key) const {
  const auto it = values_.find(key);
  return it == values_.end() ? nullptr : &it->second;
}

absl::Status GgufFile::WrongType(std::string_view key, const Value& value,
                                 std::string_view wanted) const {
  std::string type = kValueTypes[value.type].name;
  if (value.type == kArray) type += Message(" of ", kValueTypes[value.element_type].name);
  return absl::InvalidArgumentError(
      Message(name_, ": ", key, " is a value of type ", type, ", not ", wanted));
}

absl::StatusOr<std::optional<int64_t>> GgufFile::Int(std::string_view key) const {
  const Value* value = FindValue(key);
  if (value == nullptr) return std::nullopt;
  const std::optional<int64_t> integer = LoadInt(value->type, value->payload.data());
  if (!integer.has_value()) return WrongType(key, *value, "an integer below 2^63");
  return integer;
}

absl::StatusOr<std::optional<double>> GgufFile::Float(std::string_view key) const {
  const Value* value = FindValue(key);
  if (value == nullptr) return std::nullopt;
  const std::optional<double> number = LoadFloat(value->type, value->payload.data());
  if (!number.has_value()) return WrongType(key, *value, "a number");
  return number;
}

absl::StatusOr<std::optional<bool>> GgufFile::Bool(std::string_view key) const {
  const Value* value = FindValue(key);
  if (value == nullptr) return std::nullopt;
  if (value->type != kBool) return WrongType(key, *value, "a bool");
  return value->payload[0] != std::byte{0};
}

absl::StatusOr<std::optional<std::string_view>> GgufFile::String(std::string_view key) const {
  const Value* value = FindValue(key);
  if (value == nullptr) return std::nullopt;
  if (value->type != kString) return WrongType(key, *value, "a string");
  return std::string_view(reinterpret_cast<const char*>(value->payload.data()) + 8,
                          value->payload.size() - 8);
}

absl::StatusOr<std::vector<std::string>> GgufFile::Strings(std::string_view key) const {
  const Value* value = FindValue(key);
  if (value == nullptr) return std::vector<std::string>();
  if (value->type != kArray || value->element_type != kString) {
    return WrongType(key, *value, "an array of strings");
  }
  std::vector<std::string> strings;
  strings.reserve(value->count);
  const std::byte* at = value->payload.data();
  for (uint64_t i = 0; i < value->count; ++i) {
    const uint64_t length = Load<uint64_t>(at);
    strings.emplace_back(reinterpret_cast<const char*>(at) + sizeof(length), length);
    at += sizeof(length) + length;
  }
  return strings;
}

absl::StatusOr<std::vector<float>> GgufFile::Floats(std::string_view key) const {
  const Value* value = FindValue(key);
  if (value == nullptr) return std::vector<float>();
  if (value->type != kArray ||
      (value->element_type != kFloat32 && value->element_type != kFloat64)) {
    return WrongType(key, *value, "an array of floats");
  }
  const bool wide = value->element_type == kFloat64;
  const std::byte* bytes = value->payload.data();
  std::vector<float> floats(value->count);
  for (float& number : floats) {
    number = wide ? static_cast<float>(Load<double>(bytes)) : Load<float>(bytes);
    bytes += wide ? sizeof(double) : sizeof(float);
  }
  return floats;
}

absl::StatusOr<std::vector<int32_t>> GgufFile::Ints(std::string_view key) const {
  const Value* value = FindValue(key);
  if (value == nullptr) return std::vector<int32_t>();
  if (value->type != kArray || kValueTypes[value->element_type].bytes == 0) {
    return WrongType(key, *value, "an array of integers");
  }
  const int bytes = kValueTypes[value->element_type].bytes;
  std::vector<int32_t> integers(value->count);
  for (uint64_t i = 0; i < value->count; ++i) {
    const std::optional<int64_t> integer =
        LoadInt(value->element_type, value->payload.data() + i * bytes);
    if (!integer.has_value() || *integer < INT32_MIN || *integer > INT32_MAX) {
      return WrongType(key, *value, "an array of 32-bit integers");
    }
    integers[i] = static_cast<int32_t>(*integer);
  }
  return integers;
}

}  // namespace latentd
