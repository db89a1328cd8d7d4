#include "engine/text/pre_tokenizer.h"

#include <algorithm>
#include <array>

namespace latentd {
namespace {

using Kind = PreTokenizer::Kind;
using Step = PreTokenizer::Step;

constexpr Step kBytes = {Kind::kBytes};
constexpr Step kGpt2WordsAndBytes = {Kind::kGpt2WordsAndBytes};
constexpr Step kEachDigit = {Kind::kEachDigit};

constexpr Step kDigitRuns = {Kind::kDigitRuns};
constexpr Step kPunctuationRuns = {Kind::kPunctuationRuns};

constexpr Step Split(std::string_view regex) { return {Kind::kSplit, regex}; }

// The patterns as the models' tokenizer.json files have them (Oniguruma's syntax).
constexpr std::string_view kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen35 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N})"
    R"(| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kSeedCoder =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kBailing =
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*)"
    R"(|\s*[\r\n]|\s+(?!\S)|\s+)";
constexpr std::string_view kTekken =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kGpt4o =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kBloom = R"( ?[^(\s|.,!?…。，、।۔،)]+)";
constexpr std::string_view kDeepSeekHan = "[一-龥ࠀ-一가-퟿]+";
constexpr std::string_view kDeepSeekLetters =
    R"(\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-)"
    R"(ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ)"
    R"(-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ)"
    R"(-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+)";
constexpr std::string_view kDeepSeekV3Words =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+)"
    R"(| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

struct Row {
  std::array<std::string_view, 9> names;
  PreTokenizer pre_tokenizer;
};

constexpr Row kRows[] = {
    {{"gpt-2", "phi-2", "jais", "gigachat", "mellum", "a.x-4.0", "trillion", "granite-docling",
      "exaone4"},
     {.steps = {kGpt2WordsAndBytes}}},
    // GPT-NeoX and its heirs; their older files name no pre-tokenizer.
    {{"gpt-neox", "olmo", "mpt", "default"}, {.nfc = true, .steps = {kGpt2WordsAndBytes}}},
    {{"smollm", "starcoder", "refact", "codeshell", "exaone", "minerva-7b", "mellum2"},
     {.steps = {kEachDigit, kGpt2WordsAndBytes}}},
    {{"command-r"}, {.nfc = true, .steps = {kEachDigit, kGpt2WordsAndBytes}}},
    {{"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"},
     {.ignore_merges = true, .add_bos = true, .steps = {Split(kLlama3), kBytes}}},
    {{"glm4", "glm5"}, {.ignore_merges = true, .steps = {Split(kLlama3), kBytes}}},
    {{"dbrx", "smaug-bpe", "chatglm-bpe"}, {.steps = {Split(kLlama3), kBytes}}},
    {{"qwen2", "deepseek-r1-qwen", "megrez", "stablelm2", "kormo", "f2llmv2"},
     {.nfc = true, .steps = {Split(kQwen2), kBytes}}},
    {{"hunyuan", "solar-open", "grok-2"}, {.steps = {Split(kQwen2), kBytes}}},
    {{"qwen35"}, {.nfc = true, .steps = {Split(kQwen35), kBytes}}},
    {{"seed-coder"}, {.steps = {Split(kSeedCoder), kBytes}}},
    {{"bailingmoe", "bailingmoe2", "llada-moe"}, {.steps = {Split(kBailing), kBytes}}},
    {{"tekken"}, {.ignore_merges = true, .add_bos = true, .steps = {Split(kTekken), kBytes}}},
    {{"gpt-4o", "llama4", "kanana2", "minimax-m2"}, {.steps = {Split(kGpt4o), kBytes}}},
    {{"bloom", "poro-chat", "gpt3-finnish"}, {.steps = {Split(kBloom), kBytes}}},
    {{"viking"}, {.steps = {Split(kBloom), kEachDigit, kBytes}}},
    {{"falcon"},
     {.steps = {kPunctuationRuns, kGpt2WordsAndBytes, kDigitRuns, Split("[0-9][0-9][0-9]")}}},
    {{"deepseek-llm"},
     {.steps = {Split("[\r\n]"), Split(kDeepSeekLetters),
                Split(R"(\s?[!-/:-~！-／：-～‘-‟　-。]+)"), Split(R"(\s+$)"), Split(kDeepSeekHan),
                kEachDigit, kBytes}}},
    {{"deepseek-coder"},
     {.steps = {Split("[\r\n]"), Split(R"(\s?\p{L}+)"), Split(R"(\s?\p{P}+)"), Split(kDeepSeekHan),
                kEachDigit, kBytes}}},
    {{"deepseek-v3", "hunyuan-dense", "joyai-llm"},
     {.steps = {Split(R"(\p{N}{1,3})"), Split("[一-龥぀-ゟ゠-ヿ]+"), Split(kDeepSeekV3Words),
                kBytes}}},
};

}  // namespace

const PreTokenizer* FindPreTokenizer(std::string_view name) {
  for (const Row& row : kRows) {
    if (std::find(row.names.begin(), row.names.end(), name.empty() ? "default" : name) !=
        row.names.end()) {
      return &row.pre_tokenizer;
    }
  }
  return nullptr;
}

}  // namespace latentd
