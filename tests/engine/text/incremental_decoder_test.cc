#include "engine/text/incremental_decoder.h"

#include "absl/strings/match.h"
#include "base/random.h"
#include "engine/text/utf8.h"
#include "gtest/gtest.h"
#include "tests/engine/text/text_data.h"

namespace latentd {
namespace {

std::unique_ptr<Tokenizer> MakeTokenizer(const GgufVocabulary& vocabulary) {
  return Tokenizer::Create({.gguf = vocabulary}).value();
}

std::string Stream(const Tokenizer& tokenizer, const std::vector<int32_t>& prompt,
                   const std::vector<int32_t>& tokens, bool skip_special) {
  IncrementalDecoder decoder(&tokenizer, prompt, skip_special);
  std::string text;
  for (const int32_t token : tokens) {
    const std::string delta = decoder.Push(token).value();
    EXPECT_TRUE(IsUtf8(delta));
    text += delta;
  }
  return text + decoder.Flush().value();
}

// Random ids, among them every kind of broken byte sequence, cut into prompt and generation at
// random: prompt's text + deltas == text of all.
TEST(IncrementalDecoderTest, DeltasAddUpToTheWholeText) {
  for (const GgufVocabulary& vocabulary : {TinyByteLevel(), TinySentencePiece()}) {
    const auto tokenizer = MakeTokenizer(vocabulary);
    for (uint64_t seed = 0; seed < 2000; ++seed) {
      std::vector<int32_t> ids;
      const size_t size = RandomBits(seed, 0) % 12;
      for (size_t i = 0; i < size; ++i) {
        // Half of them bytes from 0x80 on, so that characters and broken ones both come about.
        const uint64_t bits = RandomBits(seed, i + 1);
        const int first_high = vocabulary.model == "llama" ? 3 + 0x80 : 0x80;
        ids.push_back(bits % 2 ? first_high + (bits >> 8) % 128
                               : (bits >> 8) % tokenizer->vocab_size());
      }
      const size_t cut = RandomBits(seed, 100) % (size + 1);
      const std::vector<int32_t> prompt(ids.begin(), ids.begin() + cut);
      const std::vector<int32_t> tokens(ids.begin() + cut, ids.end());
      for (const bool skip_special : {false, true}) {
        // What the prompt shows once nothing more comes, but for a character that may go on.
        IncrementalDecoder prompt_decoder(tokenizer.get(), {}, skip_special);
        std::string shown;
        for (const int32_t token : prompt) shown += prompt_decoder.Push(token).value();
        EXPECT_EQ(shown + Stream(*tokenizer, prompt, tokens, skip_special),
                  tokenizer->Decode(ids, skip_special).value());
      }
    }
  }
}

TEST(IncrementalDecoderTest, ACharacterInPiecesIsHeldBack) {
  const auto tokenizer = MakeTokenizer(TinyByteLevel());
  IncrementalDecoder decoder(tokenizer.get(), {}, true);
  // The byte-level vocabulary's ids are bytes: an emoji, then the first half of a Han character.
  EXPECT_EQ(decoder.Push(0xF0).value(), "");
  EXPECT_EQ(decoder.Push(0x9F).value(), "");
  EXPECT_EQ(decoder.Push(0x99).value(), "");
  EXPECT_EQ(decoder.Push(0x82).value(), "\U0001F642");
  EXPECT_EQ(decoder.Push(0xE4).value(), "");
  EXPECT_EQ(decoder.Push('a').value(), "\uFFFDa");
  EXPECT_EQ(decoder.Push(0xE4).value(), "");
  EXPECT_EQ(decoder.Flush().value(), "\uFFFD");
  EXPECT_EQ(decoder.Flush().value(), "");
}

TEST(IncrementalDecoderTest, OnlyTheStartOfTheTextLosesItsSpace) {
  const auto tokenizer = MakeTokenizer(TinySentencePiece());
  const std::vector<int32_t> hello_world = {263, 268};
  EXPECT_EQ(Stream(*tokenizer, {}, hello_world, true), "hello world");
  EXPECT_EQ(Stream(*tokenizer, {1}, hello_world, true), "hello world");
  EXPECT_EQ(Stream(*tokenizer, {1, 268}, hello_world, true), " hello world");
  EXPECT_EQ(Stream(*tokenizer, {1}, hello_world, false), " hello world");
}

TEST(IncrementalDecoderTest, NegativeIdsAreRefused) {
  const auto tokenizer = MakeTokenizer(TinyByteLevel());
  IncrementalDecoder decoder(tokenizer.get(), {}, true);
  EXPECT_EQ(decoder.Push(-1).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace latentd
