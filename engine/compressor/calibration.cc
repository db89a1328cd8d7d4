#include "engine/compressor/calibration.h"

#include <algorithm>
#include <numeric>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/mapped_file.h"
#include "base/status_macros.h"
#include "engine/batch.h"
#include "engine/cache_pool.h"
#include "engine/model/decoder.h"
#include "engine/model/weights.h"

namespace latentd {
namespace {

constexpr int kStepTokens = 512;  // rows of one forward pass

// What the user's turn begins with: the chat template up to a marker in the place of the user's
// text.
absl::StatusOr<std::string> UserTurnPrefix(const ChatTemplate& chat_template) {
  const std::string marker = "@@latentd@@";
  ASSIGN_OR_RETURN(const std::string text,
                   chat_template.Render({{.role = "user", .content = marker}}, false));
  return text.substr(0, text.find(marker));
}

// Runs `windows` token by token, all at once, each in blocks of its own.
class SelfSampler {
 public:
  SelfSampler(Engine& engine, int tokens, uint64_t seed)
      : engine_(engine),
        tokens_(tokens),
        blocks_((tokens + kBlockTokens - 1) / kBlockTokens),
        seed_(seed) {}

  absl::Status Extend(CalibrationWindows* windows) {
    Batch batch{.max_blocks = blocks_};
    std::vector<int32_t> blocks(blocks_);
    std::vector<size_t> sampled;
    for (size_t i = 0; i < windows->size(); ++i) {
      const std::vector<int32_t>& window = (*windows)[i];
      const int length = static_cast<int>(window.size());
      if (length >= tokens_) continue;
      std::iota(blocks.begin(), blocks.end(), static_cast<int32_t>(i) * blocks_);
      const int computed = first_ ? 0 : length - 1;
      const int row = AppendRows(&batch, window, computed, length, blocks);
      batch.samples.push_back({.row = row, .params = {.seed = seed_ + i}, .position = length});
      sampled.push_back(i);
    }
    first_ = false;
    ASSIGN_OR_RETURN(const StepOutput output, engine_.Step(batch));
    for (size_t i = 0; i < sampled.size(); ++i) {
      if (!output.samples[i].ok) return absl::InternalError("the model's logits are not finite");
      (*windows)[sampled[i]].push_back(output.samples[i].token_id);
    }
    return absl::OkStatus();
  }

 private:
  Engine& engine_;
  const int tokens_;
  const int blocks_;  // of one window
  const uint64_t seed_;
  bool first_ = true;
};

}  // namespace

absl::StatusOr<CalibrationWindows> WindowsFromFiles(const std::vector<std::string>& paths,
                                                    const Tokenizer& tokenizer, int count,
                                                    int tokens) {
  CalibrationWindows windows;
  const int files = static_cast<int>(paths.size());
  for (int f = 0; f < files; ++f) {
    const int share = count / files + (f < count % files ? 1 : 0);
    ASSIGN_OR_RETURN(const std::shared_ptr<const MappedFile> file, MappedFile::Open(paths[f]));
    const std::string_view text(reinterpret_cast<const char*>(file->bytes().data()),
                                file->bytes().size());
    ASSIGN_OR_RETURN(const std::vector<int32_t> ids, tokenizer.Encode(text, false, false));
    const int64_t length = static_cast<int64_t>(ids.size());
    if (length < int64_t{share} * tokens) {
      return absl::InvalidArgumentError(absl::StrCat("--calibration ", paths[f], " has ", length,
                                                     " tokens, its ", share, " windows of ", tokens,
                                                     " need ", int64_t{share} * tokens));
    }
    for (int w = 0; w < share; ++w) {
      const int64_t begin = share == 1 ? 0 : (length - tokens) * w / (share - 1);
      windows.emplace_back(ids.begin() + begin, ids.begin() + begin + tokens);
    }
  }
  return windows;
}

absl::StatusOr<CalibrationWindows> WindowsFromModel(Engine& engine, const ModelConfig& config,
                                                    const Tokenizer& tokenizer,
                                                    const ChatTemplate* chat_template, int count,
                                                    int tokens, uint64_t seed,
                                                    const Progress& progress) {
  const int blocks_per_window = (tokens + kBlockTokens - 1) / kBlockTokens;
  if (int64_t{count} * blocks_per_window > engine.info().num_blocks) {
    return absl::InvalidArgumentError(absl::StrCat(
        count, " windows of ", tokens, " tokens need ", int64_t{count} * blocks_per_window,
        " cache blocks, the pool has ", engine.info().num_blocks));
  }
  std::vector<int32_t> start = {std::max(0, config.bos_token_id)};
  std::vector<int32_t> user_turn = start;
  if (chat_template != nullptr) {
    ASSIGN_OR_RETURN(const std::string prefix, UserTurnPrefix(*chat_template));
    ASSIGN_OR_RETURN(user_turn, tokenizer.Encode(prefix, false, true));
    if (user_turn.empty() || static_cast<int>(user_turn.size()) >= tokens) user_turn = start;
  }
  CalibrationWindows windows;
  for (int i = 0; i < count; ++i) windows.push_back(i % 2 == 0 ? start : user_turn);
  SelfSampler sampler(engine, tokens, seed);
  for (int shortest = 1; shortest < tokens; ++shortest) {
    RETURN_IF_ERROR(sampler.Extend(&windows));
    progress(static_cast<double>(shortest) / (tokens - 1));
  }
  return windows;
}

absl::StatusOr<std::vector<Matrix>> InputMoments(const Checkpoint& checkpoint,
                                                 const CalibrationWindows& windows, Ops& ops,
                                                 const Progress& progress) {
  const ModelConfig& config = checkpoint.config();
  const int tokens = static_cast<int>(windows[0].size());
  ASSIGN_OR_RETURN(const ModelWeights weights,
                   LoadWeights(checkpoint, nullptr, Codec::kF16, tokens, ops));
  std::vector<int32_t> blocks((tokens + kBlockTokens - 1) / kBlockTokens);
  std::iota(blocks.begin(), blocks.end(), 0);
  ASSIGN_OR_RETURN(const CacheLayout layout,
                   CacheLayout::Create(CacheLayersOf(config, nullptr, Codec::kF16), blocks.size()));
  ASSIGN_OR_RETURN(const std::unique_ptr<CachePool> pool, CachePool::Create(layout.total_bytes()));

  std::vector<Matrix> moments(config.num_layers, Matrix(config.hidden_dim, config.hidden_dim));
  Decoder decoder(config, weights, ops);
  for (size_t w = 0; w < windows.size(); ++w) {
    for (int begin = 0; begin < tokens; begin += kStepTokens) {
      Batch batch{.max_blocks = static_cast<int64_t>(blocks.size())};
      AppendRows(&batch, windows[w], begin, std::min(tokens, begin + kStepTokens), blocks);
      decoder.Forward(batch, layout, pool->data(),
                      [&](int layer, const float* input, int64_t rows) {
                        AddMoment(input, static_cast<int>(rows), &moments[layer]);
                      });
    }
    progress(static_cast<double>(w + 1) / windows.size());
  }
  for (Matrix& moment : moments) {
    for (double& value : moment.values) value /= static_cast<double>(windows.size()) * tokens;
  }
  return moments;
}

}  // namespace latentd
