#include "engine/text/tokenizer.h"

#include <ctime>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/text/text_data.h"

namespace latentd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::unique_ptr<Tokenizer> MakeTokenizer(const TokenizerSource& source) {
  auto tokenizer = Tokenizer::Create(source);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

std::unique_ptr<Tokenizer> MakeTokenizer(const GgufVocabulary& vocabulary) {
  return MakeTokenizer(TokenizerSource{.gguf = vocabulary});
}

void ExpectFixture(const Tokenizer& tokenizer, const std::string& name) {
  const auto cases = Fixture(name);
  ASSERT_GT(cases.size(), 40u);
  for (const auto& [text, ids] : cases) {
    const auto encoded = tokenizer.Encode(text, false, false);
    ASSERT_TRUE(encoded.ok()) << encoded.status();
    EXPECT_EQ(*encoded, ids) << name << ": '" << text << "'";
    EXPECT_EQ(tokenizer.Decode(*encoded, false).value(), text) << name;
  }
}

class GgufFixtureTest : public ::testing::TestWithParam<const char*> {};

TEST_P(GgufFixtureTest, GivesTheIdsOfTheOriginal) {
  const auto source = GgufData(GetParam());
  if (!source) GTEST_SKIP() << "no vocabulary " << GetParam() << " in LATENTD_TEST_DATA";
  const auto tokenizer = MakeTokenizer(*source);
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_EQ(tokenizer->vocab_size(), static_cast<int>(source->gguf->tokens.size()));
  ExpectFixture(*tokenizer, GetParam());
}

INSTANTIATE_TEST_SUITE_P(Vocabularies, GgufFixtureTest,
                         ::testing::Values("gpt-2", "llama-spm", "phi-3", "starcoder"));

struct JsonCase {
  const char* file;
  const char* fixture;
};

class JsonFixtureTest : public ::testing::TestWithParam<JsonCase> {};

TEST_P(JsonFixtureTest, GivesTheIdsOfTheOriginal) {
  const auto json = TokenizerData(GetParam().file);
  if (!json) GTEST_SKIP() << "no " << GetParam().file << " in LATENTD_TEST_DATA";
  const auto tokenizer = MakeTokenizer(TokenizerSource{.tokenizer_json = *json});
  ASSERT_NE(tokenizer, nullptr);
  ExpectFixture(*tokenizer, GetParam().fixture);
}

INSTANTIATE_TEST_SUITE_P(Vocabularies, JsonFixtureTest,
                         ::testing::Values(JsonCase{"npm-lenml-llama3_1/tokenizer.json.gz",
                                                    "llama-bpe"},
                                           JsonCase{"npm-lenml-qwen3/tokenizer.json.gz", "qwen2"}));

// GPT-NeoX as GGUF metadata and as tokenizer.json: two ways, one answer.
TEST(TokenizerTest, GgufAndJsonGiveTheSameIdsAndText) {
  const auto gguf = GgufData("gpt-neox");
  const auto json = TokenizerData("gpt-neox-20b/allenai_eleuther-ai-gpt-neox-20b-pii-special.json");
  if (!gguf || !json) GTEST_SKIP() << "no GPT-NeoX in LATENTD_TEST_DATA";
  const auto a = MakeTokenizer(*gguf), b = MakeTokenizer(TokenizerSource{.tokenizer_json = *json});
  ASSERT_TRUE(a && b);
  std::vector<std::string> texts = {"e\u0301 <|endoftext|> x</s> \n\n  \t   end"};
  for (const auto& [text, ids] : Fixture("gpt-2")) texts.push_back(text);
  for (int seed = 0; seed < 50; ++seed) texts.push_back(RandomText(seed, 1 + 4 * seed));
  for (const std::string& text : texts) {
    for (const bool parse_special : {false, true}) {
      const auto ids = a->Encode(text, false, parse_special);
      ASSERT_TRUE(ids.ok()) << ids.status();
      EXPECT_EQ(*ids, b->Encode(text, false, parse_special).value()) << text;
      EXPECT_EQ(a->Decode(*ids, true).value(), b->Decode(*ids, true).value());
    }
  }
}

void ExpectGolden(const Tokenizer& tokenizer, const char* name, bool parse_special) {
  for (const auto& entry : Golden()["ids"][name]) {
    const auto text = entry["text"].get<std::string>();
    const auto ids = tokenizer.Encode(text, false, parse_special).value();
    EXPECT_EQ(ids, entry["ids"].get<std::vector<int32_t>>()) << text;
    EXPECT_EQ(tokenizer.Decode(ids, false).value(), text);
  }
}

TEST(TokenizerTest, TheDemoModelGivesTheIdsOfLlamaCpp) {
  const auto source = DemoModelData();
  if (!source) GTEST_SKIP() << "the demo model is not there";
  const auto tokenizer = MakeTokenizer(*source);
  ASSERT_NE(tokenizer, nullptr);
  ExpectGolden(*tokenizer, "demo", /*parse_special=*/true);
  ExpectGolden(*tokenizer, "demo_plain", /*parse_special=*/false);
}

TEST(TokenizerTest, MistralGivesTheIdsOfSentencePiece) {
  const auto json = TokenizerData("npm-lenml-llama2/tokenizer.json.gz");  // is Mistral 7B's
  if (!json) GTEST_SKIP() << "no Mistral in LATENTD_TEST_DATA";
  const auto tokenizer = MakeTokenizer(TokenizerSource{.tokenizer_json = *json});
  ASSERT_NE(tokenizer, nullptr);
  ExpectGolden(*tokenizer, "mistral", /*parse_special=*/false);
}

TEST(TokenizerTest, BytePairMergesInsideWordsOnly) {
  const auto tokenizer = MakeTokenizer(TinyByteLevel());
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_THAT(tokenizer->Encode("hello he ll", false, false).value(),
              ElementsAre(262, 'o', ' ', 259, ' ', 261));
}

TEST(TokenizerTest, SentencePiecePutsASpaceFirstAndDecodingTakesItAway) {
  const auto tokenizer = MakeTokenizer(TinySentencePiece());
  ASSERT_NE(tokenizer, nullptr);
  const auto ids = tokenizer->Encode("hello world", true, false).value();
  EXPECT_THAT(ids, ElementsAre(1, 263, 268));
  EXPECT_EQ(tokenizer->Decode(ids, true).value(), "hello world");
  EXPECT_EQ(tokenizer->Decode({263, 268}, true).value(), "hello world");
  EXPECT_EQ(tokenizer->Decode(ids, false).value(), "<s> hello world");
}

TEST(TokenizerTest, SpecialTokensAreAddedAndParsedOnRequestOnly) {
  GgufVocabulary vocabulary = TinyByteLevel();
  vocabulary.add_bos = vocabulary.add_eos = true;
  const auto tokenizer = MakeTokenizer(vocabulary);
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_THAT(tokenizer->Encode("<s>x", true, true).value(), ElementsAre(256, 256, 'x', 257));
  EXPECT_THAT(tokenizer->Encode("<s>x", false, false).value(), ElementsAre('<', 's', '>', 'x'));
  EXPECT_THAT(tokenizer->Encode("<tool>", false, false).value(), ElementsAre(258));
  EXPECT_EQ(tokenizer->Decode({256, 'x', 258, 257}, true).value(), "x<tool>");
  EXPECT_EQ(tokenizer->Decode({256, 'x', 257}, false).value(), "<s>x</s>");
}

TEST(TokenizerTest, EveryTextComesBack) {
  for (const GgufVocabulary& vocabulary : {TinyByteLevel(), TinySentencePiece()}) {
    const auto tokenizer = MakeTokenizer(vocabulary);
    ASSERT_NE(tokenizer, nullptr);
    std::vector<std::string> texts = {"", std::string("\0a\0", 3), " ", "  lead", "\n"};
    for (int seed = 0; seed < 100; ++seed) texts.push_back(RandomText(seed, seed));
    for (const std::string& text : texts) {
      const auto ids = tokenizer->Encode(text, true, false).value();
      EXPECT_EQ(tokenizer->Decode(ids, true).value(), text);
    }
  }
}

TEST(TokenizerTest, TextThatIsNotUtf8IsRefusedWithItsOffset) {
  const auto tokenizer = MakeTokenizer(TinyByteLevel());
  ASSERT_NE(tokenizer, nullptr);
  const auto ids = tokenizer->Encode("ab\xC3(cd", false, false);
  EXPECT_EQ(ids.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(ids.status().message(), HasSubstr("byte 2 of 6"));
}

TEST(TokenizerTest, IdsOutsideTheVocabulary) {
  const auto tokenizer = MakeTokenizer(TinyByteLevel());
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_EQ(tokenizer->Decode({'a', 100000, 'b'}, true).value(), "ab");
  EXPECT_EQ(tokenizer->Decode({-1}, true).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(TokenizerTest, BrokenSourcesAreRefused) {
  EXPECT_EQ(Tokenizer::Create({}).status().code(), absl::StatusCode::kInvalidArgument);
  for (const char* json : {"{", "[]", "{\"model\": 1}", "null"}) {
    EXPECT_EQ(Tokenizer::Create({.tokenizer_json = json}).status().code(),
              absl::StatusCode::kInvalidArgument)
        << json;
  }
}

// No text may keep a worker busy for a time that grows with its square.
TEST(TokenizerTest, LongTextsTakeLinearTime) {
  for (const GgufVocabulary& vocabulary : {TinyByteLevel(), TinySentencePiece()}) {
    const auto tokenizer = MakeTokenizer(vocabulary);
    ASSERT_NE(tokenizer, nullptr);
    for (const char* unit : {"a", " ", "hello", "\n \t"}) {
      std::string text;
      while (text.size() < 250'000) text += unit;
      text += "x";
      const std::clock_t start = std::clock();
      ASSERT_TRUE(tokenizer->Encode(text, true, false).ok());
      EXPECT_LT(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC, 5) << unit;
    }
  }
}

}  // namespace
}  // namespace latentd
