#include "engine/evaluation/retrieval.h"

#include <algorithm>
#include <iterator>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/mapped_file.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"

namespace latentd {
namespace {

constexpr const char* kColours[] = {"amber", "blue",  "copper", "crimson", "green",  "grey",
                                    "ivory", "olive", "purple", "red",     "silver", "yellow"};
constexpr const char* kThings[] = {"anchor", "basket",  "bridge", "candle", "drum",  "kettle",
                                   "ladder", "lantern", "mirror", "piano",  "tower", "wagon"};

// Tokens that joining the parts may add, each seam one or two.
constexpr int kSeamTokens = 6;

struct Needle {
  std::string sentence;
  std::string question;
  std::string answer;
};

Needle MakeNeedle(uint64_t seed, uint64_t counter) {
  const uint64_t bits = RandomBits(seed, counter);
  const std::string thing = absl::StrCat(kColours[bits % std::size(kColours)], " ",
                                         kThings[(bits >> 8) % std::size(kThings)]);
  const std::string number = absl::StrCat(1000000 + (bits >> 16) % 9000000);
  return {.sentence = absl::StrCat(" The secret number of the ", thing, " is ", number, "."),
          .question = absl::StrCat("\n\nQuestion: What is the secret number of the ", thing,
                                   "?\nAnswer: The secret number of the ", thing, " is"),
          .answer = absl::StrCat(" ", number)};
}

// The nearest place at or before `place` that follows the end of a sentence; 0: the beginning.
size_t SentenceEnd(const Tokenizer& tokenizer, absl::Span<const int32_t> ids, size_t place) {
  while (place > 0) {
    const std::string_view bytes = tokenizer.TokenBytes(ids[place - 1], false);
    if (bytes.ends_with('.') || bytes.ends_with('\n')) break;
    --place;
  }
  return place;
}

absl::StatusOr<int> Length(const Tokenizer& tokenizer, const std::string& text) {
  ASSIGN_OR_RETURN(const std::vector<int32_t> ids, tokenizer.Encode(text, false, false));
  return static_cast<int>(ids.size());
}

}  // namespace

std::string BuiltInFiller() {
  return " The road along the river is quiet in the morning. A baker opens the shop before the "
         "first train. Two dogs sleep by the gate until the sun reaches them. The teacher walks "
         "past with a bag of books. Some days it rains, and the boats stay in the harbour. The "
         "market sells apples, bread and old tools. Children count the steps up to the church. In "
         "the evening the windows are lit one after the other. Nobody knows who painted the long "
         "wall. The wind turns at night and brings the smell of the sea.";
}

absl::StatusOr<std::vector<Question>> MakeNeedles(const Tokenizer& tokenizer,
                                                  absl::Span<const int32_t> filler, int tokens,
                                                  int prompts, uint64_t seed) {
  if (filler.empty()) return absl::InvalidArgumentError("the filler text has no tokens");
  std::vector<Question> questions;
  for (int i = 0; i < prompts; ++i) {
    const Needle needle = MakeNeedle(seed, 2 * i);
    ASSIGN_OR_RETURN(
        const int fixed,
        Length(tokenizer, absl::StrCat(needle.sentence, needle.question, needle.answer)));
    const int room = tokens - fixed - kSeamTokens;
    if (room < 1) {
      return absl::InvalidArgumentError(absl::StrCat("a prompt of ", tokens,
                                                     " tokens has no room for filler: the needle "
                                                     "and its question take ",
                                                     fixed + kSeamTokens));
    }
    std::vector<int32_t> ids(room);
    const uint64_t first = RandomBits(seed, 2 * i + 1) % filler.size();
    for (int k = 0; k < room; ++k) ids[k] = filler[(first + k) % filler.size()];
    const double depth = prompts > 1 ? static_cast<double>(i) / (prompts - 1) : 0.5;
    const size_t place = SentenceEnd(tokenizer, ids, static_cast<size_t>(depth * room));
    ASSIGN_OR_RETURN(const std::string before,
                     tokenizer.Decode({ids.begin(), ids.begin() + place}, true));
    ASSIGN_OR_RETURN(const std::string after,
                     tokenizer.Decode({ids.begin() + place, ids.end()}, true));
    questions.push_back(
        {.choices = {{.context = absl::StrCat(before, needle.sentence, after, needle.question),
                      .continuation = needle.answer,
                      .length = static_cast<int>(needle.answer.size()) - 1}}});
  }
  return questions;
}

absl::StatusOr<std::vector<Question>> ReadRuler(const std::string& path) {
  ASSIGN_OR_RETURN(const std::shared_ptr<const MappedFile> file, MappedFile::Open(path));
  const absl::string_view text(reinterpret_cast<const char*>(file->bytes().data()),
                               file->bytes().size());
  std::vector<Question> questions;
  int number = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    if (line.empty()) continue;
    const auto json = nlohmann::json::parse(line, nullptr, false);
    const bool good = json.is_object() && json.contains("input") && json["input"].is_string() &&
                      json.contains("outputs") && json["outputs"].is_array() &&
                      !json["outputs"].empty() && json["outputs"][0].is_string();
    if (!good) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ", line ", number,
                       ": is no JSON object with the text \"input\" and the texts \"outputs\""));
    }
    const std::string answer = json["outputs"][0].get<std::string>();
    questions.push_back({.choices = {{.context = json["input"].get<std::string>(),
                                      .continuation = absl::StrCat(" ", answer),
                                      .length = static_cast<int>(answer.size())}}});
  }
  if (questions.empty()) return absl::InvalidArgumentError(absl::StrCat(path, " has no prompts"));
  return questions;
}

}  // namespace latentd
