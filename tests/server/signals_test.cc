// The process latentd and its signals.

#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "server/latentctl/client.h"
#include "tests/testing/server_fixture.h"
#include "tests/testing/tiny_model.h"

namespace latentd {
namespace {

// A latentd of its own, killed with its owner.
class DaemonProcess {
 public:
  explicit DaemonProcess(std::vector<std::string> flags) {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    log_ = ends[0];
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
    posix_spawn_file_actions_addclose(&actions, ends[0]);
    flags.insert(flags.begin(), "latentd");
    std::vector<char*> arguments;
    for (std::string& flag : flags) arguments.push_back(flag.data());
    arguments.push_back(nullptr);
    EXPECT_EQ(posix_spawn(&pid_, LATENTD_PROGRAM, &actions, nullptr, arguments.data(), environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
  }
  ~DaemonProcess() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    close(log_);
  }

  const std::string& log() const { return log_so_far_; }
  void Signal(int signal) const { kill(pid_, signal); }

  // The log's next line that contains `text`; empty if none comes within 60 s.
  std::string LineWith(const std::string& text) {
    const absl::Time deadline = absl::Now() + absl::Seconds(60);
    for (;;) {
      for (size_t end = unread_.find('\n'); end != std::string::npos; end = unread_.find('\n')) {
        const std::string line = unread_.substr(0, end);
        unread_.erase(0, end + 1);
        log_so_far_ += line + "\n";
        if (absl::StrContains(line, text)) return line;
      }
      pollfd log = {log_, POLLIN, 0};
      const auto left = absl::ToInt64Milliseconds(deadline - absl::Now());
      char bytes[4096];
      if (left <= 0 || poll(&log, 1, static_cast<int>(left)) <= 0) return "";
      const ssize_t count = read(log_, bytes, sizeof(bytes));
      if (count <= 0) return "";
      unread_.append(bytes, static_cast<size_t>(count));
    }
  }

  // The exit code, once its log has ended; -1 if a signal ended it.
  int Wait() {
    LineWith("\n");
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  pid_t pid_ = 0;
  int log_ = -1;
  std::string unread_, log_so_far_;
};

// With random weights it needs no tokenizer.
std::vector<std::string> ServeTinyModel() {
  return {"--model=" + WriteTinyModel({}),
          "--dummy-weights",
          "--max-context=100000",
          "--cache-bytes=256MiB",
          "--listen=127.0.0.1:0",
          "--metrics-listen=off",
          "--drain-seconds=600"};
}

TEST(SignalsTest, AnIdleDaemonEndsAtTheFirst) {
  DaemonProcess daemon(ServeTinyModel());
  ASSERT_NE(daemon.LineWith("ready: gRPC on "), "") << daemon.log();
  daemon.Signal(SIGINT);
  EXPECT_EQ(daemon.Wait(), 0);
}

TEST(SignalsTest, TheSecondEndsWhatTheFirstLeavesTimeFor) {
  DaemonProcess daemon(ServeTinyModel());
  const std::string ready = daemon.LineWith("ready: gRPC on ");
  ASSERT_NE(ready, "") << daemon.log();
  const std::string address = ready.substr(ready.rfind(' ') + 1);
  absl::Notification begun;
  absl::Status status;
  std::thread client([&] {
    v1::GenerateRequest request = TextRequest("", 90000);
    request.clear_text();
    for (const int id : {1, 2, 3}) request.mutable_token_ids()->add_ids(id);
    status = Client(address).Generate(request, absl::Now() + absl::Seconds(30), [&](const auto&) {
      if (!begun.HasBeenNotified()) begun.Notify();
      return true;
    });
    if (!begun.HasBeenNotified()) begun.Notify();
  });
  begun.WaitForNotification();
  daemon.Signal(SIGTERM);
  EXPECT_NE(daemon.LineWith("draining: open requests (1)"), "") << daemon.log();
  daemon.Signal(SIGTERM);
  client.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_EQ(daemon.Wait(), 0);
}

}  // namespace
}  // namespace latentd
