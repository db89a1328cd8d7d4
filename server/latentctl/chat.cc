#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <functional>
#include <iostream>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/command_line.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "server/latentctl/answer.h"
#include "server/latentctl/commands.h"
#include "server/latentctl/request_flags.h"

namespace latentd {
namespace {

void Add(v1::Chat* chat, const char* role, const std::string& content) {
  v1::ChatMessage* message = chat->add_messages();
  message->set_role(role);
  message->set_content(content);
}

// The conversation so far, as the server gets it with each question.
class Conversation {
 public:
  explicit Conversation(const std::string& system) {
    if (!system.empty()) Add(&chat_, "system", system);
    num_fixed_ = chat_.messages_size();
  }
  const v1::Chat& chat() const { return chat_; }
  void AddQuestion(const std::string& text) { Add(&chat_, "user", text); }
  void AddAnswer(const std::string& text) { Add(&chat_, "assistant", text); }
  void DropQuestion() { chat_.mutable_messages()->RemoveLast(); }
  void Reset() {
    chat_.mutable_messages()->DeleteSubrange(num_fixed_, chat_.messages_size() - num_fixed_);
  }

 private:
  v1::Chat chat_;
  int num_fixed_ = 0;
};

constexpr char kPrompt[] = "> ";
constexpr char kHelp[] =
    "/reset forgets the conversation, Ctrl-C stops an answer and forgets its question, /help says "
    "this, /quit or Ctrl-D ends.";

// "/word": what no question looks like.
bool IsCommand(const std::string& line) {
  return line.size() > 1 && line[0] == '/' &&
         std::all_of(line.begin() + 1, line.end(), [](char c) { return absl::ascii_isalpha(c); });
}

// Calls `on_interrupt` for each SIGINT, on a thread of its own, while it lives. One at a time.
class Interrupts {
 public:
  explicit Interrupts(std::function<void()> on_interrupt) {
    int ends[2];
    LATENTD_CHECK(pipe2(ends, O_CLOEXEC) == 0);
    signals_ = ends[1];
    thread_ = std::thread([from = ends[0], on_interrupt = std::move(on_interrupt)] {
      for (char byte; read(from, &byte, 1) == 1;) on_interrupt();
      close(from);
    });
    struct sigaction action = {};
    action.sa_handler = [](int) {
      const int interrupted_call = errno;
      (void)!write(signals_, "", 1);
      errno = interrupted_call;
    };
    action.sa_flags = SA_RESTART;
    sigaction(SIGINT, &action, &before_);
  }
  ~Interrupts() {
    sigaction(SIGINT, &before_, nullptr);
    close(signals_);
    thread_.join();
  }
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

 private:
  static inline int signals_ = -1;  // the end of the pipe that the signal handler writes to
  std::thread thread_;
  struct sigaction before_ = {};
};

// Asks one question at a time; a Ctrl-C ends its answer, and says how to leave when there is none.
class Asker {
 public:
  explicit Asker(Client* client) : client_(client) {}

  Answer Ask(const v1::GenerateRequest& request, Cancellation* cancellation) {
    SetRunning(cancellation);
    Answer answer = AskAndPrint(client_, request, absl::InfiniteFuture(), cancellation);
    SetRunning(nullptr);
    return answer;
  }

  // From any thread. The terminal has already thrown away the line that was being typed.
  void Interrupt() {
    {
      MutexLock lock(&mu_);  // also during Cancel: once Ask has returned, *running_ may be gone
      if (running_ != nullptr) return running_->Cancel();
    }
    std::printf("\n[Ctrl-D or /quit ends the chat]\n%s", kPrompt);
    std::fflush(stdout);
  }

 private:
  void SetRunning(Cancellation* running) {
    MutexLock lock(&mu_);
    running_ = running;
  }

  Client* const client_;
  Mutex mu_;
  Cancellation* running_ ABSL_GUARDED_BY(mu_) = nullptr;
};

// "12 tokens, 86.2 tokens/s; 48 of 8192 tokens of context, in 195 KiB instead of 1.41 MiB": one row
// of a terminal.
std::string ShortSummary(const Answer& answer, int max_context) {
  const v1::Usage& usage = answer.finish.usage();
  std::string text = absl::StrFormat("%d tokens, %.1f tokens/s; %d of %d tokens of context, in %s",
                                     usage.generated_tokens(), answer.decode_tokens_per_s(),
                                     usage.prompt_tokens() + usage.generated_tokens(), max_context,
                                     FormatBytes(static_cast<double>(usage.cache_bytes())));
  if (usage.full_cache_bytes() != usage.cache_bytes()) {
    absl::StrAppend(&text, " instead of ",
                    FormatBytes(static_cast<double>(usage.full_cache_bytes())));
  }
  return text;
}

}  // namespace

absl::Status ChatCommand(Arguments args) {
  std::string target, system;
  RequestFlags request_flags;
  CommandLine flags(
      {.program = "latentctl chat",
       .summary =
           "Talks with the model, one line a question. /reset forgets, Ctrl-C stops an answer, "
           "/quit or the end of\ninput (Ctrl-D) ends.",
       .example = "latentctl chat --system \"Answer in one sentence.\" --temperature 0.7",
       .positional = ""});
  AddTargetFlag(&flags, &target);
  flags.Add("system", &system, "TEXT", "a system message that opens the conversation");
  request_flags.AddTo(&flags);
  flags.ParseOrExit(args);

  Client client(target);
  ASSIGN_OR_RETURN(const v1::GetModelResponse model, client.GetModel());
  if (!model.has_chat_template()) {
    return absl::FailedPreconditionError(
        model.name() + " has no chat template; latentctl generate continues a text");
  }
  const bool interactive = isatty(STDIN_FILENO) != 0;
  if (interactive) {
    std::printf("%s, context %d tokens.\n%s\n", model.name().c_str(), model.max_context(), kHelp);
  }
  Asker asker(&client);
  std::optional<Interrupts> interrupts;
  if (interactive) interrupts.emplace([&] { asker.Interrupt(); });
  Conversation conversation(system);
  for (;;) {
    if (interactive) std::fputs(kPrompt, stdout);
    std::fflush(stdout);
    std::string line;
    if (!std::getline(std::cin, line)) {
      if (interactive) std::puts("");  // the prompt has a row of its own
      break;
    }
    if (line == "/quit") break;
    if (line == "/reset") {
      conversation.Reset();
    } else if (line == "/help") {
      std::fprintf(stderr, "%s\n", kHelp);
    } else if (IsCommand(line)) {
      std::fprintf(stderr, "[there is no command %s; %s]\n", line.c_str(), kHelp);
    }
    if (line.empty() || IsCommand(line)) continue;

    conversation.AddQuestion(line);
    v1::GenerateRequest request;
    *request.mutable_chat() = conversation.chat();
    request_flags.Apply(&request);
    Cancellation cancellation;
    const Answer answer = asker.Ask(request, &cancellation);
    if (!answer.status.ok()) {
      if (!interactive) return answer.status;
      std::fprintf(stderr, "[%s]\n",
                   cancellation.cancelled() ? "stopped; the question is forgotten"
                                            : std::string(answer.status.message()).c_str());
      conversation.DropQuestion();
      continue;
    }
    conversation.AddAnswer(answer.text);
    std::fprintf(stderr, "[%s]\n", ShortSummary(answer, model.max_context()).c_str());
  }
  return absl::OkStatus();
}

}  // namespace latentd
