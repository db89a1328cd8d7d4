#include "engine/checkpoint/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "base/message.h"
#include "base/status_macros.h"

namespace latentd {

absl::StatusOr<std::unique_ptr<AtomicFile>> AtomicFile::Create(const std::string& path) {
  std::unique_ptr<AtomicFile> file(new AtomicFile(path));
  if (file->fd_ < 0) return file->Failed("create");
  return file;
}

AtomicFile::AtomicFile(const std::string& path)
    : path_(path),
      temporary_(Message(path, ".tmp.", getpid())),
      fd_(open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)),
      has_temporary_(fd_ >= 0) {}

AtomicFile::~AtomicFile() {
  if (fd_ >= 0) close(fd_);
  if (has_temporary_) unlink(temporary_.c_str());
}

absl::Status AtomicFile::Write(const void* data, size_t bytes) {
  const char* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = write(fd_, at, bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return Failed("write");
    at += written;
    bytes -= static_cast<size_t>(written);
  }
  return absl::OkStatus();
}

absl::Status AtomicFile::Publish() {
  if (fsync(fd_) != 0) return Failed("sync");
  const int result = close(fd_);
  fd_ = -1;
  if (result != 0) return Failed("close");
  if (rename(temporary_.c_str(), path_.c_str()) != 0) return Failed("rename a file to");
  has_temporary_ = false;
  return SyncFolder();
}

// The new name itself must survive a crash.
absl::Status AtomicFile::SyncFolder() const {
  const size_t slash = path_.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path_.substr(0, slash + 1);
  const int fd = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return Failed("open the folder of");
  const int result = fsync(fd);
  absl::Status status =
      result == 0 || errno == EINVAL ? absl::OkStatus() : Failed("sync the folder of");
  close(fd);
  return status;
}

absl::Status AtomicFile::Failed(const char* what) const {
  return absl::ErrnoToStatus(errno, Message("cannot ", what, " ", path_));
}

}  // namespace latentd
