#pragma once

#include <algorithm>
#include <cctype>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/tokenizer.h"

namespace latentd {

// A word with the space before it is a token, any other character one of its own. Ids are given in
// the order in which words come.
class WordTokenizer final : public Tokenizer {
 public:
  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text, bool, bool) const override {
    std::vector<int32_t> ids;
    for (size_t begin = 0; begin < text.size();) {
      size_t end = begin + 1;
      const auto is_word = [&](size_t i) {
        return i < text.size() && std::isalnum(static_cast<unsigned char>(text[i])) != 0;
      };
      if (is_word(begin) || (text[begin] == ' ' && is_word(end))) {
        while (is_word(end)) ++end;
      }
      ids.push_back(IdOf(std::string(text.substr(begin, end - begin))));
      begin = end;
    }
    return ids;
  }
  absl::StatusOr<std::string> Decode(const std::vector<int32_t>& ids, bool) const override {
    std::string text;
    for (const int32_t id : ids) text += words_[id];
    return text;
  }
  std::string_view TokenBytes(int32_t id, bool) const override { return words_[id]; }
  bool strips_leading_space() const override { return false; }
  int vocab_size() const override { return static_cast<int>(words_.size()); }

 private:
  int32_t IdOf(const std::string& word) const {
    const auto it = std::find(words_.begin(), words_.end(), word);
    if (it != words_.end()) return static_cast<int32_t>(it - words_.begin());
    words_.push_back(word);
    return static_cast<int32_t>(words_.size()) - 1;
  }
  mutable std::vector<std::string> words_;
};

}  // namespace latentd
