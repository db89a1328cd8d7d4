#include "engine/checkpoint/safetensors_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "absl/types/span.h"
#include "base/message.h"
#include "base/status_macros.h"

namespace latentd {
namespace {

using Json = nlohmann::json;

// A file that disappears unless it is published under its final name.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& path)
      : path_(path), temporary_(Message(path, ".tmp.", getpid())) {}
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile() {
    if (fd_ >= 0) close(fd_);
    if (created_) unlink(temporary_.c_str());
  }

  absl::Status Create() {
    fd_ = open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd_ < 0) return Failed("create");
    created_ = true;
    return absl::OkStatus();
  }
  absl::Status Write(const void* data, size_t bytes) {
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
  absl::Status Publish() {
    if (fsync(fd_) != 0) return Failed("sync");
    const int result = close(fd_);
    fd_ = -1;
    if (result != 0) return Failed("close");
    if (rename(temporary_.c_str(), path_.c_str()) != 0) return Failed("rename");
    created_ = false;
    return SyncFolder();
  }

 private:
  // The new name itself must survive a crash.
  absl::Status SyncFolder() const {
    const size_t slash = path_.rfind('/');
    const std::string folder = slash == std::string::npos ? "." : path_.substr(0, slash + 1);
    const int fd = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return Failed("open the folder of");
    const int result = fsync(fd);
    close(fd);
    return result == 0 || errno == EINVAL ? absl::OkStatus() : Failed("sync the folder of");
  }
  absl::Status Failed(const char* what) const {
    return absl::ErrnoToStatus(errno, Message("cannot ", what, " ", created_ ? temporary_ : path_));
  }

  const std::string path_;
  const std::string temporary_;
  int fd_ = -1;
  bool created_ = false;
};

const char* TypeName(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "F32";
    case DType::kF16:
      return "F16";
    case DType::kBF16:
      return "BF16";
    default:
      return nullptr;
  }
}

}  // namespace

absl::Status WriteSafetensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                              const std::map<std::string, std::string>& metadata) {
  Json header = Json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  int64_t offset = 0;
  for (const NamedTensor& tensor : tensors) {
    const TensorView& view = tensor.view;
    const char* type = TypeName(view.dtype);
    if (type == nullptr) {
      return absl::InvalidArgumentError(Message("tensor ", tensor.name, " has type ",
                                                Info(view.dtype).name,
                                                ", a safetensors file holds F32, F16 and BF16"));
    }
    if (header.contains(tensor.name)) {
      return absl::InvalidArgumentError(Message("the tensor ", tensor.name, " occurs twice"));
    }
    Json shape = Json::array({view.rows, view.cols});
    if (tensor.is_vector) shape = Json::array({view.rows * view.cols});
    header[tensor.name] = {
        {"dtype", type}, {"shape", shape}, {"data_offsets", {offset, offset + view.bytes()}}};
    offset += view.bytes();
  }
  // Data that begins at a multiple of 8 can be used in place. Strings that are no UTF-8 are
  // replaced, not thrown at.
  std::string text = header.dump(-1, ' ', false, Json::error_handler_t::replace);
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t length = text.size();

  TemporaryFile file(path);
  RETURN_IF_ERROR(file.Create());
  RETURN_IF_ERROR(file.Write(&length, sizeof(length)));
  RETURN_IF_ERROR(file.Write(text.data(), text.size()));
  for (const NamedTensor& tensor : tensors) {
    RETURN_IF_ERROR(file.Write(tensor.view.data, tensor.view.bytes()));
  }
  return file.Publish();
}

}  // namespace latentd
