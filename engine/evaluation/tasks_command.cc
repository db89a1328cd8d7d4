#include <algorithm>
#include <cmath>
#include <iostream>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/command_line.h"
#include "base/progress.h"
#include "base/status_macros.h"
#include "engine/evaluation/cache_figures.h"
#include "engine/evaluation/estimate.h"
#include "engine/evaluation/eval_commands.h"
#include "engine/evaluation/exact_products.h"
#include "engine/evaluation/item_options.h"
#include "engine/evaluation/question.h"
#include "engine/evaluation/tasks.h"
#include "engine/evaluation/test_text.h"

namespace latentd {
namespace {

constexpr int kSeats = 16;  // questions at a time

struct Options {
  EvaluationModel model;
  std::vector<std::string> data;
  std::string tasks;
  int limit = 0;
  int64_t seed = 0;
  bool allow_overlap = false;
  ItemOptions items;
  bool json = false;
};

// A task's figures, or the average over tasks.
struct Row {
  std::string task;
  Estimate acc;
  std::optional<Estimate> acc_norm;
  std::optional<Estimate> acc_difference, acc_norm_difference;  // from the items to compare with
  std::optional<double> perplexity;
};

absl::StatusOr<std::vector<const Task*>> ChosenTasks(const Options& options) {
  std::vector<const Task*> chosen;
  std::vector<std::string> known;
  for (const Task& task : Tasks()) known.emplace_back(task.name);
  const std::vector<std::string> names =
      options.tasks.empty() ? known : absl::StrSplit(options.tasks, ',');
  for (const std::string& name : names) {
    const auto it = absl::c_find(known, name);
    if (it == known.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--tasks names \"", name, "\", there are: ", absl::StrJoin(known, ", ")));
    }
    chosen.push_back(&Tasks()[it - known.begin()]);
  }
  return chosen;
}

absl::Status CheckQuestions(const Tokenizer& tokenizer, const Latents* latents, const Task& task,
                            const std::vector<Question>& questions, const std::vector<int>& indices,
                            bool allow_overlap) {
  std::vector<Continuation> right;
  for (const int index : indices) {
    ASSIGN_OR_RETURN(std::vector<Continuation> encoded,
                     EncodeQuestion(tokenizer, questions[index]));
    right.push_back(std::move(encoded[questions[index].gold]));
  }
  std::vector<TextWindow> windows;
  windows.reserve(right.size());
  for (const Continuation& c : right) windows.push_back({.tokens = c.tokens});
  return CheckOverlap(windows, latents, absl::StrCat("the task ", task.name), allow_overlap);
}

Row RowOf(const Task& task, const ItemFiles& files, const std::vector<int>& indices) {
  Row row{.task = task.name};
  row.acc = FieldMean(files.items, nullptr, task.name, indices, "acc").value_or(Estimate{});
  if (task.normalised) {
    row.acc_norm = FieldMean(files.items, nullptr, task.name, indices, "acc_norm");
  }
  if (const auto logprob = FieldMean(files.items, nullptr, task.name, indices, "logprob")) {
    row.perplexity = std::exp(-logprob->mean);
  }
  if (files.other() == nullptr) return row;
  row.acc_difference = FieldMean(files.items, files.other(), task.name, indices, "acc");
  if (task.normalised) {
    row.acc_norm_difference = FieldMean(files.items, files.other(), task.name, indices, "acc_norm");
  }
  return row;
}

// Over the tasks; for acc_norm, a task without it gives its acc.
Row AverageRow(const std::vector<Row>& rows) {
  std::vector<Estimate> acc, acc_norm, acc_difference, acc_norm_difference;
  for (const Row& row : rows) {
    acc.push_back(row.acc);
    acc_norm.push_back(row.acc_norm.value_or(row.acc));
    if (!row.acc_difference.has_value()) continue;
    acc_difference.push_back(*row.acc_difference);
    acc_norm_difference.push_back(row.acc_norm_difference.value_or(*row.acc_difference));
  }
  Row average{.task = "average", .acc = AverageOf(acc), .acc_norm = AverageOf(acc_norm)};
  if (!acc_difference.empty()) {
    average.acc_difference = AverageOf(acc_difference);
    average.acc_norm_difference = AverageOf(acc_norm_difference);
  }
  return average;
}

