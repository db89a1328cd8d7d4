#include "base/command_line.h"

#include <cstdio>
#include <fstream>
#include <optional>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace latentd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Options {
  std::string model;
  std::vector<std::string> stop;
  int count = 3;
  int64_t bytes = int64_t{1} << 30;
  double rate = 0.5;
  bool json = false;
  std::optional<double> temperature;
  std::optional<int64_t> seed;
};

CommandLine MakeFlags(Options* o, std::string positional = "") {
  CommandLine flags({.program = "tool",
                     .summary = "A tool.",
                     .example = "tool --count 2",
                     .positional = positional});
  flags.Add("model", &o->model, "PATH", "model folder");
  flags.Add("stop", &o->stop, "TEXT", "ends the text");
  flags.Add("count", &o->count, "N", "how many", {.min = 1, .max = 10});
  flags.AddBytes("cache-bytes", &o->bytes, "cache size", {.min = 1});
  flags.Add("rate", &o->rate, "R", "requests per second", {.min = 0});
  flags.Add("temperature", &o->temperature, "T", "heat", {.min = 0});
  flags.Add("seed", &o->seed, "N", "of the draws");
  flags.Add("json", &o->json, "print JSON");
  return flags;
}

std::string Message(const absl::Status& status) { return std::string(status.message()); }

TEST(CommandLineTest, ReadsNumbersBetweenCommas) {
  std::vector<int> sizes = {1, 2};
  CommandLine flags({.program = "tool", .summary = "A tool."});
  flags.Add("sizes", &sizes, "N,...", "how many", {.min = 1});
  EXPECT_THAT(flags.Help(), HasSubstr("--sizes N,... "));
  EXPECT_THAT(flags.Help(), HasSubstr("(default 1,2)"));
  ASSERT_TRUE(flags.Parse({"--sizes=4096,16384,7"}).ok());
  EXPECT_THAT(sizes, ElementsAre(4096, 16384, 7));
  EXPECT_THAT(Message(flags.Parse({"--sizes=3,0"})), HasSubstr("--sizes is 0"));
  EXPECT_THAT(Message(flags.Parse({"--sizes=3,,4"})), HasSubstr("--sizes is \"\""));
}

TEST(CommandLineTest, ReadsEveryKindOfValueInBothSpellings) {
  Options o;
  CommandLine flags = MakeFlags(&o, "FILE...");
  ASSERT_TRUE(flags
                  .Parse({"--model=a b", "--count", "7", "in.txt", "--stop", "x", "--stop=",
                          "--cache-bytes=1.5MiB", "--rate=2.25", "--json", "--", "--count"})
                  .ok());
  EXPECT_EQ(o.model, "a b");
  EXPECT_EQ(o.count, 7);
  EXPECT_THAT(o.stop, ElementsAre("x", ""));
  EXPECT_EQ(o.bytes, 1572864);
  EXPECT_EQ(o.rate, 2.25);
  EXPECT_TRUE(o.json);
  EXPECT_THAT(flags.positional(), ElementsAre("in.txt", "--count"));
  EXPECT_TRUE(flags.IsSet("rate"));
  EXPECT_FALSE(o.temperature.has_value());
  ASSERT_TRUE(flags.Parse({"--temperature=0", "--seed", "9"}).ok());
  EXPECT_EQ(o.temperature, 0.0);
  EXPECT_EQ(o.seed, 9);
}

TEST(CommandLineTest, NegativeNumbersAreValuesAndNoTurnsABoolOff) {
  Options o;
  o.json = true;
  CommandLine flags = MakeFlags(&o);
  EXPECT_THAT(Message(flags.Parse({"--no-json", "--rate", "-1"})),
              HasSubstr("--rate is -1, but must be at least 0"));
  EXPECT_FALSE(o.json);
}

