#pragma once

#include "absl/status/statusor.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/gguf_file.h"
#include "engine/model/families.h"

namespace latentd {

// The config of a GGUF model of `family`, validated; with a field's key in every message.
absl::StatusOr<ModelConfig> ReadGgufConfig(const GgufFile& file, const Family& family);

// The tokenizer in a GGUF file's metadata, its chat template included. Without tokenizer keys
// `gguf` stays empty.
absl::StatusOr<TokenizerSource> ReadGgufTokenizer(const GgufFile& file);

}  // namespace latentd
