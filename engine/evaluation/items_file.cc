#include "engine/evaluation/items_file.h"

#include <filesystem>
#include <fstream>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/mapped_file.h"
#include "base/status_macros.h"

namespace latentd {
namespace {

constexpr char kCommandKey[] = "latent_eval";

absl::StatusOr<std::string> Contents(const std::string& path) {
  ASSIGN_OR_RETURN(const std::shared_ptr<const MappedFile> file, MappedFile::Open(path));
  return std::string(reinterpret_cast<const char*>(file->bytes().data()), file->bytes().size());
}

// Of one line; bytes that are no UTF-8 (in a path, say) are replaced.
std::string Text(const nlohmann::ordered_json& json) {
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

absl::Status Append(const std::string& path, const nlohmann::ordered_json& line) {
  std::ofstream file(path, std::ios::app);
  file << Text(line) << "\n" << std::flush;
  if (file.good()) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("--items ", path, " cannot be written"));
}

}  // namespace

absl::Status ItemsFile::Parse(const std::string& text) {
  int number = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    ++number;
    auto json = nlohmann::ordered_json::parse(line, nullptr, false);
    if (number == 1 && json.is_object() && json.contains(kCommandKey)) {
      header_ = std::move(json);
      continue;
    }
    if (number == 1 || !json.is_object() ||
        !json.value("task", nlohmann::ordered_json()).is_string() ||
        !json.value("index", nlohmann::ordered_json()).is_number_integer()) {
      return absl::InvalidArgumentError(
          absl::StrCat(path_, ", line ", number, ": not a result of latent-eval"));
    }
    const Key key{json["task"].get<std::string>(), json["index"].get<int64_t>()};
    items_[key] = std::move(json);
  }
  return absl::OkStatus();
}

absl::StatusOr<ItemsFile> ItemsFile::Read(const std::string& path, const std::string& command) {
  ItemsFile file;
  file.path_ = path;
  ASSIGN_OR_RETURN(std::string text, Contents(path));
  text.resize(text.rfind('\n') + 1);  // npos + 1 == 0: no whole line
  RETURN_IF_ERROR(file.Parse(text));
  if (file.header_.is_null() || file.header_[kCommandKey] != command) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " holds no results of latent-eval ", command));
  }
  return file;
}

absl::StatusOr<ItemsFile> ItemsFile::Open(const std::string& path,
                                          const nlohmann::ordered_json& header) {
  std::error_code missing;
  const auto bytes = std::filesystem::file_size(path, missing);
  if (missing || bytes == 0) {
    ItemsFile file;
    file.path_ = path;
    file.header_ = header;
    RETURN_IF_ERROR(Append(path, header));
    return file;
  }
  ASSIGN_OR_RETURN(ItemsFile file, Read(path, header[kCommandKey].get<std::string>()));
  if (Text(file.header_) != Text(header)) {
    return absl::FailedPreconditionError(absl::StrCat("--items ", path, " holds results of ",
                                                      Text(file.header_), ", this measures ",
                                                      Text(header)));
  }
  ASSIGN_OR_RETURN(const std::string text, Contents(path));
  std::filesystem::resize_file(path, text.rfind('\n') + 1, missing);
  if (missing) return absl::UnavailableError(absl::StrCat("--items ", path, " cannot be written"));
  return file;
}

const nlohmann::ordered_json* ItemsFile::Find(const Key& key) const {
  const auto it = items_.find(key);
  return it == items_.end() ? nullptr : &it->second;
}

absl::Status ItemsFile::Add(const Key& key, const nlohmann::ordered_json& fields) {
  nlohmann::ordered_json line = {{"task", key.first}, {"index", key.second}};
  line.update(fields);
  if (!path_.empty()) RETURN_IF_ERROR(Append(path_, line));
  items_[key] = std::move(line);
  return absl::OkStatus();
}

}  // namespace latentd
