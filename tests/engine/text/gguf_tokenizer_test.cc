#include "engine/text/gguf_tokenizer.h"

#include <limits>

#include "engine/checkpoint/dummy_weights.h"
#include "engine/text/pre_tokenizer.h"
#include "engine/text/tokenizer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/text/text_data.h"

namespace latentd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

void ExpectRefused(const GgufVocabulary& vocabulary, const std::string& part) {
  const auto json = TokenizerJsonOf(vocabulary);
  EXPECT_EQ(json.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(json.status().message(), HasSubstr(part));
}

std::vector<int32_t> Encode(const GgufVocabulary& vocabulary, const std::string& text) {
  const auto tokenizer = Tokenizer::Create({.gguf = vocabulary});
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? (*tokenizer)->Encode(text, true, true).value() : std::vector<int32_t>();
}

TEST(GgufTokenizerTest, ADummyTokenizerHasATokenForEachByte) {
  const auto tokenizer = Tokenizer::Create(DummyTokenizer());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const std::string text = "  a\xc3\xb6\n b\x01";
  const auto ids = (*tokenizer)->Encode(text, /*add_special=*/true, /*parse_special=*/true);
  ASSERT_TRUE(ids.ok()) << ids.status();
  EXPECT_THAT(*ids, ElementsAre(256, 256, 'a', 0xc3, 0xb6, '\n', 256, 'b', 1));
  EXPECT_EQ(*(*tokenizer)->Decode(*ids, /*skip_special=*/true), text);
  EXPECT_EQ(*(*tokenizer)->Decode({100000}, /*skip_special=*/true), "");
}

TEST(GgufTokenizerTest, AnErrorNamesTheModel) {
  EXPECT_EQ(Tokenizer::Create({.path = "models/x"}).status().message(),
            "models/x: there is no tokenizer.json, so this model has no tokenizer");
  EXPECT_THAT(Tokenizer::Create({.tokenizer_json = "{", .path = "models/x"}).status().message(),
              HasSubstr("models/x: "));
}

TEST(GgufTokenizerTest, WhatIsUnknownIsNamed) {
  GgufVocabulary vocabulary = TinyByteLevel();
  vocabulary.model = "rwkv";
  ExpectRefused(vocabulary, "'rwkv'");
  vocabulary = TinyByteLevel();
  vocabulary.pre_tokenizer = "klingon";
  ExpectRefused(vocabulary, "'klingon'");
}

TEST(GgufTokenizerTest, WhatIsInconsistentIsNamed) {
  GgufVocabulary vocabulary = TinyByteLevel();
  vocabulary.token_types.pop_back();
  ExpectRefused(vocabulary, "263 tokens but 262 types");
  vocabulary = TinySentencePiece();
  vocabulary.scores.pop_back();
  ExpectRefused(vocabulary, "278 tokens but 277 scores");
  vocabulary = TinySentencePiece();
  vocabulary.scores[270] = std::numeric_limits<float>::quiet_NaN();
  ExpectRefused(vocabulary, "score of token 270");
  vocabulary = TinyByteLevel();
  vocabulary.tokens[260] = "!";
  ExpectRefused(vocabulary, "33 and 260");
  vocabulary = TinyByteLevel();
  vocabulary.tokens[260] = "\xFF";
  ExpectRefused(vocabulary, "token 260 is not UTF-8");
  vocabulary = TinyByteLevel();
  vocabulary.merges[1] = "alone";
  ExpectRefused(vocabulary, "merge 1");
  vocabulary = TinyByteLevel();
  vocabulary.eos_token_id = 263;
  ExpectRefused(vocabulary, "263");
  vocabulary = TinyByteLevel();
  vocabulary.bos_token_id = -1;
  vocabulary.add_bos = true;
  ExpectRefused(vocabulary, "tokenizer.ggml.add_bos_token");
  ExpectRefused(GgufVocabulary{.model = "gpt2"}, "no tokens");
}

TEST(GgufTokenizerTest, MergesOfUnknownTokensAreRefused) {
  GgufVocabulary vocabulary = TinyByteLevel();
  vocabulary.merges.push_back("x y");
  EXPECT_EQ(Tokenizer::Create({.gguf = vocabulary}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

// Every pre-tokenizer by name: its patterns compile, and it loses nothing.
TEST(GgufTokenizerTest, EveryNamedPreTokenizerKeepsTheText) {
  for (const char* name :
       {"",       "default",    "gpt-2",       "phi-2",        "olmo",           "mpt",
        "smollm", "starcoder",  "refact",      "command-r",    "llama-bpe",      "llama3",
        "glm4",   "dbrx",       "chatglm-bpe", "qwen2",        "stablelm2",      "hunyuan",
        "qwen35", "seed-coder", "bailingmoe",  "tekken",       "gpt-4o",         "llama4",
        "bloom",  "viking",     "falcon",      "deepseek-llm", "deepseek-coder", "deepseek-v3"}) {
    GgufVocabulary vocabulary = TinyByteLevel();
    vocabulary.pre_tokenizer = name;
    const auto tokenizer = Tokenizer::Create({.gguf = vocabulary});
    ASSERT_TRUE(tokenizer.ok()) << name << ": " << tokenizer.status();
    for (int seed = 0; seed < 20; ++seed) {
      const std::string text = RandomText(seed, 60);
      const auto ids = (*tokenizer)->Encode(text, false, false).value();
      EXPECT_EQ((*tokenizer)->Decode(ids, true).value(), text) << name;
    }
  }
}

TEST(GgufTokenizerTest, PreTokenizersDecideWhatMayMerge) {
  GgufVocabulary vocabulary = TinyByteLevel();
  auto add = [&](const std::string& left, const std::string& right) {
    vocabulary.tokens.push_back(left + right);
    vocabulary.token_types.push_back(1);
    vocabulary.merges.push_back(left + " " + right);
  };
  add("1", "1");
  add("11", "1");
  add("11", "11");
  const int32_t two = 263, three = 264, four = 265;
  auto ids = [&](const char* name) {
    vocabulary.pre_tokenizer = name;
    vocabulary.add_bos = false;
    return Encode(vocabulary, "1111");
  };
  EXPECT_THAT(ids("gpt-2"), ElementsAre(four));
  EXPECT_THAT(ids("smollm"), ElementsAre('1', '1', '1', '1'));
  EXPECT_THAT(ids("qwen2"), ElementsAre('1', '1', '1', '1'));
  EXPECT_THAT(ids("llama-bpe"), ElementsAre(three, '1'));
  EXPECT_THAT(ids("falcon"), ElementsAre(three, '1'));
  EXPECT_EQ(two + 1, three);
}

TEST(GgufTokenizerTest, BosAndSpacePrefixHaveTheirFormatsDefaults) {
  GgufVocabulary vocabulary = TinyByteLevel();
  EXPECT_THAT(Encode(vocabulary, "x"), ElementsAre('x'));
  vocabulary.pre_tokenizer = "llama-bpe";
  EXPECT_THAT(Encode(vocabulary, "x"), ElementsAre(256, 'x'));
  vocabulary.add_bos = false;
  EXPECT_THAT(Encode(vocabulary, "x"), ElementsAre('x'));
  GgufVocabulary pieces = TinySentencePiece();
  EXPECT_THAT(Encode(pieces, "he"), ElementsAre(1, 261));
  pieces.add_space_prefix = false;
  pieces.add_bos = false;
  pieces.add_eos = true;
  EXPECT_THAT(Encode(pieces, "he"), ElementsAre(260, 2));
}

TEST(GgufTokenizerTest, SentencePieceMergesByScoreAndFallsBackToBytes) {
  GgufVocabulary vocabulary = TinySentencePiece();
  vocabulary.add_bos = false;
  EXPECT_THAT(Encode(vocabulary, "ord"), ElementsAre(269, 264, 276));
  vocabulary.tokens.push_back("rd");  // the last piece, with the best score
  vocabulary.scores.push_back(1);
  vocabulary.token_types.push_back(1);
  EXPECT_THAT(Encode(vocabulary, "ord"), ElementsAre(269, 273, 278));
  EXPECT_THAT(Encode(vocabulary, "o\u00e9"), ElementsAre(269, 273, 3 + 0xC3, 3 + 0xA9));
}

}  // namespace
}  // namespace latentd
