#include "engine/evaluation/continuation.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/batch.h"
#include "engine/evaluation/windows.h"

namespace latentd {
namespace {

// The row at `position` predicts `token`; what it says goes to *score.
struct Target {
  int position;
  int32_t token;
  ContinuationScore* score;
};

// Rows [begin, end) of one sequence.
struct Run {
  absl::Span<const int32_t> tokens;
  int begin = 0;
  int end = 0;
  std::vector<Target> targets;
};

// A question at work.
struct Seat {
  const std::vector<Continuation>* continuations = nullptr;
  std::vector<ContinuationScore>* scores = nullptr;
  std::vector<int32_t> blocks;
  int common = 0;     // rows that all continuations share
  int last_page = 0;  // of the latest row
};

int Rows(const Continuation& c) { return static_cast<int>(c.tokens.size()) - 1; }

int64_t BlocksOf(const std::vector<Continuation>& continuations) {
  int rows = 0;
  for (const Continuation& c : continuations) rows = std::max(rows, Rows(c));
  return (rows + kBlockTokens - 1) / kBlockTokens;
}

// How many first rows are the same for all continuations.
int CommonRows(const std::vector<Continuation>& continuations) {
  const Continuation& first = continuations[0];
  int common = Rows(first);
  for (const Continuation& c : continuations) {
    common = std::min(common, Rows(c));
    const auto end =
        std::mismatch(first.tokens.begin(), first.tokens.begin() + common, c.tokens.begin());
    common = static_cast<int>(end.first - first.tokens.begin());
  }
  return common;
}

void AddTargets(const Continuation& c, ContinuationScore* score, Run* run) {
  for (int p = std::max(run->begin, c.start - 1); p < std::min(run->end, Rows(c)); ++p) {
    run->targets.push_back({.position = p, .token = c.tokens[p + 1], .score = score});
  }
}

// Scores a few questions, each in a seat and blocks of its own.
class Group {
 public:
  Group(Engine& engine, bool greedy) : engine_(engine), greedy_(greedy) {}

  bool HasRoomFor(const std::vector<Continuation>& question) const {
    return static_cast<int>(seats_.size()) < engine_.info().num_sequences &&
           used_blocks_ + BlocksOf(question) <= engine_.info().num_blocks;
  }

  void Add(const std::vector<Continuation>& question, std::vector<ContinuationScore>* scores) {
    Seat seat{.continuations = &question,
              .scores = scores,
              .blocks = std::vector<int32_t>(BlocksOf(question)),
              .common = CommonRows(question)};
    std::iota(seat.blocks.begin(), seat.blocks.end(), static_cast<int32_t>(used_blocks_));
    used_blocks_ += static_cast<int64_t>(seat.blocks.size());
    scores->assign(question.size(), {});
    seats_.push_back(std::move(seat));
  }

  absl::Status Score() {
    size_t most = 0;
    std::vector<Run> runs(seats_.size());
    for (size_t s = 0; s < seats_.size(); ++s) {
      const std::vector<Continuation>& question = *seats_[s].continuations;
      most = std::max(most, question.size());
      runs[s] = {.tokens = question[0].tokens, .begin = 0, .end = seats_[s].common};
      for (size_t c = 0; c < question.size(); ++c) {
        AddTargets(question[c], &(*seats_[s].scores)[c], &runs[s]);
      }
    }
    RETURN_IF_ERROR(Compute(runs));
    for (size_t c = 0; c < most; ++c) {
      for (size_t s = 0; s < seats_.size(); ++s) runs[s] = RunOf(seats_[s], c);
      RETURN_IF_ERROR(Compute(runs));
    }
    return absl::OkStatus();
  }

 private:
  // The rows of continuation c after the common ones; none when it has no others.
  static Run RunOf(const Seat& seat, size_t c) {
    if (c >= seat.continuations->size()) return {};
    const Continuation& continuation = (*seat.continuations)[c];
    if (Rows(continuation) == seat.common) return {};
    const int page = seat.common / kBlockTokens;
    Run run{.tokens = continuation.tokens,
            .begin = seat.last_page > page ? page * kBlockTokens : seat.common,
            .end = Rows(continuation)};
    AddTargets(continuation, &(*seat.scores)[c], &run);
    // Common rows that are computed again were scored before.
    std::erase_if(run.targets, [&](const Target& t) { return t.position < seat.common; });
    return run;
  }

