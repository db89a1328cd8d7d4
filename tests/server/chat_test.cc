// latentctl chat at a terminal of its own.
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/check.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "latentd/v1/generation.grpc.pb.h"
#include "tests/testing/server_fixture.h"

namespace latentd {
namespace {

constexpr char kCtrlC[] = "\x03";
constexpr char kCtrlD[] = "\x04";

// `latentctl chat` and the other end of its terminal.
class ChatTerminal {
 public:
  explicit ChatTerminal(const std::string& target) {
    std::string args[] = {"latentctl", "chat", "--target=" + target, "--max-tokens=5"};
    char* argv[] = {args[0].data(), args[1].data(), args[2].data(), args[3].data(), nullptr};
    pid_ = forkpty(&fd_, nullptr, nullptr, nullptr);
    LATENTD_CHECK(pid_ >= 0);
    if (pid_ == 0) {
      execv(LATENTCTL_PROGRAM, argv);
      _exit(127);
    }
  }
  ~ChatTerminal() {
    close(fd_);
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
  }

  void Type(const std::string& keys) {
    LATENTD_CHECK(write(fd_, keys.data(), keys.size()) == static_cast<ssize_t>(keys.size()));
  }

  // Whether what is shown after the last text that was found comes to hold this one within 20 s.
  testing::AssertionResult Shows(const std::string& text) {
    const absl::Time end = absl::Now() + absl::Seconds(20);
    while (!absl::StrContains(shown_, text)) {
      pollfd ready = {fd_, POLLIN, 0};
      char bytes[256];
      const auto left = static_cast<int>(absl::ToInt64Milliseconds(end - absl::Now()));
      const ssize_t size =
          left > 0 && poll(&ready, 1, left) == 1 ? read(fd_, bytes, sizeof(bytes)) : 0;
      if (size <= 0) return testing::AssertionFailure() << "only this is shown: " << shown_;
      shown_.append(bytes, size);
    }
    shown_.erase(0, shown_.find(text) + text.size());
    return testing::AssertionSuccess();
  }

  // Waits 20 s for the end of the program: its exit code, -1 when a signal ended it or none came.
  int ExitCode() {
    int status;
    if (!ComesTrue([&] { return waitpid(pid_, &status, WNOHANG) == pid_; })) return -1;
    pid_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  int fd_;
  pid_t pid_;
  std::string shown_;
};

class ChatTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int ours, theirs;
    if (openpty(&ours, &theirs, nullptr, nullptr, nullptr) != 0) {
      GTEST_SKIP() << "this machine gives no pseudo-terminals";
    }
    close(ours);
    close(theirs);
  }
};

TEST_F(ChatTest, CtrlCAtThePromptForgetsTheLineAndCtrlDEnds) {
  ServerFixture fixture;
  ChatTerminal chat(fixture.server().address());
  ASSERT_TRUE(chat.Shows("> "));
  for (int i = 0; i < 3; ++i) {
    chat.Type(std::string("half a question") + kCtrlC);
    ASSERT_TRUE(chat.Shows("[Ctrl-D or /quit ends the chat]\r\n> "));
  }
  chat.Type("/nothing\n");
  EXPECT_TRUE(chat.Shows("[there is no command /nothing;"));
  ASSERT_TRUE(chat.Shows("> "));
  chat.Type(kCtrlD);
  EXPECT_EQ(chat.ExitCode(), 0);
}

TEST_F(ChatTest, CtrlCStopsAnAnswerAloneAlsoBeforeItsFirstToken) {
  absl::Notification go_on;
  ServerFixture fixture({.engine = {.on_step = [&](int64_t, const Batch&) {
                           go_on.WaitForNotification();
                           return absl::OkStatus();
                         }}});
  ChatTerminal chat(fixture.server().address());
  ASSERT_TRUE(chat.Shows("> "));
  chat.Type("a question\n");
  const bool asked = ComesTrue([&] { return fixture.server().streams_open() == 1; });
  chat.Type(kCtrlC);
  const testing::AssertionResult stopped = chat.Shows("[stopped; the question is forgotten]\r\n> ");
  go_on.Notify();
  ASSERT_TRUE(asked);
  ASSERT_TRUE(stopped);
  EXPECT_TRUE(fixture.BecomesIdle());
  chat.Type("another\n");
  EXPECT_TRUE(chat.Shows("[5 tokens, "));
  ASSERT_TRUE(chat.Shows("> "));
  chat.Type("/quit\n");
  EXPECT_EQ(chat.ExitCode(), 0);
}

// A server that cancels every request by itself.
class CancellingService final : public v1::Generation::Service {
  grpc::Status GetModel(grpc::ServerContext*, const v1::GetModelRequest*,
                        v1::GetModelResponse* response) override {
    response->set_has_chat_template(true);
    return grpc::Status::OK;
  }
  grpc::Status Generate(grpc::ServerContext*, const v1::GenerateRequest*,
                        grpc::ServerWriter<v1::GenerateResponse>*) override {
    return grpc::Status(grpc::StatusCode::CANCELLED, "not today");
  }
};

TEST_F(ChatTest, ACancelOfTheServersIsShownAsItsError) {
  CancellingService service;
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  ChatTerminal chat(absl::StrCat("127.0.0.1:", port));
  ASSERT_TRUE(chat.Shows("> "));
  chat.Type("a question\n");
  EXPECT_TRUE(chat.Shows("[CANCELLED: not today]\r\n> "));
}

}  // namespace
}  // namespace latentd
