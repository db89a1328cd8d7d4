#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "base/command_line.h"
#include "engine/evaluation/exact_products.h"
#include "engine/evaluation/items_file.h"

namespace latentd {

// The flags of the commands that keep a result per question.
struct ItemOptions {
  std::string items;    // --items
  std::string compare;  // --compare
};

void AddItemFlags(CommandLine* flags, ItemOptions* options);

struct ItemFiles {
  ItemsFile items;
  std::optional<ItemsFile> compare;
  const ItemsFile* other() const { return compare.has_value() ? &*compare : nullptr; }
};

// The file to add to, whose first line names the command, the model's path, its cache (of latents a
// hash of the file too) and `facts`, an object that says what was asked; and the one to compare
// with. FAILED_PRECONDITION when the former holds results of something else, or the latter's facts
// are others; both say which.
absl::StatusOr<ItemFiles> OpenItems(const ItemOptions& options, const std::string& command,
                                    const EvaluationModel& model, const EngineInfo& info,
                                    const nlohmann::ordered_json& facts);

}  // namespace latentd
