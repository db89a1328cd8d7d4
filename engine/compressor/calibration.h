#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/compressor/matrix.h"
#include "engine/engine.h"
#include "engine/text/chat_template.h"
#include "engine/text/tokenizer.h"
#include "kernels/ops.h"

namespace latentd {

// Windows of token ids that a compression is calibrated on, all of one length.
using CalibrationWindows = std::vector<std::vector<int32_t>>;

// Called with the share done, in [0, 1].
using Progress = std::function<void(double)>;

// `count` windows of `tokens` tokens at evenly spaced places of the files' text, in turn from each
// file. INVALID_ARGUMENT names the file and both numbers when it is too short.
absl::StatusOr<CalibrationWindows> WindowsFromFiles(const std::vector<std::string>& paths,
                                                    const Tokenizer& tokenizer, int count,
                                                    int tokens);

// `count` windows that the model writes itself at temperature 1: half from its start token, half as
// the user's first words in its chat template (all from the start token where there is no
// template). The same seed gives the same windows.
absl::StatusOr<CalibrationWindows> WindowsFromModel(Engine& engine, const ModelConfig& config,
                                                    const Tokenizer& tokenizer,
                                                    const ChatTemplate* chat_template, int count,
                                                    int tokens, uint64_t seed,
                                                    const Progress& progress);

// E[x x^T] over all tokens of the windows for the input of every layer's k and v projections, not
// centred: one [hidden, hidden] matrix per layer. Runs the uncompressed model.
absl::StatusOr<std::vector<Matrix>> InputMoments(const Checkpoint& checkpoint,
                                                 const CalibrationWindows& windows, Ops& ops,
                                                 const Progress& progress);

}  // namespace latentd