TEST(CommandLineTest, ErrorsNameTheFlagAndBothNumbers) {
  const struct {
    std::vector<std::string> args;
    const char* message;
  } cases[] = {
      {{"--cuont=2"}, "there is no flag --cuont; did you mean --count?"},
      {{"--completely-other"}, "see tool --help"},
      {{"--count=11"}, "--count is 11, but must lie in [1, 10]"},
      {{"--count=2x"}, "--count is \"2x\", but must be a whole number"},
      {{"--count=99999999999"}, "--count is \"99999999999\""},
      {{"--count"}, "--count needs a value (N)"},
      {{"--rate=nan"}, "--rate is \"nan\", but must be a number"},
      {{"--cache-bytes=2GX"}, "--cache-bytes is \"2GX\""},
      {{"--cache-bytes=-1"}, "--cache-bytes is \"-1\""},
      {{"--json=maybe"}, "--json is \"maybe\", but must be true or false"},
      {{"stray"}, "\"stray\" is no flag"},
  };
  for (const auto& c : cases) {
    Options o;
    CommandLine flags = MakeFlags(&o);
    const absl::Status status = flags.Parse(c.args);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.args[0];
    EXPECT_THAT(Message(status), HasSubstr(c.message));
  }
}

TEST(CommandLineTest, TheCommandLineWinsOverTheFile) {
  const std::string path = testing::TempDir() + "/command_line_test.conf";
  std::ofstream(path) << "# a comment\n count = 4 \nmodel=from file # tail\nstop = a\nstop = b\n\n";
  Options o;
  CommandLine flags = MakeFlags(&o);
  ASSERT_TRUE(flags.Parse({"--count=9"}).ok());
  ASSERT_TRUE(flags.ParseFile(path).ok());
  EXPECT_EQ(o.count, 9);
  EXPECT_EQ(o.model, "from file");
  EXPECT_THAT(o.stop, ElementsAre("a", "b"));

  std::ofstream(path) << "\nmodle = x\n";
  EXPECT_THAT(Message(flags.ParseFile(path)),
              HasSubstr(":2: there is no flag --modle; did you mean --model?"));
  std::ofstream(path) << "model\n";
  EXPECT_THAT(Message(flags.ParseFile(path)), HasSubstr(":1: \"model\" is not `key = value`"));
  std::remove(path.c_str());
  EXPECT_EQ(flags.ParseFile(path).code(), absl::StatusCode::kNotFound);
}

TEST(CommandLineTest, HelpShowsEveryFlagItsDefaultAndTheExample) {
  Options o;
  CommandLine flags = MakeFlags(&o);
  ASSERT_TRUE(flags.Parse({"--help"}).ok());
  EXPECT_TRUE(flags.help_requested());
  const std::string help = flags.Help();
  EXPECT_THAT(help, HasSubstr("--cache-bytes SIZE"));
  EXPECT_THAT(help, HasSubstr("how many (default 3)"));
  EXPECT_THAT(help, HasSubstr("(default 1.00 GiB)"));
  EXPECT_THAT(help, HasSubstr("heat\n"));
  EXPECT_THAT(help, HasSubstr("example:\n  tool --count 2\n"));
}

TEST(CommandLineTest, SizesReadBackWhatTheyShow) {
  EXPECT_EQ(*ParseBytes("2GiB"), int64_t{2} << 30);
  EXPECT_EQ(*ParseBytes("3 kb"), 3000);
  EXPECT_EQ(*ParseBytes("17"), 17);
  EXPECT_FALSE(ParseBytes("").ok());
  EXPECT_FALSE(ParseBytes("nanGiB").ok());
  EXPECT_FALSE(ParseBytes("9999999TiB").ok());
  EXPECT_EQ(FormatBytes(23040), "22.5 KiB");
  EXPECT_EQ(FormatBytes(512), "512 B");
  EXPECT_EQ(*ParseBytes(FormatBytes(int64_t{5} << 30)), int64_t{5} << 30);
}

}  // namespace
}  // namespace latentd
