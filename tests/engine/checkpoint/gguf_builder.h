#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "absl/types/span.h"

namespace latentd {

// Writes GGUF files, right and wrong ones: nothing is checked.
class GgufBuilder {
 public:
  explicit GgufBuilder(uint32_t version = 3) : version_(version) {}

  GgufBuilder& String(std::string_view key, std::string_view value) {
    Key(key, 8);
    AppendString(values_, value);
    return *this;
  }
  GgufBuilder& U32(std::string_view key, uint32_t value) { return Scalar(key, 4, value); }
  GgufBuilder& F32(std::string_view key, float value) { return Scalar(key, 6, value); }
  GgufBuilder& Bool(std::string_view key, bool value) {
    return Scalar(key, 7, static_cast<uint8_t>(value));
  }
  template <typename T>
  GgufBuilder& Scalar(std::string_view key, uint32_t type, T value) {
    Key(key, type);
    Append(values_, value);
    return *this;
  }
  GgufBuilder& Strings(std::string_view key, const std::vector<std::string>& strings) {
    Array(key, 8, strings.size());
    for (const std::string& text : strings) AppendString(values_, text);
    return *this;
  }
  template <typename T>
  GgufBuilder& Numbers(std::string_view key, uint32_t type, const std::vector<T>& numbers) {
    Array(key, type, numbers.size());
    for (const T number : numbers) Append(values_, number);
    return *this;
  }
  // The head of an array; its elements follow by Raw.
  GgufBuilder& Array(std::string_view key, uint32_t type, uint64_t count) {
    Key(key, 9);
    Append(values_, type);
    Append(values_, count);
    return *this;
  }
  template <typename T>
  GgufBuilder& Raw(T value) {
    Append(values_, value);
    return *this;
  }

  // `dims` innermost first, as the format has them. Offsets are given, or follow each other at
  // multiples of 32.
  GgufBuilder& Tensor(std::string_view name, const std::vector<uint64_t>& dims, uint32_t type,
                      absl::Span<const std::byte> data) {
    data_.resize((data_.size() + 31) / 32 * 32);
    TensorAt(name, dims, type, data_.size());
    data_.insert(data_.end(), data.begin(), data.end());
    return *this;
  }
  GgufBuilder& Floats(std::string_view name, const std::vector<uint64_t>& dims,
                      const std::vector<float>& values) {
    return Tensor(name, dims, 0,
                  {reinterpret_cast<const std::byte*>(values.data()), values.size() * 4});
  }
  GgufBuilder& TensorAt(std::string_view name, const std::vector<uint64_t>& dims, uint32_t type,
                        uint64_t offset) {
    ++num_tensors_;
    AppendString(tensors_, name);
    Append(tensors_, static_cast<uint32_t>(dims.size()));
    for (const uint64_t dim : dims) Append(tensors_, dim);
    Append(tensors_, type);
    Append(tensors_, offset);
    return *this;
  }
  GgufBuilder& Data(size_t bytes) {
    data_.resize(bytes);
    return *this;
  }

  std::vector<std::byte> Build() const { return BuildWithCounts(num_tensors_, num_values_); }
  std::vector<std::byte> BuildWithCounts(uint64_t num_tensors, uint64_t num_values) const {
    std::vector<std::byte> file;
    Append(file, uint32_t{0x46554747});
    Append(file, version_);
    Append(file, num_tensors);
    Append(file, num_values);
    file.insert(file.end(), values_.begin(), values_.end());
    file.insert(file.end(), tensors_.begin(), tensors_.end());
    if (num_tensors_ > 0) file.resize((file.size() + 31) / 32 * 32);
    file.insert(file.end(), data_.begin(), data_.end());
    return file;
  }

 private:
  template <typename T>
  static void Append(std::vector<std::byte>& out, T value) {
    const size_t at = out.size();
    out.resize(at + sizeof(value));
    std::memcpy(out.data() + at, &value, sizeof(value));
  }
  static void AppendString(std::vector<std::byte>& out, std::string_view text) {
    Append(out, static_cast<uint64_t>(text.size()));
    for (const char c : text) out.push_back(static_cast<std::byte>(c));
  }
  void Key(std::string_view key, uint32_t type) {
    ++num_values_;
    AppendString(values_, key);
    Append(values_, type);
  }

  const uint32_t version_;
  uint64_t num_tensors_ = 0;
  uint64_t num_values_ = 0;
  std::vector<std::byte> values_, tensors_, data_;
};

}  // namespace latentd
