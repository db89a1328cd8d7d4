#include "engine/evaluation/question.h"

#include <bzlib.h>

#include <algorithm>
#include <filesystem>
#include <numeric>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "base/mapped_file.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"

namespace latentd {
namespace {

int Characters(const std::string& text) {
  return static_cast<int>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

Question::Choice Answer(const std::string& context, const std::string& answer) {
  return {
      .context = context, .continuation = absl::StrCat(" ", answer), .length = Characters(answer)};
}

// The fields of a JSON record, or an error that names one.
class Record {
 public:
  static absl::StatusOr<Record> Parse(const std::string& line) {
    Record record;
    record.json_ = nlohmann::json::parse(line, nullptr, false);
    if (!record.json_.is_object()) return absl::InvalidArgumentError("is not a JSON object");
    return record;
  }

  absl::StatusOr<std::string> Text(const char* name) const {
    const auto it = json_.find(name);
    if (it == json_.end() || !it->is_string()) return Missing(name, "text");
    return it->get<std::string>();
  }

  absl::StatusOr<std::vector<std::string>> Texts(const char* name) const {
    const auto it = json_.find(name);
    if (it == json_.end() || !it->is_array() || it->empty()) return Missing(name, "list of texts");
    std::vector<std::string> texts;
    for (const auto& text : *it) {
      if (!text.is_string()) return Missing(name, "list of texts");
      texts.push_back(text.get<std::string>());
    }
    return texts;
  }

  absl::StatusOr<int> Gold(size_t choices) const {
    const auto it = json_.find("gold");
    if (it == json_.end() || !it->is_number_integer()) return Missing("gold", "number");
    return CheckedGold(it->get<int64_t>(), choices);
  }

  static absl::StatusOr<int> CheckedGold(int64_t gold, size_t choices) {
    if (gold >= 0 && gold < static_cast<int64_t>(choices)) return static_cast<int>(gold);
    return absl::InvalidArgumentError(
        absl::StrCat("the right answer is number ", gold, " of ", choices));
  }

 private:
  static absl::Status Missing(const char* name, const char* kind) {
    return absl::InvalidArgumentError(absl::StrCat("has no ", kind, " \"", name, "\""));
  }

  nlohmann::json json_;
};

// {query, choices, gold}: the context is the query and `suffix`.
absl::StatusOr<Question> ReadChoices(const std::string& line, const char* suffix) {
  ASSIGN_OR_RETURN(const Record record, Record::Parse(line));
  ASSIGN_OR_RETURN(const std::string query, record.Text("query"));
  ASSIGN_OR_RETURN(const std::vector<std::string> choices, record.Texts("choices"));
  Question question;
  ASSIGN_OR_RETURN(question.gold, record.Gold(choices.size()));
  for (const std::string& choice : choices) {
    question.choices.push_back(Answer(absl::StrCat(query, suffix), choice));
  }
  return question;
}

absl::StatusOr<Question> ReadPiqa(const std::string& line) { return ReadChoices(line, "Answer:"); }
absl::StatusOr<Question> ReadArc(const std::string& line) { return ReadChoices(line, "\nAnswer:"); }
absl::StatusOr<Question> ReadOpenBookQa(const std::string& line) { return ReadChoices(line, ""); }

// {context_options, continuation, gold}: the contexts differ, what is scored is the same.
absl::StatusOr<Question> ReadWinoGrande(const std::string& line) {
  ASSIGN_OR_RETURN(const Record record, Record::Parse(line));
  ASSIGN_OR_RETURN(const std::vector<std::string> contexts, record.Texts("context_options"));
  ASSIGN_OR_RETURN(const std::string continuation, record.Text("continuation"));
  Question question;
  ASSIGN_OR_RETURN(question.gold, record.Gold(contexts.size()));
  for (const std::string& context : contexts) {
    question.choices.push_back(Answer(context, continuation));
  }
  return question;
}

// {context, continuation}: the last word of a passage.
absl::StatusOr<Question> ReadLambada(const std::string& line) {
  ASSIGN_OR_RETURN(const Record record, Record::Parse(line));
  ASSIGN_OR_RETURN(const std::string context, record.Text("context"));
  ASSIGN_OR_RETURN(const std::string continuation, record.Text("continuation"));
  return Question{.choices = {Answer(context, continuation)}};
}

// HellaSwag's texts come from subtitles and wikiHow: bracketed marks go, double spaces become one.
std::string Cleaned(absl::string_view text) {
  std::string kept;
  for (size_t i = 0; i < text.size(); ++i) {
    const size_t close = text[i] == '[' ? text.find(']', i) : absl::string_view::npos;
    if (close != absl::string_view::npos) {
      i = close;
    } else {
      kept += text[i];
    }
  }
  return absl::StrReplaceAll(absl::StripAsciiWhitespace(kept), {{"  ", " "}});
}

// Context, number of the right ending, four endings: a line each.
absl::StatusOr<Question> ReadHellaSwag(const std::string& record) {
  const std::vector<std::string> lines = absl::StrSplit(record, '\n');
  int64_t gold = -1;
  if (!absl::SimpleAtoi(lines[1], &gold)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the number of the right ending is \"", lines[1], "\""));
  }
  Question question;
  ASSIGN_OR_RETURN(question.gold, Record::CheckedGold(gold, lines.size() - 2));
  const std::string context = Cleaned(lines[0]);
  for (size_t i = 2; i < lines.size(); ++i) {
    question.choices.push_back(Answer(context, Cleaned(lines[i])));
  }
  return question;
}

constexpr Task kTasks[] = {
    {"piqa", "piqa.jsonl", true, ReadPiqa},
    {"hellaswag", "hellaswag_val_full.txt", true, ReadHellaSwag, 6},
    {"arc_easy", "arc_easy.jsonl", true, ReadArc},
    {"arc_challenge", "arc_challenge.jsonl", true, ReadArc},
    {"winogrande", "winogrande.jsonl", false, ReadWinoGrande},
    {"openbookqa", "openbook_qa.jsonl", true, ReadOpenBookQa},
    {"lambada", "lambada_openai.jsonl", false, ReadLambada},
};

absl::StatusOr<std::string> Unpacked(const std::string& path) {
  BZFILE* file = BZ2_bzopen(path.c_str(), "rb");
  if (file == nullptr) return absl::NotFoundError(absl::StrCat(path, " cannot be opened"));
  const auto close = absl::MakeCleanup([file] { BZ2_bzclose(file); });
  std::string text;
  std::vector<char> buffer(1 << 20);
  for (;;) {
    const int count = BZ2_bzread(file, buffer.data(), static_cast<int>(buffer.size()));
    if (count < 0) return absl::InvalidArgumentError(absl::StrCat(path, " is not whole bzip2"));
    if (count == 0) return text;
    text.append(buffer.data(), count);
  }
}

absl::StatusOr<std::string> FindText(const Task& task, const std::vector<std::string>& folders,
                                     std::string* path) {
  for (const std::string& folder : folders) {
    *path = absl::StrCat(folder, "/", task.file);
    if (std::filesystem::exists(*path)) {
      ASSIGN_OR_RETURN(const std::shared_ptr<const MappedFile> file, MappedFile::Open(*path));
      return std::string(reinterpret_cast<const char*>(file->bytes().data()), file->bytes().size());
    }
    absl::StrAppend(path, ".bz2");
    if (std::filesystem::exists(*path)) return Unpacked(*path);
  }
  return absl::NotFoundError(absl::StrCat("no ", task.file, " (or .bz2) for the task ", task.name,
                                          " in --data ", absl::StrJoin(folders, ", ")));
}

}  // namespace

