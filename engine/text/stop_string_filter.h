#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace latentd {

// Finds stop strings in a stream of text: text that may be the start of one is held back. The stop
// string that is complete first wins (the longest of those that end at the same byte), so the
// outcome does not depend on how the text was cut into pushes. Owned by one thread.
class StopStringFilter {
 public:
  // Empty stop strings never match. include_stop: the stop string itself is shown too.
  StopStringFilter(std::vector<std::string> stop_strings, bool include_stop);

  struct Result {
    std::string text;      // to show now
    bool stopped = false;  // a stop string was found: nothing may follow
    std::string matched;   // which
  };
  // Text pushed after the stop is ignored.
  Result Push(std::string_view text);

  std::string Flush();  // what was held back, once no more text comes

 private:
  // A stop string and how much of it the text seen so far ends with (Knuth, Morris, Pratt 1977).
  struct Pattern {
    std::string text;
    std::vector<size_t> border;  // border[n]: longest proper border of the first n bytes
    size_t matched = 0;
  };

  std::vector<Pattern> patterns_;
  const bool include_stop_;
  bool stopped_ = false;
  std::string held_;
};

}  // namespace latentd
