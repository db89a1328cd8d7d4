#pragma once

#include <map>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace latentd {

// Results of single questions as JSON lines, so that long work goes on where it stopped and two
// caches can be compared question by question:
//
//   {"latent_eval": "tasks", "model": ..., ...}      what was measured
//   {"task": "piqa", "index": 17, ...}               a question's result
//
// A line is written whole before the next one is asked for; a last line that was cut off by a kill
// is dropped. One thread.
class ItemsFile {
 public:
  using Key = std::pair<std::string, int64_t>;  // task, index

  // Nothing is kept on disk: for when no file is asked for.
  ItemsFile() = default;

  // Opens the file and takes what it has, or begins it. FAILED_PRECONDITION with both first lines
  // when it holds results of something else.
  static absl::StatusOr<ItemsFile> Open(const std::string& path,
                                        const nlohmann::ordered_json& header);
  // For reading alone. INVALID_ARGUMENT unless it is such a file of the same command.
  static absl::StatusOr<ItemsFile> Read(const std::string& path, const std::string& command);

  const nlohmann::ordered_json& header() const { return header_; }
  const std::map<Key, nlohmann::ordered_json>& items() const { return items_; }
  const nlohmann::ordered_json* Find(const Key& key) const;

  absl::Status Add(const Key& key, const nlohmann::ordered_json& fields);

 private:
  absl::Status Parse(const std::string& text);

  std::string path_;
  nlohmann::ordered_json header_;
  std::map<Key, nlohmann::ordered_json> items_;
};

}  // namespace latentd