absl::Span<const Task> Tasks() { return kTasks; }

absl::StatusOr<std::vector<Question>> ReadQuestions(const Task& task,
                                                    const std::vector<std::string>& folders) {
  std::string path;
  ASSIGN_OR_RETURN(const std::string text, FindText(task, folders, &path));
  std::vector<absl::string_view> lines = absl::StrSplit(text, '\n');
  if (lines.back().empty()) lines.pop_back();
  if (lines.empty() || lines.size() % task.lines != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " has ", lines.size(), " lines, a question takes ", task.lines));
  }
  std::vector<Question> questions;
  for (size_t i = 0; i < lines.size(); i += task.lines) {
    absl::StatusOr<Question> question =
        task.read(absl::StrJoin(lines.begin() + i, lines.begin() + i + task.lines, "\n"));
    if (!question.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ", line ", i + 1, ": ", question.status().message()));
    }
    questions.push_back(*std::move(question));
  }
  return questions;
}

std::vector<int> ChooseQuestions(int count, int limit, uint64_t seed) {
  std::vector<int> chosen(count);
  std::iota(chosen.begin(), chosen.end(), 0);
  if (limit == 0 || limit >= count) return chosen;
  for (int i = 0; i < limit; ++i) {  // the first `limit` steps of a Fisher-Yates shuffle
    std::swap(chosen[i], chosen[i + RandomBits(seed, i) % (count - i)]);
  }
  chosen.resize(limit);
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

}  // namespace latentd
