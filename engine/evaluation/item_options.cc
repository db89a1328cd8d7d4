#include "engine/evaluation/item_options.h"

#include "base/status_macros.h"

namespace latentd {

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
    ASSIGN_OR_RETURN(files.items, ItemsFile::Open(options.items, header));
  }
  if (!options.compare.empty()) {
    ASSIGN_OR_RETURN(files.compare, ItemsFile::Read(options.compare, command));
  }
  return files;
}

}  // namespace latentd
