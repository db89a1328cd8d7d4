#include <algorithm>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/command_line.h"
#include "base/mapped_file.h"
#include "base/progress.h"
#include "base/status_macros.h"
#include "engine/evaluation/cache_figures.h"
#include "engine/evaluation/estimate.h"
#include "engine/evaluation/eval_commands.h"
#include "engine/evaluation/exact_products.h"
#include "engine/evaluation/greedy_text.h"
#include "engine/evaluation/item_options.h"
#include "engine/evaluation/question.h"
#include "engine/evaluation/reference.h"
#include "engine/text/chat_template.h"
#include "engine/text/tokenizer.h"

namespace latentd {
namespace {

constexpr int kSeats = 8;  // texts at a time
constexpr char kTask[] = "generate";

struct Options {
  EvaluationModel model;
  std::string reference = "full";
  std::string prompts;
  int limit = 0;
  int tokens = 512;
  int64_t seed = 0;
  ItemOptions items;
  bool json = false;
};

// JSON lines with "prompt", or "turns" of which the first is taken.
absl::StatusOr<std::vector<std::string>> ReadPrompts(const std::string& path) {
  ASSIGN_OR_RETURN(const std::shared_ptr<const MappedFile> file, MappedFile::Open(path));
  const absl::string_view text(reinterpret_cast<const char*>(file->bytes().data()),
                               file->bytes().size());
  std::vector<std::string> prompts;
  int number = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    if (line.empty()) continue;
    auto json = nlohmann::json::parse(line, nullptr, false);
    nlohmann::json prompt;
    if (json.is_object() && json.contains("prompt")) {
      prompt = json["prompt"];
    } else if (json.is_object() && json.contains("turns") && json["turns"].is_array() &&
               !json["turns"].empty()) {
      prompt = json["turns"][0];
    }
    if (!prompt.is_string()) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ", line ", number,
                       ": is no JSON object with a text \"prompt\" or texts \"turns\""));
    }
    prompts.push_back(prompt.get<std::string>());
  }
  if (prompts.empty()) return absl::InvalidArgumentError(absl::StrCat(path, " has no prompts"));
  return prompts;
}

// In the model's chat template where it has one.
absl::StatusOr<std::vector<int32_t>> EncodePrompt(const Tokenizer& tokenizer,
                                                  const ChatTemplate* chat_template,
                                                  const std::string& prompt) {
  if (chat_template == nullptr) return tokenizer.Encode(prompt, true, false);
  ASSIGN_OR_RETURN(const std::string text, chat_template->Render({{"user", prompt}}, true));
  return tokenizer.Encode(text, false, true);
}

absl::Status Compare(Engine& reference, Engine& engine,
                     const std::vector<std::vector<int32_t>>& prompts,
                     const std::vector<int>& indices, int tokens,
                     absl::Span<const int32_t> stop_token_ids, ItemsFile* items) {
  std::vector<int> open;
  for (const int index : indices) {
    if (items->Find({kTask, index}) == nullptr) open.push_back(index);
  }
  ProgressLine line("generate-compare");
  for (size_t begin = 0; begin < open.size(); begin += kSeats) {
    const size_t end = std::min(open.size(), begin + kSeats);
    std::vector<std::vector<int32_t>> some;
    for (size_t i = begin; i < end; ++i) some.push_back(prompts[open[i]]);
    ASSIGN_OR_RETURN(const auto expected, GenerateGreedy(reference, some, tokens, stop_token_ids));
    line.Show((static_cast<double>(begin) + static_cast<double>(end - begin) / 2) /
              static_cast<double>(open.size()));
    ASSIGN_OR_RETURN(const auto texts, GenerateGreedy(engine, some, tokens, stop_token_ids));
    for (size_t i = begin; i < end; ++i) {
      const TextComparison c = CompareTexts(expected[i - begin], texts[i - begin]);
      RETURN_IF_ERROR(
          items->Add({kTask, open[i]}, {{"tokens", c.tokens},
                                        {"first_difference", c.first_difference},
                                        {"equal_share", c.equal_share},
                                        {"identical", c.first_difference == c.tokens ? 1 : 0}}));
    }
    line.Show(static_cast<double>(end) / static_cast<double>(open.size()));
  }
  return absl::OkStatus();
}

