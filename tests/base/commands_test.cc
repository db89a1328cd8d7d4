#include "base/commands.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace latentd {
namespace {

using ::testing::HasSubstr;

absl::Status Greet(Arguments args) {
  std::printf("hello %s\n", args.empty() ? "nobody" : args[0].c_str());
  return absl::OkStatus();
}
absl::Status Break(Arguments) { return absl::InvalidArgumentError("--x is 3, allowed: 1 to 2"); }

constexpr Command kCommands[] = {{"greet", Greet, "say hello"}, {"break", Break, "fail"}};

struct Outcome {
  int status;
  std::string out, err;
};

Outcome RunWith(std::vector<std::string> args) {
  args.insert(args.begin(), "prog");
  std::vector<char*> argv;
  for (std::string& arg : args) argv.push_back(arg.data());
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  const int status = RunCommand(
      {.name = "prog", .summary = "Does it.", .example = "prog greet", .commands = kCommands},
      static_cast<int>(argv.size()), argv.data());
  std::fflush(stdout);
  return {status, ::testing::internal::GetCapturedStdout(),
          ::testing::internal::GetCapturedStderr()};
}

TEST(RunCommand, GivesACommandTheArgumentsAfterItsName) {
  const Outcome outcome = RunWith({"greet", "you", "too"});
  EXPECT_EQ(outcome.status, 0);
  EXPECT_EQ(outcome.out, "hello you\n");
  EXPECT_EQ(RunWith({"greet"}).out, "hello nobody\n");
}

TEST(RunCommand, AnErrorGoesToStderrWithTheCommandsName) {
  const Outcome outcome = RunWith({"break"});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(outcome.err, "prog break: --x is 3, allowed: 1 to 2\n");
}

TEST(RunCommand, OutputThatCannotBeWrittenIsAnError) {
  const int full = open("/dev/full", O_WRONLY), before = dup(STDOUT_FILENO);
  ASSERT_GE(full, 0);
  std::fflush(stdout);
  dup2(full, STDOUT_FILENO);
  std::string program = "prog", command = "greet";
  char* argv[] = {program.data(), command.data()};
  ::testing::internal::CaptureStderr();
  const int status = RunCommand({.name = "prog", .commands = kCommands}, 2, argv);
  dup2(before, STDOUT_FILENO);
  std::clearerr(stdout);
  std::cout.clear();
  close(full);
  close(before);
  EXPECT_EQ(status, 1);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "prog greet: the output could not be written: No space left on device\n");
}

TEST(RunCommand, WithoutAKnownCommandItListsThem) {
  EXPECT_EQ(RunWith({}).status, 2);
  const Outcome unknown = RunWith({"grete"});
  EXPECT_EQ(unknown.status, 2);
  EXPECT_THAT(unknown.err, HasSubstr("there is no command \"grete\""));
  EXPECT_THAT(unknown.err, HasSubstr("  greet      say hello\n"));
  const Outcome help = RunWith({"--help"});
  EXPECT_EQ(help.status, 0);
  EXPECT_THAT(help.out, HasSubstr("example:\n  prog greet\n"));
  EXPECT_THAT(RunWith({"--version"}).out, HasSubstr("latentd "));
}

}  // namespace
}  // namespace latentd
