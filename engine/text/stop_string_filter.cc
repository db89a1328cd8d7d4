#include "engine/text/stop_string_filter.h"

#include <algorithm>
#include <utility>

namespace latentd {

StopStringFilter::StopStringFilter(std::vector<std::string> stop_strings, bool include_stop)
    : include_stop_(include_stop) {
  for (std::string& text : stop_strings) {
    if (text.empty()) continue;
    std::vector<size_t> border(text.size() + 1, 0);
    for (size_t n = 2, k = 0; n <= text.size(); ++n) {
      while (k > 0 && text[k] != text[n - 1]) k = border[k];
      if (text[k] == text[n - 1]) ++k;
      border[n] = k;
    }
    patterns_.push_back({.text = std::move(text), .border = std::move(border)});
  }
}

StopStringFilter::Result StopStringFilter::Push(std::string_view text) {
  if (stopped_) return {};
  for (size_t i = 0; i < text.size(); ++i) {
    const Pattern* found = nullptr;
    for (Pattern& pattern : patterns_) {
      size_t& n = pattern.matched;
      while (n > 0 && pattern.text[n] != text[i]) n = pattern.border[n];
      if (pattern.text[n] == text[i]) ++n;
      if (n == pattern.text.size() && (!found || n > found->text.size())) found = &pattern;
    }
    if (!found) continue;
    stopped_ = true;
    held_.append(text.substr(0, i + 1));
    if (!include_stop_) held_.resize(held_.size() - found->text.size());
    return {.text = std::exchange(held_, {}), .stopped = true, .matched = found->text};
  }
  size_t keep = 0;
  for (const Pattern& pattern : patterns_) keep = std::max(keep, pattern.matched);
  held_.append(text);
  std::string shown = held_.substr(0, held_.size() - keep);
  held_.erase(0, shown.size());
  return {.text = std::move(shown)};
}

std::string StopStringFilter::Flush() {
  stopped_ = true;
  return std::exchange(held_, {});
}

}  // namespace latentd
