#include "server/latentctl/load.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <thread>

#include "absl/time/clock.h"
#include "base/random.h"

namespace latentd {
namespace {

// Streams of random numbers, one per use.
enum Draw : uint64_t { kArrival = 1, kCancel = 2, kPrompt = 3 };

v1::GenerateRequest MakeRequest(const LoadOptions& options, int index) {
  v1::GenerateRequest request;
  const uint64_t seed = RandomBits(static_cast<uint64_t>(options.seed) * 4 + kPrompt, index);
  for (int i = 0; i < options.prompt_tokens; ++i) {
    request.mutable_token_ids()->add_ids(
        static_cast<int64_t>(RandomBits(seed, i) % options.vocab_size));
  }
  request.set_max_tokens(options.output_tokens);
  request.set_ignore_eos(true);
  request.mutable_sampling()->set_seed(seed);
  return request;
}

// When each request is due, since the start: exponential gaps, so a Poisson process.
std::vector<absl::Duration> Arrivals(const LoadOptions& options) {
  std::vector<absl::Duration> due(options.requests, absl::ZeroDuration());
  if (options.rate <= 0) return due;
  double seconds = 0;
  for (int i = 0; i < options.requests; ++i) {
    due[i] = absl::Seconds(seconds);
    const float u = RandomUniform(static_cast<uint64_t>(options.seed) * 4 + kArrival, i);
    seconds -= std::log1p(-static_cast<double>(u)) / options.rate;
  }
  return due;
}

LoadRow RunOne(Client* client, const LoadOptions& options, int index, absl::Time start,
               absl::Time due) {
  LoadRow row{.index = index, .due = due - start};
  const v1::GenerateRequest request = MakeRequest(options, index);
  const bool cancels =
      RandomUniform(static_cast<uint64_t>(options.seed) * 4 + kCancel, index) < options.cancel;
  row.sent_late = absl::Now() - due;
  const absl::Time deadline = options.deadline_ms > 0
                                  ? absl::Now() + absl::Milliseconds(options.deadline_ms)
                                  : absl::InfiniteFuture();
  absl::Time previous;
  row.status = client->Generate(request, deadline, [&](const v1::GenerateResponse& message) {
    const absl::Time now = absl::Now();
    if (message.has_finish()) row.reason = v1::Finish::Reason_Name(message.finish().reason());
    if (message.token_ids().empty()) return true;
    if (row.output_tokens == 0) {
      row.ttft = now - due;
    } else {
      row.gaps.push_back(now - previous);
    }
    previous = now;
    row.output_tokens += message.token_ids_size();
    row.cancelled_by_us =
        cancels && !message.has_finish() && row.output_tokens >= (options.output_tokens + 1) / 2;
    return !row.cancelled_by_us;
  });
  row.e2e = absl::Now() - due;
  return row;
}

}  // namespace

LoadResult RunLoad(const std::string& target, const LoadOptions& options) {
  Client client(target);
  LoadResult result;
  result.rows.resize(options.requests);
  const std::vector<absl::Duration> due = Arrivals(options);
  const absl::Time start = absl::Now();
  std::atomic<int> next{0};  // of a closed loop; its threads outlive the branch below
  std::vector<std::thread> threads;
  if (options.rate > 0) {
    for (int i = 0; i < options.requests; ++i) {
      std::this_thread::sleep_until(absl::ToChronoTime(start + due[i]));
      threads.emplace_back(
          [&, i] { result.rows[i] = RunOne(&client, options, i, start, start + due[i]); });
    }
  } else {
    for (int t = 0; t < std::min(options.concurrency, options.requests); ++t) {
      threads.emplace_back([&] {
        for (int i = next++; i < options.requests; i = next++) {
          result.rows[i] = RunOne(&client, options, i, start, absl::Now());
        }
      });
    }
  }
  for (std::thread& thread : threads) thread.join();
  result.duration = absl::Now() - start;
  return result;
}

}  // namespace latentd
