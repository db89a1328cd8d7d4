#pragma once

#include <array>
#include <string_view>

namespace latentd {

// How the byte-level BPE tokenizers that GGUF files name cut a text into words. The steps run in
// order, each on the pieces of the one before.
struct PreTokenizer {
  enum class Kind {
    kNone,
    kSplit,              // matches of a regex and what is between them
    kEachDigit,          // every numeric character alone
    kDigitRuns,          // runs of numeric characters
    kPunctuationRuns,    // runs of punctuation
    kGpt2WordsAndBytes,  // GPT-2's regex, then bytes as characters
    kBytes,              // bytes as characters
  };
  struct Step {
    Kind kind = Kind::kNone;
    std::string_view regex;  // of kSplit
  };

  bool nfc = false;            // the text is normalised first
  bool ignore_merges = false;  // a whole word in the vocabulary is a token whatever the merges say
  bool add_bos = false;        // unless the file says otherwise
  std::array<Step, 7> steps;   // kNone from the first unused one on
};

// By the name in tokenizer.ggml.pre; null when it is unknown. No name means GPT-NeoX's.
const PreTokenizer* FindPreTokenizer(std::string_view name);

}  // namespace latentd
