#include "engine/text/gguf_tokenizer.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/text/pre_tokenizer.h"
#include "engine/text/utf8.h"

namespace latentd {
namespace {

using nlohmann::json;

constexpr std::string_view kMetaspace = "\xE2\x96\x81";  // U+2581, SentencePiece's space

enum TokenType : int32_t { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kByte = 6 };

int32_t TypeOf(const GgufVocabulary& vocabulary, size_t id) {
  return vocabulary.token_types.empty() ? int32_t{kNormal} : vocabulary.token_types[id];
}

absl::Status CheckSizes(const GgufVocabulary& v) {
  const size_t n = v.tokens.size();
  if (n == 0) return absl::InvalidArgumentError("the vocabulary has no tokens");
  if (!v.token_types.empty() && v.token_types.size() != n) {
    return absl::InvalidArgumentError(
        absl::StrCat("the vocabulary has ", n, " tokens but ", v.token_types.size(), " types"));
  }
  if (v.model == "llama" && v.scores.size() != n) {
    return absl::InvalidArgumentError(
        absl::StrCat("the vocabulary has ", n, " tokens but ", v.scores.size(), " scores"));
  }
  for (const int32_t id : {v.bos_token_id, v.eos_token_id, v.unknown_token_id}) {
    if (id < -1 || id >= static_cast<int64_t>(n)) {
      return absl::InvalidArgumentError(
          absl::StrCat("special token id ", id, " is outside the vocabulary of ", n));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<json> VocabOf(const GgufVocabulary& vocabulary) {
  json vocab = json::object();
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    const std::string& token = vocabulary.tokens[id];
    if (!IsUtf8(token)) {
      return absl::InvalidArgumentError(absl::StrCat("token ", id, " is not UTF-8"));
    }
    const auto [entry, is_new] = vocab.emplace(token, id);
    if (!is_new) {
      return absl::InvalidArgumentError(
          absl::StrCat("tokens ", entry->dump(), " and ", id, " are the same: '", token, "'"));
    }
  }
  return vocab;
}

json AddedTokensOf(const GgufVocabulary& vocabulary) {
  json added = json::array();
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    const int32_t type = TypeOf(vocabulary, id);
    if (type != kControl && type != kUnknown && type != kUserDefined) continue;
    added.push_back({{"id", id},
                     {"content", vocabulary.tokens[id]},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", type != kUserDefined}});
  }
  return added;
}

absl::StatusOr<json> BytePairMerges(const GgufVocabulary& vocabulary) {
  json merges = json::array();
  for (size_t i = 0; i < vocabulary.merges.size(); ++i) {
    const std::string& merge = vocabulary.merges[i];
    const size_t space = merge.find(' ', 1);
    if (space == std::string::npos || !IsUtf8(merge)) {
      return absl::InvalidArgumentError(absl::StrCat("merge ", i, " is no pair of tokens"));
    }
    merges.push_back({merge.substr(0, space), merge.substr(space + 1)});
  }
  return merges;
}

size_t NumCharacters(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; });
}

// SentencePiece merges the neighbours whose joint piece has the best score. As a ranked list of
// merges: every way to cut a piece into two pieces, by score, then the longer left part first (the
// order of Hugging Face's conversion).
absl::StatusOr<json> SentencePieceMerges(const GgufVocabulary& vocabulary) {
  struct Merge {
    std::string_view left, right;
    float score;
    size_t left_characters, right_characters;
  };
  absl::flat_hash_map<std::string_view, size_t> pieces;
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    if (!std::isfinite(vocabulary.scores[id])) {
      return absl::InvalidArgumentError(
          absl::StrCat("the score of token ", id, " is ", vocabulary.scores[id]));
    }
    if (TypeOf(vocabulary, id) == kNormal) pieces.emplace(vocabulary.tokens[id], id);
  }
  std::vector<Merge> merges;
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    const std::string_view piece = vocabulary.tokens[id];
    if (TypeOf(vocabulary, id) != kNormal) continue;
    for (size_t cut = 1; cut < piece.size(); ++cut) {
      if ((piece[cut] & 0xC0) == 0x80) continue;  // inside a character
      const std::string_view left = piece.substr(0, cut), right = piece.substr(cut);
      if (!pieces.contains(left) || !pieces.contains(right)) continue;
      merges.push_back(
          {left, right, vocabulary.scores[id], NumCharacters(left), NumCharacters(right)});
    }
  }
  std::stable_sort(merges.begin(), merges.end(), [](const Merge& a, const Merge& b) {
    return std::tie(b.score, b.left_characters, b.right_characters) <
           std::tie(a.score, a.left_characters, a.right_characters);
  });
  json list = json::array();
  for (const Merge& merge : merges) list.push_back({merge.left, merge.right});
  return list;
}

json StepJson(const PreTokenizer::Step& step) {
  using Kind = PreTokenizer::Kind;
  switch (step.kind) {
    case Kind::kSplit:
      return {{"type", "Split"},
              {"pattern", {{"Regex", step.regex}}},
              {"behavior", "Isolated"},
              {"invert", false}};
    case Kind::kEachDigit:
    case Kind::kDigitRuns:
      return {{"type", "Digits"}, {"individual_digits", step.kind == Kind::kEachDigit}};
    case Kind::kPunctuationRuns:
      return {{"type", "Punctuation"}, {"behavior", "Contiguous"}};
    case Kind::kGpt2WordsAndBytes:
    case Kind::kBytes:
    case Kind::kNone:
      break;
  }
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", true},
          {"use_regex", step.kind == Kind::kGpt2WordsAndBytes}};
}