void Print(const Options& options, const EngineInfo& info, const Row& row) {
  if (options.json) {
    nlohmann::ordered_json json = {{"task", row.task}, {"questions", row.acc.count}};
    const auto add = [&](const std::string& name, const std::optional<Estimate>& estimate) {
      if (!estimate.has_value()) return;
      json[name] = estimate->mean;
      json[name + "_standard_error"] = estimate->standard_error;
    };
    add("acc", row.acc);
    add("acc_norm", row.acc_norm);
    add("acc_difference", row.acc_difference);
    add("acc_norm_difference", row.acc_norm_difference);
    if (row.perplexity.has_value()) json["perplexity"] = *row.perplexity;
    json.update({{"cache", info.cache_name},
                 {"bytes_per_token", info.bytes_per_token},
                 {"bytes_per_sequence", info.bytes_per_sequence},
                 {"full_bytes_per_token", info.full_bytes_per_token},
                 {"ratio", info.full_bytes_per_token / info.bytes_per_token}});
    std::cout << json << std::endl;
    return;
  }
  const auto percent = [](const char* name, const std::optional<Estimate>& e) {
    if (!e.has_value()) return std::string();
    return absl::StrFormat("  %s %.2f +- %.2f %%", name, 100 * e->mean, 100 * e->standard_error);
  };
  absl::PrintF(
      "%-13s %5d questions%s%s%s%s%s\n", row.task, row.acc.count, percent("acc", row.acc),
      percent("acc_norm", row.acc_norm), percent("acc less the other's", row.acc_difference),
      percent("acc_norm less the other's", row.acc_norm_difference),
      row.perplexity.has_value() ? absl::StrFormat("  perplexity %.3f", *row.perplexity) : "");
}

absl::Status CheckFlags(const Options& options) {
  RETURN_IF_ERROR(CheckModelFlags(options.model));
  if (options.data.empty()) {
    return absl::InvalidArgumentError(
        "--data is missing: the folder with the questions (piqa.jsonl, ...)");
  }
  return ChosenTasks(options).status();
}

absl::Status RunTasks(const Options& options) {
  ASSIGN_OR_RETURN(const std::vector<const Task*> tasks, ChosenTasks(options));
  ASSIGN_OR_RETURN(const OpenedModel opened, OpenForEvaluation(options.model, kSeats));
  ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer,
                   Tokenizer::Create(opened.checkpoint->tokenizer()));
  const EngineInfo& info = opened.engine->info();
  ASSIGN_OR_RETURN(ItemFiles files, OpenItems(options.items, "tasks", options.model, info,
                                              nlohmann::ordered_json::object()));
  std::vector<Row> rows;
  for (const Task* task : tasks) {
    ASSIGN_OR_RETURN(const std::vector<Question> questions, ReadQuestions(*task, options.data));
    const std::vector<int> indices =
        ChooseQuestions(static_cast<int>(questions.size()), options.limit, options.seed);
    RETURN_IF_ERROR(CheckQuestions(*tokenizer, opened.latents.get(), *task, questions, indices,
                                   options.allow_overlap));
    {
      ProgressLine line(task->name);
      RETURN_IF_ERROR(AnswerQuestions(*opened.engine, *tokenizer, task->name, questions, indices,
                                      &files.items, ShowOn(&line)));
    }
    rows.push_back(RowOf(*task, files, indices));
    Print(options, info, rows.back());
  }
  Print(options, info, AverageRow(rows));
  return absl::OkStatus();
}

}  // namespace

absl::Status TasksCommand(Arguments args) {
  Options options;
  CommandLine flags({.program = "latent-eval tasks",
                     .summary = "Zero-shot tasks, worded and scored as lm-evaluation-harness does.",
                     .example = "latent-eval tasks --model model.gguf --latents model.latents "
                                "--data questions --limit 400 --items small.jsonl"});
  AddEvaluationModelFlags(&flags, &options.model);
  flags.Add("data", &options.data, "DIR",
            "folder with piqa.jsonl, arc_easy.jsonl, ...; may be given many times");
  flags.Add(
      "tasks", &options.tasks, "NAME,...",
      "piqa, hellaswag, arc_easy, arc_challenge, winogrande, openbookqa, lambada; empty: all");
  flags.Add("limit", &options.limit, "N", "questions of each task, drawn by --seed; 0: all",
            {.min = 0});
  flags.Add("seed", &options.seed, "N", "of the drawn questions");
  flags.Add("allow-overlap", &options.allow_overlap,
            "measure even on questions that the latents were calibrated on");
  AddItemFlags(&flags, &options.items);
  flags.Add("json", &options.json, "print each task as one JSON object");
  flags.ParseOrExit(args);
  ExitIfWrong("latent-eval tasks", CheckFlags(options));
  return RunTasks(options);
}

}  // namespace latentd
