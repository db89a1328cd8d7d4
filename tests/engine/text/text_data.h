#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/checkpoint/checkpoint.h"
#include "nlohmann/json.hpp"

namespace latentd {

// Contents of $LATENTD_TEST_DATA/tokenizers/`name`, decompressed when it ends in .gz; nullopt when
// it is not there.
std::optional<std::string> TokenizerData(const std::string& name);

// The tokenizer of a GGUF file in $LATENTD_TEST_DATA/tokenizers/llamacpp-vocab-gguf; nullopt when
// it is not there.
std::optional<TokenizerSource> GgufData(const std::string& name);

// The same of the demo model.
std::optional<TokenizerSource> DemoModelData();

// llama.cpp's fixture of that vocabulary: texts, and the ids of each without special tokens.
std::vector<std::pair<std::string, std::vector<int32_t>>> Fixture(const std::string& name);

// golden.json, which make_goldens.py wrote.
const nlohmann::json& Golden();

// A valid text of `num_characters` from many scripts, with spaces, digits and line breaks.
std::string RandomText(uint64_t seed, int num_characters);

// A vocabulary of bytes and a few words: ids 0..255 are bytes, then <s>, </s>, <tool>, and merges.
GgufVocabulary TinyByteLevel();

// SentencePiece-like: <unk>, <s>, </s>, the 256 bytes, then pieces of "▁hello world".
GgufVocabulary TinySentencePiece();

}  // namespace latentd