  // Computes one run per seat, in steps of at most kStepTokens rows.
  absl::Status Compute(std::vector<Run>& runs) {
    std::vector<const Target*> targets;
    Batch batch = NewBatch();
    for (size_t s = 0; s < runs.size(); ++s) {
      Run& run = runs[s];
      while (run.begin < run.end) {
        const int room = kStepTokens - batch.num_tokens();
        const int end = std::min(run.end, run.begin + room);
        AddRows(run, end, seats_[s], static_cast<int32_t>(s), &batch, &targets);
        run.begin = end;
        if (batch.num_tokens() < kStepTokens) continue;
        RETURN_IF_ERROR(Step(batch, targets));
        batch = NewBatch();
        targets.clear();
      }
    }
    return batch.num_tokens() > 0 ? Step(batch, targets) : absl::OkStatus();
  }

  Batch NewBatch() const {
    size_t most = 0;
    for (const Seat& seat : seats_) most = std::max(most, seat.blocks.size());
    return Batch{.max_blocks = static_cast<int64_t>(most)};
  }

  void AddRows(const Run& run, int end, Seat& seat, int32_t index, Batch* batch,
               std::vector<const Target*>* targets) const {
    const int first_row = batch->num_tokens();
    AppendRows(batch, run.tokens, run.begin, end, seat.blocks, index);
    seat.last_page = (end - 1) / kBlockTokens;
    for (const Target& target : run.targets) {
      if (target.position < run.begin || target.position >= end) continue;
      const int32_t row = first_row + target.position - run.begin;
      batch->scores.push_back({.row = row, .token_id = target.token});
      if (greedy_) {
        batch->samples.push_back(
            {.row = row, .params = {.temperature = 0}, .position = target.position + 1});
      }
      targets->push_back(&target);
    }
  }

  absl::Status Step(const Batch& batch, const std::vector<const Target*>& targets) {
    ASSIGN_OR_RETURN(const StepOutput output, engine_.Step(batch));
    for (size_t i = 0; i < targets.size(); ++i) {
      if (!std::isfinite(output.logprobs[i])) {
        return absl::InternalError("the model's log probabilities are not finite");
      }
      ContinuationScore& score = *targets[i]->score;
      score.logprob += output.logprobs[i];
      ++score.tokens;
      if (greedy_) score.greedy_tokens += output.samples[i].token_id == targets[i]->token;
    }
    return absl::OkStatus();
  }

  Engine& engine_;
  const bool greedy_;
  std::vector<Seat> seats_;
  int64_t used_blocks_ = 0;
};

}  // namespace

absl::Status CheckFits(const std::vector<Continuation>& question, const EngineInfo& info) {
  for (const Continuation& c : question) {
    if (Rows(c) <= info.max_context) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("has ", c.tokens.size(), " tokens, the context is ", info.max_context));
  }
  if (BlocksOf(question) <= info.num_blocks) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("needs ", BlocksOf(question), " blocks, the pool has ", info.num_blocks));
}

absl::StatusOr<Continuation> EncodeContinuation(const Tokenizer& tokenizer, std::string context,
                                                std::string continuation) {
  const size_t kept = absl::StripTrailingAsciiWhitespace(context).size();
  continuation.insert(0, context, kept);
  context.resize(kept);
  Continuation encoded;
  ASSIGN_OR_RETURN(encoded.tokens, tokenizer.Encode(context, false, false));
  ASSIGN_OR_RETURN(const std::vector<int32_t> both,
                   tokenizer.Encode(context + continuation, false, false));
  encoded.start = static_cast<int>(encoded.tokens.size());
  if (encoded.tokens.empty() || both.size() <= encoded.tokens.size()) {
    return absl::InvalidArgumentError(absl::StrCat("the context \"", context, "\" has ",
                                                   encoded.tokens.size(), " tokens, with \"",
                                                   continuation, "\" ", both.size()));
  }
  encoded.tokens.insert(encoded.tokens.end(), both.begin() + encoded.start, both.end());
  return encoded;
}

absl::StatusOr<std::vector<std::vector<ContinuationScore>>> ScoreContinuations(
    Engine& engine, absl::Span<const std::vector<Continuation>> questions, bool greedy) {
  for (size_t q = 0; q < questions.size(); ++q) {
    const absl::Status fits = CheckFits(questions[q], engine.info());
    if (!fits.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("question ", q, " ", fits.message()));
    }
  }
  std::vector<std::vector<ContinuationScore>> scores(questions.size());
  for (size_t q = 0; q < questions.size();) {
    Group group(engine, greedy);
    for (; q < questions.size() && group.HasRoomFor(questions[q]); ++q) {
      group.Add(questions[q], &scores[q]);
    }
    RETURN_IF_ERROR(group.Score());
  }
  return scores;
}

}  // namespace latentd