void Print(const Options& options, const EngineInfo& info, const ItemFiles& files,
           const std::vector<int>& indices) {
  const auto mean = [&](const char* field) {
    return FieldMean(files.items, nullptr, kTask, indices, field).value_or(Estimate{});
  };
  const Estimate share = mean("equal_share"), first = mean("first_difference"),
                 identical = mean("identical"), tokens = mean("tokens");
  std::optional<Estimate> difference;
  if (files.other() != nullptr) {
    difference = FieldMean(files.items, files.other(), kTask, indices, "equal_share");
  }
  if (options.json) {
    nlohmann::ordered_json json = {
        {"prompts", share.count},         {"tokens", tokens.mean},
        {"equal_share", share.mean},      {"equal_share_standard_error", share.standard_error},
        {"first_difference", first.mean}, {"first_difference_standard_error", first.standard_error},
        {"identical", identical.mean}};
    if (difference.has_value()) {
      json["equal_share_difference"] = difference->mean;
      json["equal_share_difference_standard_error"] = difference->standard_error;
    }
    AddCacheFigures(info, options.tokens, &json);
    std::cout << json << "\n";
    return;
  }
  absl::PrintF(
      "%d prompts, %.1f tokens on average: %.2f +- %.2f %% of the tokens are equal, the "
      "first difference comes after %.1f +- %.1f, %.1f %% of the texts are identical\n",
      share.count, tokens.mean, 100 * share.mean, 100 * share.standard_error, first.mean,
      first.standard_error, 100 * identical.mean);
  if (difference.has_value()) {
    absl::PrintF("equal tokens less the other's: %.2f +- %.2f %%\n", 100 * difference->mean,
                 100 * difference->standard_error);
  }
  absl::PrintF("%s\n", CacheFigures(info, options.tokens));
}

absl::Status CheckFlags(const Options& options) {
  RETURN_IF_ERROR(CheckModelFlags(options.model));
  RETURN_IF_ERROR(CheckReference(options.reference, options.model));
  if (!options.prompts.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError("--prompts is missing: JSON lines with \"prompt\"");
}

absl::Status GenerateCompare(const Options& options) {
  ASSIGN_OR_RETURN(const std::vector<std::string> texts, ReadPrompts(options.prompts));
  ASSIGN_OR_RETURN(const OpenedModel opened, OpenForEvaluation(options.model, kSeats));
  const EngineInfo& info = opened.engine->info();
  ASSIGN_OR_RETURN(ItemFiles files,
                   OpenItems(options.items, "generate-compare", options.model, info,
                             {{"reference", options.reference},
                              {"prompts", options.prompts},
                              {"max_tokens", options.tokens}}));
  ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer,
                   Tokenizer::Create(opened.checkpoint->tokenizer()));
  std::unique_ptr<ChatTemplate> chat_template;
  if (!opened.checkpoint->tokenizer().chat_template.empty()) {
    ASSIGN_OR_RETURN(chat_template, ChatTemplate::Create(opened.checkpoint->tokenizer()));
  }
  std::vector<std::vector<int32_t>> prompts;
  for (const std::string& text : texts) {
    ASSIGN_OR_RETURN(prompts.emplace_back(), EncodePrompt(*tokenizer, chat_template.get(), text));
  }
  const std::vector<int> indices =
      ChooseQuestions(static_cast<int>(prompts.size()), options.limit, options.seed);
  ASSIGN_OR_RETURN(const OpenedModel reference,
                   OpenReference(options.reference, options.model, kSeats));
  RETURN_IF_ERROR(Compare(*reference.engine, *opened.engine, prompts, indices, options.tokens,
                          opened.checkpoint->config().eos_token_ids, &files.items));
  Print(options, info, files, indices);
  return absl::OkStatus();
}

}  // namespace

absl::Status GenerateCompareCommand(Arguments args) {
  Options options;
  CommandLine flags(
      {.program = "latent-eval generate-compare",
       .summary = "Lets a cache and the uncompressed one write greedily and compares the texts.",
       .example = "latent-eval generate-compare --model model.gguf --latents model.latents "
                  "--prompts question.jsonl --limit 8"});
  AddEvaluationModelFlags(&flags, &options.model);
  flags.Add("reference", &options.reference, "full|FILE|MODEL", kReferenceHelp);
  flags.Add("prompts", &options.prompts, "FILE",
            "JSON lines with \"prompt\" or \"turns\"; in the model's chat template if it has one");
  flags.Add("limit", &options.limit, "N", "prompts, drawn by --seed; 0: all", {.min = 0});
  flags.Add("tokens", &options.tokens, "N", "of a text, at most", {.min = 1});
  flags.Add("seed", &options.seed, "N", "of the drawn prompts");
  AddItemFlags(&flags, &options.items);
  flags.Add("json", &options.json, "print the result as one JSON object");
  flags.ParseOrExit(args);
  ExitIfWrong("latent-eval generate-compare", CheckFlags(options));
  return GenerateCompare(options);
}

}  // namespace latentd
