// latentd: serves one model over gRPC until SIGTERM or SIGINT, drains, and exits with 0; a second
// signal ends what still runs. One that comes while the model loads ends the process at once, also
// with 0. Exits with 1 when it cannot start or its engine died, and with 2 for a bad command line.

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>

#include "base/check.h"
#include "base/command_line.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "google/protobuf/stubs/logging.h"
#include "grpc/support/log.h"
#include "server/config.h"
#include "server/daemon.h"
#include "spdlog/spdlog.h"

namespace latentd {
namespace {

enum class Event : char { kSignal, kStarted, kEngineDead, kDrained };

// Signals and other threads' news, for the one thread that waits for them. Made before any other
// thread, which inherit the blocked signals.
class EventQueue {
 public:
  EventQueue() {
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    pthread_sigmask(SIG_BLOCK, &signals, nullptr);
    signal_fd_ = signalfd(-1, &signals, SFD_CLOEXEC);
    LATENTD_CHECK(signal_fd_ >= 0 && pipe2(pipe_, O_CLOEXEC) == 0);
  }
  ~EventQueue() {
    for (int fd : {signal_fd_, pipe_[0], pipe_[1]}) close(fd);
  }

  // From any thread. Does not block: there are only a few in the life of a process.
  void Post(Event event) { LATENTD_CHECK(write(pipe_[1], &event, sizeof(event)) == sizeof(event)); }

  Event Wait() {
    pollfd fds[] = {{signal_fd_, POLLIN, 0}, {pipe_[0], POLLIN, 0}};
    while (poll(fds, 2, -1) < 0) {
    }
    if (fds[0].revents != 0) {
      signalfd_siginfo info;
      LATENTD_CHECK(read(signal_fd_, &info, sizeof(info)) == sizeof(info));
      spdlog::info("received SIG{}", sigabbrev_np(static_cast<int>(info.ssi_signo)));
      return Event::kSignal;
    }
    Event event;
    LATENTD_CHECK(read(pipe_[0], &event, sizeof(event)) == sizeof(event));
    return event;
  }

 private:
  int signal_fd_;
  int pipe_[2];
};

// A started daemon, or an error. Nothing waits for a start that is no longer wanted: a signal ends
// the process at once.
absl::StatusOr<std::unique_ptr<Daemon>> Start(const ServerConfig& config, EventQueue* events) {
  absl::StatusOr<std::unique_ptr<Daemon>> daemon;
  std::thread start([&] {
    daemon = Daemon::Start(config, [events] { events->Post(Event::kEngineDead); });
    events->Post(Event::kStarted);
  });
  bool dead = false;
  for (Event event = events->Wait(); event != Event::kStarted; event = events->Wait()) {
    if (event == Event::kSignal) {
      spdlog::info("ended while starting");
      std::_Exit(0);
    }
    dead = true;
  }
  start.join();
  if (dead) events->Post(Event::kEngineDead);  // for whoever waits next
  return daemon;
}

int Run(const ServerConfig& config) {
  EventQueue events;
  google::protobuf::SetLogHandler(nullptr);  // a client's broken bytes are answered, not logged
  gpr_set_log_function([](gpr_log_func_args* line) { spdlog::debug("grpc: {}", line->message); });
  absl::StatusOr<std::unique_ptr<Daemon>> daemon = Start(config, &events);
  if (!daemon.ok()) {
    spdlog::error("{}", std::string(daemon.status().message()));
    return 1;
  }
  int exit_code = 0;
  absl::Duration grace = absl::Seconds(config.drain_seconds);
  if (events.Wait() == Event::kEngineDead) {
    exit_code = 1;
    grace = absl::ZeroDuration();
    spdlog::error("the engine is dead; exiting, so that a supervisor starts it anew");
  }
  std::thread drain([&] {
    (*daemon)->Drain(absl::Now() + grace);
    events.Post(Event::kDrained);
  });
  for (Event event = events.Wait(); event != Event::kDrained; event = events.Wait()) {
    if (event == Event::kEngineDead) {
      exit_code = 1;
      continue;
    }
    (*daemon)->EndRequests();
  }
  drain.join();
  daemon->reset();
  spdlog::info("done");
  return exit_code;
}

absl::Status Configure(CommandLine* flags, ServerConfig* config) {
  if (!config->config_file.empty()) RETURN_IF_ERROR(flags->ParseFile(config->config_file));
  RETURN_IF_ERROR(Validate(*config));
  return SetUpLog(config->log_level);
}

}  // namespace
}  // namespace latentd

int main(int argc, char** argv) {
  latentd::ServerConfig config;
  latentd::CommandLine flags(
      {.program = "latentd",
       .summary = "Serves a language model over gRPC from a paged cache of compressed latents.",
       .example = "latentd --model model.gguf --latents model.latents --cache-bytes 2GiB",
       .positional = ""});
  latentd::AddServerFlags(&flags, &config);
  flags.ParseOrExit(argc, argv);
  const absl::Status status = latentd::Configure(&flags, &config);
  if (!status.ok()) {
    std::fprintf(stderr, "latentd: %s\n", std::string(status.message()).c_str());
    return 2;
  }
  return latentd::Run(config);
}
