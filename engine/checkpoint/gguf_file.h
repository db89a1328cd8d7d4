#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/checkpoint/stored_tensor.h"

namespace latentd {

// A GGUF file of version 2 or 3, little endian. Every length, count, type, offset and shape in it
// has been checked against the file's size, so that reading a value or a tensor cannot fail later.
// Immutable, thread-safe.
//
//   file   = "GGUF" | u32 version | u64 num_tensors | u64 num_values | value... | tensor...
//            | padding | tensor data
//   value  = string key | u32 type | payload
//   tensor = string name | u32 num_dims | u64 dims (innermost first) | u32 type
//            | u64 offset in the tensor data
//   string = u64 length | bytes
//   array  = u32 element type | u64 count | elements      (a payload; arrays may nest, 4 deep)
class GgufFile {
 public:
  // `name` stands for the file in messages. `storage` keeps `bytes` alive.
  static absl::StatusOr<std::unique_ptr<GgufFile>> Parse(absl::Span<const std::byte> bytes,
                                                         std::shared_ptr<const void> storage,
                                                         std::string name);
  static absl::StatusOr<std::unique_ptr<GgufFile>> Open(const std::string& path);

  const std::string& name() const { return name_; }
  const StoredTensors& tensors() const { return tensors_; }

  bool Has(std::string_view key) const { return FindValue(key) != nullptr; }
  // The metadata value of a key; nullopt when the key is absent, INVALID_ARGUMENT naming the key
  // when its type is another. An integer may be stored with any width and sign; Float also takes
  // integers; Bool takes bool alone.
  // An absent array is an empty one.
  absl::StatusOr<std::optional<int64_t>> Int(std::string_view key) const;
  absl::StatusOr<std::optional<double>> Float(std::string_view key) const;
  absl::StatusOr<std::optional<bool>> Bool(std::string_view key) const;
  absl::StatusOr<std::optional<std::string_view>> String(std::string_view key) const;
  absl::StatusOr<std::vector<std::string>> Strings(std::string_view key) const;
  absl::StatusOr<std::vector<float>> Floats(std::string_view key) const;
  absl::StatusOr<std::vector<int32_t>> Ints(std::string_view key) const;

 private:
  struct Value {
    uint32_t type = 0;
    uint32_t element_type = 0;  // arrays
    uint64_t count = 1;         // elements of an array
    absl::Span<const std::byte> payload;
  };
  class Cursor;

  GgufFile() = default;
  absl::Status ReadValues(Cursor& cursor, uint64_t count);
  absl::Status ReadTensors(Cursor& cursor, uint64_t count);
  absl::Status CheckNoOverlap() const;
  const Value* FindValue(std::string_view key) const;
  absl::Status WrongType(std::string_view key, const Value& value, std::string_view wanted) const;

  std::string name_;
  std::shared_ptr<const void> storage_;
  std::map<std::string_view, Value> values_;  // views into storage_
  StoredTensors tensors_;
};

}  // namespace latentd
