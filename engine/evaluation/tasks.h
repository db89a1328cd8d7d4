#pragma once

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/engine.h"
#include "engine/evaluation/continuation.h"
#include "engine/evaluation/items_file.h"
#include "engine/evaluation/question.h"
#include "engine/evaluation/windows.h"
#include "engine/text/tokenizer.h"

namespace latentd {

// A question's result, by the rules of lm-evaluation-harness: `choice` has the greatest log
// likelihood, `choice_norm` the greatest one per character of the answer (the first among equals);
// acc and acc_norm are 1 when that is the right one, else 0. With one answer, acc is 1 when greedy
// decoding gives it, token_acc is the share of its tokens that are the likeliest given all before:
//
//   {gold, choice, choice_norm, acc, acc_norm, logprobs: [...], lengths: [...]}
//   {acc, logprob, tokens, token_acc}
nlohmann::ordered_json Judge(const Question& question, absl::Span<const ContinuationScore> scores);

// The tokens of every choice's context and continuation.
absl::StatusOr<std::vector<Continuation>> EncodeQuestion(const Tokenizer& tokenizer,
                                                         const Question& question);

// Scores those of the questions `indices` that `items` does not have yet, as many at a time as the
// engine has seats, and adds them under the task's name. The error names task and question
// where it is a question's.
absl::Status AnswerQuestions(Engine& engine, const Tokenizer& tokenizer, const std::string& task,
                             absl::Span<const Question> questions, absl::Span<const int> indices,
                             ItemsFile* items, const EvaluationProgress& progress);

}  // namespace latentd
