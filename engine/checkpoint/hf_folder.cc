#include "engine/checkpoint/hf_folder.h"

#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/mapped_file.h"
#include "base/message.h"
#include "base/status_macros.h"
#include "engine/checkpoint/json.h"
#include "engine/checkpoint/safetensors_file.h"

namespace latentd {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxIndexBytes = 32 << 20;
constexpr size_t kMaxTokenizerBytes = 512 << 20;
constexpr size_t kMaxTokenizerConfigBytes = 16 << 20;
constexpr size_t kMaxTemplateBytes = 4 << 20;
constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

// The shard that each tensor lies in, as the index says.
using WeightMap = std::map<std::string, std::string>;

absl::StatusOr<WeightMap> ReadIndex(const std::string& text, const std::string& name) {
  ASSIGN_OR_RETURN(const Json index, ParseJson(text, name));
  if (!HasField(index, "weight_map") || !index["weight_map"].is_object()) {
    return absl::InvalidArgumentError(Message(name, ": \"weight_map\" is missing"));
  }
  WeightMap map;
  for (const auto& [tensor, shard] : index["weight_map"].items()) {
    if (!shard.is_string()) {
      return absl::InvalidArgumentError(Message(name, ": the shard of ", tensor, " is no string"));
    }
    const std::string& file = shard.get_ref<const std::string&>();
    if (file.empty() || file.find('/') != std::string::npos || file == "." || file == ".." ||
        file.find('\0') != std::string::npos) {
      return absl::InvalidArgumentError(
          Message(name, ": the shard \"", file, "\" of ", tensor, " is no file of the folder"));
    }
    map[tensor] = file;
  }
  return map;
}

// A template given as a string, or as a list of named ones of which "default" is meant.
std::string TemplateOf(const Json& tokenizer_config) {
  if (!HasField(tokenizer_config, "chat_template")) return "";
  const Json& value = tokenizer_config["chat_template"];
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_array()) return "";
  for (const Json& entry : value) {
    if (!HasField(entry, "name") || !HasField(entry, "template")) continue;
    if (entry["name"] == "default" && entry["template"].is_string()) {
      return entry["template"].get<std::string>();
    }
  }
  return "";
}

}  // namespace

absl::StatusOr<std::string> ReadFolderFile(const std::string& folder, const std::string& name,
                                           size_t max_bytes) {
  const std::string path = Message(folder, "/", name);
  absl::StatusOr<std::shared_ptr<const MappedFile>> file = MappedFile::Open(path);
  if (absl::IsNotFound(file.status())) return std::string();
  RETURN_IF_ERROR(file.status());
  const absl::Span<const std::byte> bytes = (*file)->bytes();
  if (bytes.size() > max_bytes) {
    return absl::InvalidArgumentError(
        Message(path, " has ", bytes.size(), " bytes, at most ", max_bytes, " are allowed"));
  }
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

absl::StatusOr<HfTensors> OpenHfTensors(const std::string& folder) {
  HfTensors result;
  absl::StatusOr<SafetensorsFile> single = SafetensorsFile::Open(Message(folder, "/", kSingle));
  if (single.ok()) {
    result.tensors = std::move(single->tensors);
    result.storage.push_back(std::move(single->storage));
    return result;
  }
  if (!absl::IsNotFound(single.status())) return single.status();

  ASSIGN_OR_RETURN(const std::string text, ReadFolderFile(folder, kIndex, kMaxIndexBytes));
  if (text.empty()) {
    return absl::NotFoundError(Message(folder, ": there is neither ", kSingle, " nor ", kIndex));
  }
  const std::string index_name = Message(folder, "/", kIndex);
  ASSIGN_OR_RETURN(const WeightMap map, ReadIndex(text, index_name));
  std::set<std::string> shards;
  for (const auto& [tensor, shard] : map) shards.insert(shard);
  for (const std::string& shard : shards) {
    const std::string path = Message(folder, "/", shard);
    ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Open(path));
    for (auto& [tensor, stored] : file.tensors) {
      const auto place = map.find(tensor);
      if (place == map.end() || place->second != shard) {
        return absl::InvalidArgumentError(
            Message(path, ": tensor ", tensor, " is here, but the index has it ",
                    place == map.end() ? "nowhere" : Message("in ", place->second)));
      }
      result.tensors.emplace(tensor, std::move(stored));
    }
    result.storage.push_back(std::move(file.storage));
  }
  for (const auto& [tensor, shard] : map) {
    if (!result.tensors.contains(tensor)) {
      return absl::InvalidArgumentError(
          Message(index_name, ": tensor ", tensor, " is not in ", shard));
    }
  }
  return result;
}

absl::StatusOr<TokenizerSource> ReadHfTokenizer(const std::string& folder) {
  TokenizerSource source{.path = folder};
  ASSIGN_OR_RETURN(source.tokenizer_json,
                   ReadFolderFile(folder, "tokenizer.json", kMaxTokenizerBytes));
  ASSIGN_OR_RETURN(source.tokenizer_config_json,
                   ReadFolderFile(folder, "tokenizer_config.json", kMaxTokenizerConfigBytes));
  ASSIGN_OR_RETURN(source.chat_template,
                   ReadFolderFile(folder, "chat_template.jinja", kMaxTemplateBytes));
  if (source.chat_template.empty() && !source.tokenizer_config_json.empty()) {
    ASSIGN_OR_RETURN(const Json config, ParseJson(source.tokenizer_config_json,
                                                  Message(folder, "/tokenizer_config.json")));
    source.chat_template = TemplateOf(config);
  }
  return source;
}

}  // namespace latentd
