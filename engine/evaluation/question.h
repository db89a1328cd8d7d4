#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace latentd {

// A question with answers to choose from; with one, whether greedy decoding gives it.
struct Question {
  struct Choice {
    std::string context;
    std::string continuation;  // with the space before it
    int length = 0;            // characters of the answer: what acc_norm divides by
  };
  std::vector<Choice> choices;
  int gold = 0;  // the right one
};

// A zero-shot task as lm-evaluation-harness words and scores it.
struct Task {
  const char* name;
  const char* file;  // of the data folder; .bz2 may follow
  bool normalised;   // acc_norm is among its figures
  // One question from a record: a JSON line, or for HellaSwag six lines.
  absl::StatusOr<Question> (*read)(const std::string& record);
  int lines = 1;  // of a record
};

// piqa, hellaswag, arc_easy, arc_challenge, winogrande, openbookqa, lambada.
absl::Span<const Task> Tasks();

// All questions of a task: from DIR/FILE, or DIR/FILE.bz2, of the first folder that has it.
// NOT_FOUND names the folders; INVALID_ARGUMENT the file and the line.
absl::StatusOr<std::vector<Question>> ReadQuestions(const Task& task,
                                                    const std::vector<std::string>& folders);

// `limit` of [0, count), ascending, a function of the seed; 0: all.
std::vector<int> ChooseQuestions(int count, int limit, uint64_t seed);

}  // namespace latentd
