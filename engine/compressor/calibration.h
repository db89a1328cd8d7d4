#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/engine.h"
#include "engine/model/model_config.h"
#include "engine/text/chat_template.h"
#include "engine/text/tokenizer.h"

namespace latentd {

// Windows of token ids that a compression is calibrated on, all of one length.
using CalibrationWindows = std::vector<std::vector<int32_t>>;

// Called now and then with the share done, in [0, 1]. An error ends the work and comes back from
// it.
using Progress = std::function<absl::Status(double)>;

// `count` windows of `tokens` tokens at evenly spaced places of the files' text, as many from each
// file as from the others, or one more. INVALID_ARGUMENT names the file and both numbers when it is
// too short, or when there are more files than windows.
absl::StatusOr<CalibrationWindows> WindowsFromFiles(const std::vector<std::string>& paths,
                                                    const Tokenizer& tokenizer, int count,
                                                    int tokens);

// `count` windows that the model writes itself at temperature 1: half from its start token (id 0 if
// it has none), half as the user's first words in its chat template (from the start token where it
// has no template, or one that fills the window before the user's words). As many at a time, in one
// batch, as the engine has seats and blocks for; RESOURCE_EXHAUSTED when that is none. The same
// seed gives the same windows, whatever the pool.
absl::StatusOr<CalibrationWindows> WindowsFromModel(Engine& engine, const ModelConfig& config,
                                                    const Tokenizer& tokenizer,
                                                    const ChatTemplate* chat_template, int count,
                                                    int tokens, uint64_t seed,
                                                    const Progress& progress);

}  // namespace latentd
