// Any bytes as the model.safetensors of a tiny Llama's folder: a checkpoint whose every tensor can
// be read, or an error.

#include <filesystem>

#include "engine/checkpoint/checkpoint.h"
#include "tests/fuzz/input_file.h"
#include "tests/fuzz/read_everything.h"

namespace {

namespace fs = std::filesystem;

// A folder with the golden model's config, whose model.safetensors leads to the current input.
class ModelFolder {
 public:
  ModelFolder() : path_(fs::temp_directory_path() / ("latentd_fuzz_" + std::to_string(getpid()))) {
    fs::create_directories(path_);
    fs::copy_file(fs::path(LATENTD_GOLDEN_DIR) / "llama/config.json", path_ / "config.json",
                  fs::copy_options::overwrite_existing);
  }
  ~ModelFolder() { fs::remove_all(path_); }

  void Hold(const std::string& input) {
    fs::remove(path_ / "model.safetensors");
    fs::create_symlink(input, path_ / "model.safetensors");
  }
  std::string path() const { return path_; }

 private:
  const fs::path path_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static ModelFolder folder;
  const latentd::InputFile file(data, size);
  folder.Hold(file.path());
  const auto checkpoint = latentd::Checkpoint::Open(folder.path());
  if (checkpoint.ok()) latentd::ReadEverything(**checkpoint);
  return 0;
}
