#include "engine/evaluation/item_options.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/mapped_file.h"
#include "base/random.h"
#include "base/status_macros.h"

namespace latentd {
namespace {

// Latents of one method and size differ by their text and seed, and a path may be written again.
absl::StatusOr<std::string> HashOf(const std::string& path) {
  ASSIGN_OR_RETURN(const std::shared_ptr<const MappedFile> file, MappedFile::Open(path));
  const absl::Span<const std::byte> bytes = file->bytes();
  uint64_t hash = bytes.size();
  for (size_t at = 0; at < bytes.size(); at += sizeof(hash)) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, std::min(sizeof(word), bytes.size() - at));
    hash = RandomBits(hash, word);
  }
  return absl::StrCat(absl::Hex(hash, absl::kZeroPad16));
}

// Results of different questions make no pairs.
absl::Status CheckSameQuestions(const ItemsFile& other, const nlohmann::ordered_json& facts,
                                const std::string& path) {
  for (const auto& [name, value] : facts.items()) {
    const auto found = other.header().find(name);
    if (found != other.header().end() && *found == value) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "--compare ", path, " holds results of other questions: its ", name, " is ",
        found == other.header().end() ? "not there" : found->dump(), ", here ", value.dump()));
  }
  return absl::OkStatus();
}

}  // namespace

void AddItemFlags(CommandLine* flags, ItemOptions* options) {
  flags->Add("items", &options->items, "FILE",
             "keeps each result as a JSON line; what it has already is not measured again");
  flags->Add("compare", &options->compare, "FILE",
             "another cache's --items: adds the differences (this less that) with their paired "
             "standard errors");
}

absl::StatusOr<ItemFiles> OpenItems(const ItemOptions& options, const std::string& command,
                                    const EvaluationModel& model, const EngineInfo& info,
                                    const nlohmann::ordered_json& facts) {
  nlohmann::ordered_json header = {{"latent_eval", command},
                                   {"model", model.model.model},
                                   {"latents", model.model.latents},
                                   {"cache", info.cache_name},
                                   {"bytes_per_token", info.bytes_per_token},
                                   {"exact_products", model.exact_products}};
  header.update(facts);
  ItemFiles files;
  if (!options.items.empty()) {
    if (!model.model.latents.empty()) {
      ASSIGN_OR_RETURN(header["latents_hash"], HashOf(model.model.latents));
    }
    ASSIGN_OR_RETURN(files.items, ItemsFile::Open(options.items, header));
  }
  if (!options.compare.empty()) {
    ASSIGN_OR_RETURN(files.compare, ItemsFile::Read(options.compare, command));
    RETURN_IF_ERROR(CheckSameQuestions(*files.compare, facts, options.compare));
  }
  return files;
}

}  // namespace latentd
