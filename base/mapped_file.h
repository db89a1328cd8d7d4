#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace latentd {

// A regular file mapped read-only for the lifetime of the object. Thread-safe.
class MappedFile {
 public:
  // NOT_FOUND, PERMISSION_DENIED or INVALID_ARGUMENT (not a regular file), each naming `path`.
  static absl::StatusOr<std::shared_ptr<const MappedFile>> Open(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  absl::Span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  MappedFile(std::string path, const std::byte* data, size_t size)
      : path_(std::move(path)), data_(data), size_(size) {}

  const std::string path_;
  const std::byte* const data_;  // null when size_ is 0
  const size_t size_;
};

}  // namespace latentd
