// A latents file that fits a tiny Llama, damaged by the input: its factors can be read, or the file
// is refused. The input is a list of edits, {u16 place, u8 value} each, the last of which may cut
// the file off; so the fingerprint need not be guessed.

#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/latents_file.h"
#include "tests/fuzz/input_file.h"
#include "tests/fuzz/read_everything.h"

namespace latentd {
namespace {

std::unique_ptr<Checkpoint> OpenBase() {
  auto base = Checkpoint::Open(LATENTD_GOLDEN_DIR "/llama");
  LATENTD_CHECK(base.ok());
  return *std::move(base);
}

// Latents of 16 dims in mixed codecs, factors zero.
std::vector<uint8_t> ValidFile(const Checkpoint& base) {
  const ModelConfig& config = base.config();
  const std::vector<std::byte> zeros(4 * config.kv_dim() * config.hidden_dim);
  auto factor = [&](int64_t rows, int64_t cols) {
    return TensorView{.dtype = DType::kF32, .rows = rows, .cols = cols, .data = zeros.data()};
  };
  LatentLayer layer;
  layer.cache.k = {.latent_heads = 1, .segments = {{16, Codec::kInt4}, {16, Codec::kMinMax2}}};
  layer.cache.v = {
      .latent_heads = 2, .segments = {{16, Codec::kF16}}, .order = TileOrder::kTokenMajor};
  layer.k_down = factor(32, config.hidden_dim);
  layer.k_up = factor(config.kv_dim(), 32);
  layer.v_down = factor(2 * 16, config.hidden_dim);
  layer.v_up = factor(config.kv_dim(), 16);
  layer.k_mean = factor(1, 32);
  layer.k_offset = factor(1, config.kv_dim());
  layer.v_mean = factor(1, 2 * 16);
  layer.v_offset = factor(1, config.kv_dim());
  layer.cache.own_page = true;
  layer.cache.sinks = 4;
  layer.cache.sink_dims = config.kv_dim();
  const std::string path =
      std::filesystem::temp_directory_path() / ("latentd_fuzz_" + std::to_string(getpid()));
  const Latents latents{.layers = std::vector<LatentLayer>(config.num_layers, layer),
                        .method = "fuzz",
                        .shingles = {1, 2, 3}};
  LATENTD_CHECK(WriteLatents(path, Fingerprint(base), latents).ok());
  std::ifstream file(path, std::ios::binary);
  std::vector<uint8_t> bytes((std::istreambuf_iterator<char>(file)), {});
  std::filesystem::remove(path);
  return bytes;
}

void Damage(const uint8_t* edits, size_t size, std::vector<uint8_t>& bytes) {
  const size_t length = bytes.size();
  for (size_t i = 0; i + 3 <= size; i += 3) {
    const size_t place = edits[i] | edits[i + 1] << 8;
    bytes[place % length] = edits[i + 2];
  }
  if (size % 3 == 2) bytes.resize((edits[size - 2] | edits[size - 1] << 8) % length);
}

void OpenAndRead(const std::vector<uint8_t>& bytes, const Checkpoint& base, bool must_open) {
  const InputFile file(bytes.data(), bytes.size());
  const auto latents = OpenLatents(file.path(), base);
  LATENTD_CHECK(latents.ok() || !must_open);
  if (!latents.ok()) return;
  for (const LatentLayer& layer : (*latents)->layers) {
    for (const TensorView* view :
         {&layer.k_down, &layer.k_up, &layer.v_down, &layer.v_up, &layer.k_mean, &layer.k_offset,
          &layer.v_mean, &layer.v_offset}) {
      if (view->data != nullptr) ReadBytes(*view);
    }
  }
}

}  // namespace
}  // namespace latentd

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto base = latentd::OpenBase();
  static const std::vector<uint8_t> valid = latentd::ValidFile(*base);
  std::vector<uint8_t> bytes = valid;
  latentd::Damage(data, size, bytes);
  latentd::OpenAndRead(bytes, *base, /*must_open=*/size == 0);
  return 0;
}
