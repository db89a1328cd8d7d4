// Valid files, damaged in thousands of ways: each is read or refused, and what is read can be used.
// Under the address sanitizer this finds what the readers forget to check.

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/random.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/gguf_config.h"
#include "engine/checkpoint/gguf_file.h"
#include "engine/checkpoint/hf_config.h"
#include "engine/checkpoint/json.h"
#include "engine/checkpoint/latents_file.h"
#include "engine/checkpoint/safetensors_file.h"
#include "engine/checkpoint/weight_binder.h"
#include "tests/engine/checkpoint/temporary_folder.h"
#include "tests/testing/tiny_model.h"

namespace latentd {
namespace {

using Bytes = std::vector<std::byte>;

constexpr int kMutations = 20000;
// Of the whole process: no damage makes a reader ask for much. AddressSanitizer keeps up to 256 MiB
// of freed memory beside it.
#ifdef __SANITIZE_ADDRESS__
constexpr int64_t kMaxGrowthKiB = 768 << 10;
#else
constexpr int64_t kMaxGrowthKiB = 256 << 10;
#endif

Bytes ReadBytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  Bytes bytes(text.size());
  std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

// Bytes as a file that can be opened and mapped, without a disk.
class MemoryFile {
 public:
  explicit MemoryFile(const Bytes& bytes) : fd_(memfd_create("mutated", MFD_CLOEXEC)) {
    LATENTD_CHECK(fd_ >= 0);
    LATENTD_CHECK(write(fd_, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
  }
  ~MemoryFile() { close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  const int fd_;
};

int64_t PeakKiB() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

// Damages 1 to 4 places among the first `reach` bytes (the header), where nearly all of the meaning
// lies.
Bytes Mutate(const Bytes& valid, size_t reach, uint64_t seed) {
  Bytes bytes = valid;
  uint64_t counter = 0;
  const auto draw = [&](uint64_t limit) { return RandomBits(seed, counter++) % limit; };
  const int edits = 1 + static_cast<int>(draw(4));
  for (int i = 0; i < edits; ++i) {
    const size_t at = draw(std::min(reach, bytes.size()));
    switch (draw(6)) {
      case 0:  // a bit
        bytes[at] ^= static_cast<std::byte>(1 << draw(8));
        break;
      case 1:  // a byte
        bytes[at] = static_cast<std::byte>(draw(256));
        break;
      case 2: {  // a number at the edge of its range
        constexpr uint64_t kEdges[] = {0,
                                       1,
                                       0x7fffffff,
                                       0xffffffff,
                                       uint64_t{1} << 40,
                                       uint64_t{1} << 62,
                                       ~uint64_t{0} >> 1,
                                       ~uint64_t{0}};
        const uint64_t edge = kEdges[draw(std::size(kEdges))];
        std::memcpy(&bytes[at], &edge, std::min<size_t>(draw(2) == 0 ? 4 : 8, bytes.size() - at));
        break;
      }
      case 3: {  // bytes from elsewhere
        const size_t from = draw(std::min(reach, bytes.size()));
        const size_t count = std::min({draw(64), bytes.size() - at, bytes.size() - from});
        std::memmove(&bytes[at], &bytes[from], count);
        break;
      }
      case 4:  // bytes gone
        bytes.erase(bytes.begin() + at, bytes.begin() + std::min(bytes.size(), at + draw(16)));
        break;
      default:  // the rest gone
        if (draw(8) == 0) bytes.resize(at);
    }
    if (bytes.empty()) return bytes;
  }
  return bytes;
}

// Touches the first and the last value of what was promised.
int64_t Touch(const TensorView& view) {
  if (view.bytes() == 0) return 0;
  return static_cast<int64_t>(view.data[0]) + static_cast<int64_t>(view.data[view.bytes() - 1]);
}

int64_t Touch(const BoundWeights& weights) {
  int64_t sum = 0;
  for (const auto& [name, view] : weights.views) sum += Touch(view);
  return sum;
}

TEST(MutationTest, GgufFiles) {
  const Bytes valid = ReadBytes(std::string(LATENTD_GOLDEN_DIR) + "/llama-gguf/model.gguf");
  ASSERT_GT(valid.size(), 1000u);
  const int64_t before = PeakKiB();
  int opened = 0;
  for (int i = 0; i < kMutations; ++i) {
    auto storage = std::make_shared<Bytes>(Mutate(valid, 6000, i));
    storage->shrink_to_fit();
    const auto file = GgufFile::Parse(*storage, storage, "mutated");
    if (!file.ok()) continue;
    const auto tokenizer = ReadGgufTokenizer(**file);
    const auto config = ReadGgufConfig(**file, **FindGgufFamily("llama"));
    if (!config.ok()) continue;
    const auto weights =
        BindWeights(**FindGgufFamily("llama"), *config, TensorFormat::kGguf, (*file)->tensors());
    if (weights.ok() && Touch(*weights) != 0) ++opened;
  }
  EXPECT_LT(PeakKiB() - before, kMaxGrowthKiB);
  EXPECT_GT(opened, kMutations / 100);  // the damage is fine enough to get past the first check
  EXPECT_LT(opened, kMutations);
}

TEST(MutationTest, SafetensorsFiles) {
  const Bytes valid = ReadBytes(std::string(LATENTD_GOLDEN_DIR) + "/gpt2/model.safetensors");
  ASSERT_GT(valid.size(), 1000u);
  uint64_t header = 0;
  std::memcpy(&header, valid.data(), 8);
  const auto base = Checkpoint::Open(std::string(LATENTD_GOLDEN_DIR) + "/gpt2");
  ASSERT_TRUE(base.ok()) << base.status();
  const int64_t before = PeakKiB();
  int opened = 0;
  for (int i = 0; i < kMutations / 4; ++i) {
    Bytes bytes = Mutate(valid, header + 8, i);
    bytes.shrink_to_fit();
    const auto file = SafetensorsFile::Parse(bytes, "mutated");
    if (!file.ok()) continue;
    const auto weights = BindWeights(**FindGgufFamily("gpt2"), (*base)->config(),
                                     TensorFormat::kHuggingFace, file->tensors);
    if (weights.ok() && Touch(*weights) != 0) ++opened;
  }
  EXPECT_LT(PeakKiB() - before, kMaxGrowthKiB);
  EXPECT_GT(opened, 0);
  EXPECT_LT(opened, kMutations / 4);
}

TEST(MutationTest, ConfigFiles) {
  const Bytes valid = ReadBytes(std::string(LATENTD_GOLDEN_DIR) + "/llama-rope3/config.json");
  ASSERT_GT(valid.size(), 100u);
  const int64_t before = PeakKiB();
  int opened = 0;
  for (int i = 0; i < kMutations; ++i) {
    const Bytes bytes = Mutate(valid, valid.size(), i);
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    const auto json = ParseJson(text, "mutated");
    if (!json.ok()) continue;
    const auto family = FamilyOfHfConfig(*json);
    if (!family.ok()) continue;
    const auto config = ReadHfConfig(*json, nullptr, **family);
    if (config.ok() && Validate(*config).ok()) ++opened;
  }
  EXPECT_LT(PeakKiB() - before, kMaxGrowthKiB);
  EXPECT_GT(opened, 0);
  EXPECT_LT(opened, kMutations);
}

TEST(MutationTest, LatentsFiles) {
  const auto base = *Checkpoint::Open(WriteTinyModel({.layers = 1}));
  const std::vector<float> zeros(32 * 32);
  const auto factor = [&](int64_t rows, int64_t cols) {
    return TensorView{.dtype = DType::kF32,
                      .rows = rows,
                      .cols = cols,
                      .data = reinterpret_cast<const std::byte*>(zeros.data())};
  };
  LatentLayer layer;
  layer.cache.k = {.latent_heads = 1, .segments = {{16, Codec::kInt4}, {16, Codec::kMinMax2}}};
  layer.cache.v = {
      .latent_heads = 2, .segments = {{16, Codec::kF16}}, .order = TileOrder::kTokenMajor};
  layer.k_down = layer.k_up = layer.v_down = factor(32, 32);
  layer.v_up = factor(32, 16);
  layer.k_mean = layer.k_offset = layer.v_mean = layer.v_offset = factor(1, 32);
  layer.cache.sinks = 4;
  layer.cache.own_page = true;
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/x.latents";
  ASSERT_TRUE(WriteLatents(path, Fingerprint(*base),
                           {.layers = {layer}, .method = "mutated", .shingles = {1, 20, 300}})
                  .ok());
  const Bytes valid = ReadBytes(path);
  uint64_t header = 0;
  std::memcpy(&header, valid.data(), 8);
  const int64_t before = PeakKiB();
  int opened = 0;
  for (int i = 0; i < kMutations / 4; ++i) {
    const MemoryFile mutated(Mutate(valid, header + 8, i));
    const auto latents = OpenLatents(mutated.path(), *base);
    if (!latents.ok()) continue;
    ++opened;
    const LatentLayer& read = (*latents)->layers[0];
    int64_t sum = 0;
    for (const auto view : {&LatentLayer::k_down, &LatentLayer::k_up, &LatentLayer::v_down,
                            &LatentLayer::v_up, &LatentLayer::k_mean, &LatentLayer::k_offset,
                            &LatentLayer::v_mean, &LatentLayer::v_offset}) {
      if ((read.*view).data != nullptr) sum += Touch(read.*view);
    }
    EXPECT_EQ(sum, 0);
    EXPECT_TRUE(read.cache.sinks >= 0 && read.cache.sinks <= 64);
    EXPECT_TRUE(std::is_sorted((*latents)->shingles.begin(), (*latents)->shingles.end()));
    EXPECT_TRUE(CacheLayout::Create({read.cache}, 2, 2).ok());
  }
  EXPECT_LT(PeakKiB() - before, kMaxGrowthKiB);
  EXPECT_GT(opened, 0);
}

}  // namespace
}  // namespace latentd
