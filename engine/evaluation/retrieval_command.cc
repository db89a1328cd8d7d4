#include <algorithm>
#include <iostream>

#include "absl/strings/numbers.h"
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
#include "engine/evaluation/item_options.h"
#include "engine/evaluation/retrieval.h"
#include "engine/evaluation/tasks.h"

namespace latentd {
namespace {

struct Options {
  EvaluationModel model;
  std::string lengths;
  std::string text;
  std::string ruler;
  int prompts = 10;
  int64_t seed = 0;
  ItemOptions items;
  bool json = false;
};

// Prompts that are counted together.
struct PromptSet {
  std::string name;  // "needle-512", "ruler"
  int tokens = 0;    // of a prompt; 0: they differ
  std::vector<Question> questions;
  std::vector<int> indices;
};

absl::StatusOr<std::vector<int>> LengthsOf(const Options& options, const EngineInfo& info) {
  std::vector<int> lengths;
  if (options.lengths.empty()) {
    for (int tokens = 512; tokens <= info.max_context; tokens *= 2) lengths.push_back(tokens);
    if (lengths.empty()) lengths.push_back(info.max_context);
    return lengths;
  }
  for (const absl::string_view text : absl::StrSplit(options.lengths, ',')) {
    int tokens = 0;
    if (!absl::SimpleAtoi(text, &tokens) || tokens < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("--lengths has \"", text, "\", it is a list of numbers of tokens"));
    }
    if (tokens > info.max_context) {
      return absl::InvalidArgumentError(
          absl::StrCat("--lengths has ", tokens, ", the context is ", info.max_context));
    }
    lengths.push_back(tokens);
  }
  return lengths;
}

absl::StatusOr<std::vector<int32_t>> FillerOf(const Options& options, const Tokenizer& tokenizer) {
  if (options.text.empty()) return tokenizer.Encode(BuiltInFiller(), false, false);
  ASSIGN_OR_RETURN(const std::shared_ptr<const MappedFile> file, MappedFile::Open(options.text));
  return tokenizer.Encode(
      {reinterpret_cast<const char*>(file->bytes().data()), file->bytes().size()}, false, false);
}

std::vector<int> FirstIndices(size_t count) {
  return ChooseQuestions(static_cast<int>(count), 0, 0);
}

absl::StatusOr<std::vector<PromptSet>> PromptSets(const Options& options,
                                                  const Tokenizer& tokenizer,
                                                  const EngineInfo& info) {
  std::vector<PromptSet> sets;
  if (!options.ruler.empty()) {
    PromptSet set{.name = "ruler"};
    ASSIGN_OR_RETURN(set.questions, ReadRuler(options.ruler));
    set.indices =
        ChooseQuestions(static_cast<int>(set.questions.size()), options.prompts, options.seed);
    sets.push_back(std::move(set));
    return sets;
  }
  ASSIGN_OR_RETURN(const std::vector<int> lengths, LengthsOf(options, info));
  ASSIGN_OR_RETURN(const std::vector<int32_t> filler, FillerOf(options, tokenizer));
  for (const int tokens : lengths) {
    PromptSet set{.name = absl::StrCat("needle-", tokens), .tokens = tokens};
    ASSIGN_OR_RETURN(set.questions,
                     MakeNeedles(tokenizer, filler, tokens, options.prompts, options.seed));
    set.indices = FirstIndices(set.questions.size());
    sets.push_back(std::move(set));
  }
  return sets;
}

void Print(const Options& options, const EngineInfo& info, const ItemFiles& files,
           const PromptSet& set) {
  const auto mean = [&](const char* field) {
    return FieldMean(files.items, nullptr, set.name, set.indices, field).value_or(Estimate{});
  };
  const Estimate found = mean("acc"), token_acc = mean("token_acc"), logprob = mean("logprob");
  std::optional<Estimate> difference;
  if (files.other() != nullptr) {
    difference = FieldMean(files.items, files.other(), set.name, set.indices, "acc");
  }
  if (!options.json) {
    absl::PrintF(
        "%-12s %4d prompts  found %.1f +- %.1f %%  tokens %.1f +- %.1f %%  log likelihood "
        "of an answer %.3f +- %.3f",
        set.name, found.count, 100 * found.mean, 100 * found.standard_error, 100 * token_acc.mean,
        100 * token_acc.standard_error, logprob.mean, logprob.standard_error);
    if (difference.has_value()) {
      absl::PrintF("  found less the other's %.1f +- %.1f %%", 100 * difference->mean,
                   100 * difference->standard_error);
    }
    absl::PrintF("\n");
    return;
  }
  nlohmann::ordered_json json = {{"task", set.name},
                                 {"prompts", found.count},
                                 {"found", found.mean},
                                 {"found_standard_error", found.standard_error},
                                 {"token_acc", token_acc.mean},
                                 {"token_acc_standard_error", token_acc.standard_error},
                                 {"logprob", logprob.mean},
                                 {"logprob_standard_error", logprob.standard_error}};
  if (difference.has_value()) {
    json["found_difference"] = difference->mean;
    json["found_difference_standard_error"] = difference->standard_error;
  }
  AddCacheFigures(info, set.tokens > 0 ? set.tokens : info.max_context, &json);
  std::cout << json << std::endl;
}

absl::Status Retrieval(const Options& options) {
  ASSIGN_OR_RETURN(const OpenedModel opened, OpenForEvaluation(options.model, 1));
  ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer,
                   Tokenizer::Create(opened.checkpoint->tokenizer()));
  const EngineInfo& info = opened.engine->info();
  ASSIGN_OR_RETURN(const std::vector<PromptSet> sets, PromptSets(options, *tokenizer, info));
  ASSIGN_OR_RETURN(ItemFiles files, OpenItems(options.items, "retrieval", options.model, info,
                                              {{"seed", options.seed},
                                               {"prompts", options.prompts},
                                               {"text", options.text},
                                               {"ruler", options.ruler}}));
  for (const PromptSet& set : sets) {
    {
      ProgressLine line(set.name);
      RETURN_IF_ERROR(AnswerQuestions(*opened.engine, *tokenizer, set.name, set.questions,
                                      set.indices, &files.items, ShowOn(&line)));
    }
    Print(options, info, files, set);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RetrievalCommand(Arguments args) {
  Options options;
  CommandLine flags(
      {.program = "latent-eval retrieval",
       .summary = "Hides a sentence with a number in filler text and asks for the number. It is "
                  "found when greedy decoding gives it right after the question.",
       .example = "latent-eval retrieval --model model.gguf --latents model.latents "
                  "--lengths 512,4096 --prompts 20"});
  AddEvaluationModelFlags(&flags, &options.model);
  flags.Add("lengths", &options.lengths, "N,...",
            "tokens of a prompt; empty: 512, 1024, ... up to the context");
  flags.Add("prompts", &options.prompts, "N",
            "of each length, at evenly spaced depths; of a RULER file, drawn by --seed",
            {.min = 1});
  flags.Add("text", &options.text, "FILE", "filler text; empty: one that is built in");
  flags.Add("ruler", &options.ruler, "FILE",
            "prompts of a RULER file instead: JSON lines with input and outputs");
  flags.Add("seed", &options.seed, "N", "of the needles and their places in the filler");
  AddItemFlags(&flags, &options.items);
  flags.Add("json", &options.json, "print each length as one JSON object");
  flags.ParseOrExit(args);
  ExitIfWrong("latent-eval retrieval", CheckModelFlags(options.model));
  return Retrieval(options);
}

}  // namespace latentd
