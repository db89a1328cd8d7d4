#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "engine/text/incremental_decoder.h"
#include "engine/text/stop_string_filter.h"

namespace latentd {

// What ends a text, beside its length.
struct StopConditions {
  std::vector<std::string> strings;
  std::vector<int32_t> token_ids;
  bool include_stop = false;  // keep what ended the text
  int min_tokens = 0;         // stop strings count from there on
};

// The tokens of one generation turned into what its client may see of the text so far. Owned by one
// thread at a time.
class ResponseText {
 public:
  ResponseText(const Tokenizer* tokenizer, const std::vector<int32_t>& prompt, StopConditions stop);

  struct Delta {
    std::string text;
    bool stopped = false;  // at a stop string: later tokens give nothing
    std::string stop_string;
  };
  absl::StatusOr<Delta> Push(int32_t token);
  absl::StatusOr<Delta> Flush();  // once no more tokens come

  int num_tokens() const { return num_tokens_; }  // pushed before the stop

 private:
  Delta Filter(std::string text);

  const absl::flat_hash_set<int32_t> stop_token_ids_;
  const bool include_stop_;
  const int min_tokens_;
  IncrementalDecoder decoder_;
  StopStringFilter filter_;
  int num_tokens_ = 0;
  bool stopped_ = false;
};

}  // namespace latentd
