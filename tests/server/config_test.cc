#include "server/config.h"

#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace latentd {
namespace {

using ::testing::HasSubstr;

absl::Status ParseAndValidate(const std::vector<std::string>& args, ServerConfig* config) {
  CommandLine flags({.program = "latentd", .summary = "", .example = "", .positional = ""});
  AddServerFlags(&flags, config);
  absl::Status status = flags.Parse(args);
  if (status.ok() && !config->config_file.empty()) status = flags.ParseFile(config->config_file);
  return status.ok() ? Validate(*config) : status;
}

TEST(ConfigTest, FlagsAndFileFillTheConfig) {
  const std::string path = testing::TempDir() + "/latentd.conf";
  std::ofstream(path) << "max-sequences = 7\nlisten = 0.0.0.0:1\n";
  ServerConfig config;
  ASSERT_TRUE(
      ParseAndValidate({"--model", path, "--config", path, "--listen", "[::1]:9",
                        "--cache-bytes=1GiB", "--metrics-listen=off", "--drain-seconds=2.5"},
                       &config)
          .ok());
  EXPECT_EQ(config.model.model, path);
  EXPECT_EQ(config.model.cache_bytes, int64_t{1} << 30);
  EXPECT_EQ(config.scheduler.max_sequences, 7);
  EXPECT_EQ(config.listen, "[::1]:9");
  EXPECT_EQ(config.drain_seconds, 2.5);
}

TEST(ConfigTest, ErrorsNameTheFlag) {
  const std::string model = "--model=" + testing::TempDir();
  const std::vector<std::vector<std::string>> cases = {
      {"--model"},
      {"--model=/no/such/file"},
      {model, "--latents=/no/such/file"},
      {model, "--max-batch-tokens=100", "--max-sequences=101"},
      {model, "--listen=50051"},
      {model, "--listen=:1"},
      {model, "--listen=a:65536"},
      {model, "--metrics-listen=a:b"},
      {model, "--max-sequences=0"},
      {model, "--max-batch-tokens=-1"},
      {model, "--drain-seconds=-1"},
      {model, "--max-queued=x"},
  };
  for (const std::vector<std::string>& args : cases) {
    ServerConfig config;
    const absl::Status status = ParseAndValidate(args, &config);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << args.back();
    const std::string& bad = args.back();
    EXPECT_THAT(std::string(status.message()), HasSubstr(bad.substr(0, bad.find('='))));
  }
  ServerConfig none;
  EXPECT_THAT(std::string(ParseAndValidate({}, &none).message()), HasSubstr("--model is missing"));
}

}  // namespace
}  // namespace latentd
