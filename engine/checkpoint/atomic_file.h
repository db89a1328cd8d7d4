#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace latentd {

// A file that appears under its name whole or not at all: written under a temporary name in the
// same folder, synced, then renamed. Unless published, nothing of it is left when the object goes.
// One thread.
class AtomicFile {
 public:
  // The errno of the system as a status that names the path.
  static absl::StatusOr<std::unique_ptr<AtomicFile>> Create(const std::string& path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  absl::Status Write(const void* data, size_t bytes);
  absl::Status Write(std::string_view text) { return Write(text.data(), text.size()); }

  // Makes what was written the file at the path, in place of an older one. Called once, last.
  absl::Status Publish();

 private:
  explicit AtomicFile(const std::string& path);
  absl::Status SyncFolder() const;
  absl::Status Failed(const char* what) const;

  const std::string path_;
  const std::string temporary_;
  int fd_;
  bool has_temporary_;  // a file of that name is ours to remove
};

}  // namespace latentd
