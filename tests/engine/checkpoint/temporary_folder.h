#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "absl/types/span.h"
#include "base/check.h"

namespace latentd {

// A new folder that goes with the object.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    path_ = (std::filesystem::temp_directory_path() / "latentd-test-XXXXXX").string();
    LATENTD_CHECK(mkdtemp(path_.data()) != nullptr);
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::string& path() const { return path_; }

  // Writes a file of the folder and returns its path.
  std::string Write(const std::string& name, std::string_view text) const {
    const std::string path = path_ + "/" + name;
    std::ofstream(path, std::ios::binary).write(text.data(), static_cast<long>(text.size()));
    return path;
  }
  std::string Write(const std::string& name, absl::Span<const std::byte> bytes) const {
    return Write(name, std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  }

 private:
  std::string path_;
};

}  // namespace latentd