json PreTokenizerJson(const PreTokenizer& pre_tokenizer) {
  json steps = json::array();
  for (const PreTokenizer::Step& step : pre_tokenizer.steps) {
    if (step.kind != PreTokenizer::Kind::kNone) steps.push_back(StepJson(step));
  }
  return {{"type", "Sequence"}, {"pretokenizers", std::move(steps)}};
}

// What add_special adds around a text.
absl::StatusOr<json> PostProcessorJson(const GgufVocabulary& vocabulary, bool bos_by_default) {
  json single = json::array(), special = json::object();
  auto add = [&](const char* name, std::optional<bool> wanted, bool by_default, int32_t id) {
    if (!wanted.value_or(by_default && id >= 0)) return absl::OkStatus();
    if (id < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("tokenizer.ggml.add_", name, "_token is set but there is no such token"));
    }
    const std::string& token = vocabulary.tokens[id];
    single.push_back({{"SpecialToken", {{"id", token}, {"type_id", 0}}}});
    special[token] = {{"id", token}, {"ids", {id}}, {"tokens", {token}}};
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(add("bos", vocabulary.add_bos, bos_by_default, vocabulary.bos_token_id));
  single.push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
  RETURN_IF_ERROR(add("eos", vocabulary.add_eos, false, vocabulary.eos_token_id));
  return json{{"type", "TemplateProcessing"},
              {"single", single},
              {"pair",
               {{{"Sequence", {{"id", "A"}, {"type_id", 0}}}},
                {{"Sequence", {{"id", "B"}, {"type_id", 1}}}}}},
              {"special_tokens", special}};
}

json Replace(std::string_view from, std::string_view to) {
  return {{"type", "Replace"}, {"pattern", {{"String", from}}}, {"content", to}};
}

// Fills normalizer, pre_tokenizer, decoder and model's merges of a byte-level BPE vocabulary.
absl::Status AddBytePair(const GgufVocabulary& vocabulary, json* out) {
  const PreTokenizer* pre_tokenizer = FindPreTokenizer(vocabulary.pre_tokenizer);
  if (pre_tokenizer == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("pre-tokenizer '", vocabulary.pre_tokenizer, "' is not supported"));
  }
  if (pre_tokenizer->nfc) (*out)["normalizer"] = {{"type", "NFC"}};
  (*out)["pre_tokenizer"] = PreTokenizerJson(*pre_tokenizer);
  (*out)["decoder"] = StepJson({PreTokenizer::Kind::kBytes});
  json& model = (*out)["model"];
  model["ignore_merges"] = pre_tokenizer->ignore_merges;
  ASSIGN_OR_RETURN(model["merges"], BytePairMerges(vocabulary));
  ASSIGN_OR_RETURN((*out)["post_processor"], PostProcessorJson(vocabulary, pre_tokenizer->add_bos));
  return absl::OkStatus();
}

absl::Status AddSentencePiece(const GgufVocabulary& vocabulary, json* out) {
  const bool space_prefix = vocabulary.add_space_prefix.value_or(true);
  json normalizers = json::array();
  if (space_prefix) normalizers.push_back({{"type", "Prepend"}, {"prepend", kMetaspace}});
  normalizers.push_back(Replace(" ", kMetaspace));
  (*out)["normalizer"] = {{"type", "Sequence"}, {"normalizers", std::move(normalizers)}};

  json decoders = {Replace(kMetaspace, " "), {{"type", "ByteFallback"}}, {{"type", "Fuse"}}};
  if (space_prefix) {
    decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  }
  (*out)["decoder"] = {{"type", "Sequence"}, {"decoders", std::move(decoders)}};

  json& model = (*out)["model"];
  model["fuse_unk"] = true;
  model["byte_fallback"] = true;
  if (vocabulary.unknown_token_id >= 0) {
    model["unk_token"] = vocabulary.tokens[vocabulary.unknown_token_id];
  }
  ASSIGN_OR_RETURN(model["merges"], SentencePieceMerges(vocabulary));
  ASSIGN_OR_RETURN((*out)["post_processor"], PostProcessorJson(vocabulary, true));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> TokenizerJsonOf(const GgufVocabulary& vocabulary) {
  RETURN_IF_ERROR(CheckSizes(vocabulary));
  json out = {{"version", "1.0"},
              {"added_tokens", AddedTokensOf(vocabulary)},
              {"model", {{"type", "BPE"}}}};
  ASSIGN_OR_RETURN(out["model"]["vocab"], VocabOf(vocabulary));
  if (vocabulary.model == "gpt2") {
    RETURN_IF_ERROR(AddBytePair(vocabulary, &out));
  } else if (vocabulary.model == "llama") {
    RETURN_IF_ERROR(AddSentencePiece(vocabulary, &out));
  } else {
    return absl::InvalidArgumentError(absl::StrCat("tokenizer model '", vocabulary.model,
                                                   "' is not supported (gpt2 and llama are)"));
  }
  return out.dump();
}

}  // namespace latentd
