#include "engine/evaluation/tasks.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace latentd {
namespace {

int Largest(const std::vector<double>& values) {
  return static_cast<int>(std::max_element(values.begin(), values.end()) - values.begin());
}

absl::Status Named(const absl::Status& status, const std::string& task, int index) {
  return absl::Status(status.code(),
                      absl::StrCat(task, ", question ", index, ": ", status.message()));
}

}  // namespace

nlohmann::ordered_json Judge(const Question& question, absl::Span<const ContinuationScore> scores) {
  if (scores.size() == 1) {
    return {{"acc", scores[0].greedy() ? 1 : 0},
            {"logprob", scores[0].logprob},
            {"tokens", scores[0].tokens},
            {"token_acc", static_cast<double>(scores[0].greedy_tokens) / scores[0].tokens}};
  }
  std::vector<double> logprobs, normalised;
  std::vector<int> lengths;
  for (size_t i = 0; i < scores.size(); ++i) {
    lengths.push_back(question.choices[i].length);
    logprobs.push_back(scores[i].logprob);
    normalised.push_back(scores[i].logprob / lengths.back());
  }
  const int choice = Largest(logprobs), choice_norm = Largest(normalised);
  return {{"gold", question.gold},
          {"choice", choice},
          {"choice_norm", choice_norm},
          {"acc", choice == question.gold ? 1 : 0},
          {"acc_norm", choice_norm == question.gold ? 1 : 0},
          {"logprobs", logprobs},
          {"lengths", lengths}};
}

absl::StatusOr<std::vector<Continuation>> EncodeQuestion(const Tokenizer& tokenizer,
                                                         const Question& question) {
  std::vector<Continuation> continuations;
  for (const Question::Choice& choice : question.choices) {
    ASSIGN_OR_RETURN(continuations.emplace_back(),
                     EncodeContinuation(tokenizer, choice.context, choice.continuation));
  }
  return continuations;
}

absl::Status AnswerQuestions(Engine& engine, const Tokenizer& tokenizer, const std::string& task,
                             absl::Span<const Question> questions, absl::Span<const int> indices,
                             ItemsFile* items, const EvaluationProgress& progress) {
  std::vector<int> open;
  for (const int index : indices) {
    if (items->Find({task, index}) == nullptr) open.push_back(index);
  }
  const size_t at_once = std::max(1, engine.info().num_sequences);
  for (size_t begin = 0; begin < open.size(); begin += at_once) {
    const size_t end = std::min(open.size(), begin + at_once);
    std::vector<std::vector<Continuation>> encoded;
    bool greedy = false;
    for (size_t i = begin; i < end; ++i) {
      absl::StatusOr<std::vector<Continuation>> continuations =
          EncodeQuestion(tokenizer, questions[open[i]]);
      if (!continuations.ok()) return Named(continuations.status(), task, open[i]);
      const absl::Status fits = CheckFits(*continuations, engine.info());
      if (!fits.ok()) return Named(fits, task, open[i]);
      encoded.push_back(*std::move(continuations));
      greedy |= encoded.back().size() == 1;
    }
    ASSIGN_OR_RETURN(const auto scores, ScoreContinuations(engine, encoded, greedy));
    for (size_t i = begin; i < end; ++i) {
      RETURN_IF_ERROR(items->Add({task, open[i]}, Judge(questions[open[i]], scores[i - begin])));
    }
    RETURN_IF_ERROR(progress(static_cast<double>(indices.size() - open.size() + end) /
                             static_cast<double>(indices.size())));
  }
  return absl::OkStatus();
}

}  // namespace latentd
