#include "engine/compressor/cuda_algebra.h"

#include <fstream>

#include "engine/compressor/compress.h"
#include "engine/text/gguf_tokenizer.h"
#include "gtest/gtest.h"
#include "tests/engine/checkpoint/temporary_folder.h"
#include "tests/engine/compressor/tested_algebra.h"
#include "tests/engine/text/text_data.h"
#include "tests/testing/random_values.h"
#include "tests/testing/tiny_model.h"

namespace latentd {
namespace {

// With or without a GPU.
TEST(CreateCudaAlgebraTest, AnErrorNamesTheDevice) {
  const absl::Status status = CreateCudaAlgebra(999, 1).status();
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.message().find("cuda:999"), std::string::npos) << status;
}

using CudaAlgebraTest = OpsTest;

TEST_F(CudaAlgebraTest, WeightsAreKeptWhileThereIsRoom) {
  const auto ops = NewOps();
  const auto algebra = NewAlgebra(2);
  const std::vector<float> kept = GaussianValues(300 * 7, 1), brought = GaussianValues(300 * 7, 2);
  DenseLinear linear;
  ASSERT_TRUE(algebra->LoadWeight(ViewOf(kept, 7), &linear).ok());
  EXPECT_TRUE(linear.memory.empty());
  std::vector<DeviceArray<uint8_t>> taken;  // until less than 2 GiB are free
  for (;;) {
    auto gigabyte = DeviceArray<uint8_t>::Create(ops->device(), int64_t{1} << 30);
    if (!gigabyte.ok()) break;
    taken.push_back(*std::move(gigabyte));
  }
  taken.pop_back();
  for (int again = 0; again < 2; ++again) {
    ASSERT_TRUE(algebra->LoadWeight(ViewOf(brought, 7), &linear).ok());
    EXPECT_EQ(linear.weight, linear.memory.data());
    EXPECT_EQ(WeightOf(*algebra, linear), brought);
    ASSERT_TRUE(algebra->LoadWeight(ViewOf(kept, 7), &linear).ok());
    EXPECT_EQ(WeightOf(*algebra, linear), kept);
  }
}

// A GPU's statistics are worth a CPU's: the latents made from them lose as much, to 2 %.
TEST_F(CudaAlgebraTest, ACompressionOnTheGpuIsThatOnTheCpu) {
  const GgufVocabulary vocabulary = TinyByteLevel();
  const std::string model = WriteTinyModel({.vocab = static_cast<int>(vocabulary.tokens.size())});
  std::ofstream(model + "/tokenizer.json") << TokenizerJsonOf(vocabulary).value();
  const TemporaryFolder folder;
  folder.Write("text", RandomText(1, 2000));
  CompressOptions options{.model = {.model = model, .threads = 2},
                          .out = folder.path() + "/cpu",
                          .calibration = {folder.path() + "/text"},
                          .windows = 4,
                          .window_tokens = 70,
                          .group = "all",
                          .method = MixedOptions{.ratio = 4}};
  const auto compress = [&] {
    auto report = Compress(options, [](std::string_view, double) { return absl::OkStatus(); });
    EXPECT_TRUE(report.ok()) << report.status();
    return *std::move(report);
  };
  const CompressionReport cpu = compress();
  options.statistics = folder.path() + "/statistics";
  options.model.device = "cuda:0";
  options.out = folder.path() + "/cuda";
  const CompressionReport cuda = compress();
  EXPECT_NEAR(*cuda.predicted_kl, *cpu.predicted_kl, 0.001 * *cpu.predicted_kl);
  options.model.device = "cpu";  // both measured there
  const CompressionReport measured = compress();
  EXPECT_NEAR(measured.measured.kl_mean, cpu.measured.kl_mean, 0.02 * cpu.measured.kl_mean);
}

}  // namespace
}  // namespace latentd
