#include "tests/engine/text/text_data.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/random.h"
#include "engine/checkpoint/gguf_config.h"
#include "gtest/gtest.h"

namespace latentd {
namespace {

std::string PathOf(const std::string& name) {
  const char* root = std::getenv("LATENTD_TEST_DATA");
  return absl::StrCat(root == nullptr ? "/nonexistent" : root, "/tokenizers/", name);
}

std::optional<TokenizerSource> ReadGguf(const std::string& path) {
  if (!std::filesystem::exists(path)) return std::nullopt;
  const auto file = GgufFile::Open(path);
  EXPECT_TRUE(file.ok()) << file.status();
  if (!file.ok()) return std::nullopt;
  auto source = ReadGgufTokenizer(**file);
  EXPECT_TRUE(source.ok()) << source.status();
  if (!source.ok()) return std::nullopt;
  return *std::move(source);
}

// UTF-8 of a code point below U+110000.
std::string Utf8Of(uint32_t c) {
  auto tail = [c](int shift) { return static_cast<char>(0x80 | ((c >> shift) & 0x3F)); };
  if (c < 0x80) return {static_cast<char>(c)};
  if (c < 0x800) return {static_cast<char>(0xC0 | (c >> 6)), tail(0)};
  if (c < 0x10000) return {static_cast<char>(0xE0 | (c >> 12)), tail(6), tail(0)};
  return {static_cast<char>(0xF0 | (c >> 18)), tail(12), tail(6), tail(0)};
}

}  // namespace

std::optional<std::string> TokenizerData(const std::string& name) {
  const std::string path = PathOf(name);
  if (!std::filesystem::exists(path)) return std::nullopt;
  const bool compressed = absl::EndsWith(name, ".gz");
  FILE* pipe = popen(absl::StrCat(compressed ? "gzip -dc '" : "cat '", path, "'").c_str(), "r");
  std::string contents;
  char buffer[1 << 16];
  while (const size_t size = fread(buffer, 1, sizeof(buffer), pipe)) contents.append(buffer, size);
  EXPECT_EQ(pclose(pipe), 0) << path;
  return contents;
}

std::optional<TokenizerSource> GgufData(const std::string& name) {
  return ReadGguf(PathOf(absl::StrCat("llamacpp-vocab-gguf/ggml-vocab-", name, ".gguf")));
}

std::optional<TokenizerSource> DemoModelData() { return ReadGguf(LATENTD_DEMO_MODEL); }

std::vector<std::pair<std::string, std::vector<int32_t>>> Fixture(const std::string& name) {
  const std::string base = absl::StrCat("llamacpp-vocab-gguf/ggml-vocab-", name, ".gguf");
  const auto input = TokenizerData(base + ".inp"), output = TokenizerData(base + ".out");
  std::vector<std::pair<std::string, std::vector<int32_t>>> cases;
  if (!input || !output) return cases;
  const std::vector<std::string> texts = absl::StrSplit(*input, "\n__ggml_vocab_test__\n");
  const std::vector<std::string> lines = absl::StrSplit(*output, '\n');
  EXPECT_GE(lines.size(), texts.size());
  for (size_t i = 0; i < texts.size() && i < lines.size(); ++i) {
    std::vector<int32_t> ids;
    for (const auto word : absl::StrSplit(lines[i], ' ', absl::SkipEmpty())) {
      EXPECT_TRUE(absl::SimpleAtoi(word, &ids.emplace_back()));
    }
    cases.emplace_back(texts[i], std::move(ids));
  }
  return cases;
}

const nlohmann::json& Golden() {
  static const nlohmann::json golden = [] {
    std::ifstream file(LATENTD_TEXT_GOLDEN);
    return nlohmann::json::parse(file);
  }();
  return golden;
}

std::string RandomText(uint64_t seed, int num_characters) {
  std::string text;
  for (int i = 0; i < num_characters; ++i) {
    const uint64_t bits = RandomBits(seed, i);
    const uint32_t draw = bits >> 32;
    switch (bits % 8) {
      case 0:
        text += " \n\t  '"[draw % 6];
        break;
      case 1:
        text += static_cast<char>('0' + draw % 10);
        break;
      case 2:
        text += Utf8Of(0xA1 + draw % 0x500);
        break;
      case 3:
        text += Utf8Of(0x4E00 + draw % 0x5000);
        break;
      case 4:
        text += Utf8Of(0x1F300 + draw % 0x300);
        break;
      default:
        text += static_cast<char>('!' + draw % 94);
    }
  }
  return text;
}

GgufVocabulary TinyByteLevel() {
  GgufVocabulary vocabulary;
  vocabulary.model = "gpt2";
  vocabulary.pre_tokenizer = "gpt-2";
  uint32_t other = 0x100;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool stands_for_itself = (byte > 0x20 && byte < 0x7F) || (byte > 0xA0 && byte != 0xAD);
    vocabulary.tokens.push_back(Utf8Of(stands_for_itself ? byte : other++));
    vocabulary.token_types.push_back(1);
  }
  auto add = [&](const std::string& token, int32_t type) {
    vocabulary.tokens.push_back(token);
    vocabulary.token_types.push_back(type);
  };
  add("<s>", 3);
  add("</s>", 3);
  add("<tool>", 4);
  add("he", 1);
  add("\u0120h", 1);
  add("ll", 1);
  add("hell", 1);
  vocabulary.merges = {"h e", "\u0120 h", "l l", "he ll"};
  vocabulary.bos_token_id = 256;
  vocabulary.eos_token_id = 257;
  return vocabulary;
}

GgufVocabulary TinySentencePiece() {
  GgufVocabulary vocabulary;
  vocabulary.model = "llama";
  auto add = [&](const std::string& token, float score, int32_t type) {
    vocabulary.tokens.push_back(token);
    vocabulary.scores.push_back(score);
    vocabulary.token_types.push_back(type);
  };
  add("<unk>", 0, 2);
  add("<s>", 0, 3);
  add("</s>", 0, 3);
  for (int byte = 0; byte < 256; ++byte) add(absl::StrFormat("<0x%02X>", byte), 0, 6);
  float score = 0;
  for (const char* piece :
       {"ll", "he", "\u2581he", "llo", "\u2581hello", "or", "ld", "\u2581w", "\u2581wor",
        "\u2581world", "\u2581", "h", "e", "l", "o", "w", "r", "d", "\u2581\u2581"}) {
    add(piece, --score, 1);
  }
  vocabulary.bos_token_id = 1;
  vocabulary.eos_token_id = 2;
  vocabulary.unknown_token_id = 0;
  return vocabulary;
}

}  // namespace latentd
