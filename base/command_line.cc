#include "base/command_line.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "base/version.h"

namespace latentd {
namespace {

constexpr struct {
  const char* suffix;
  double factor;
} kByteUnits[] = {{"kib", 0x1p10}, {"mib", 0x1p20}, {"gib", 0x1p30}, {"tib", 0x1p40}, {"kb", 1e3},
                  {"mb", 1e6},     {"gb", 1e9},     {"tb", 1e12},    {"b", 1}};

// Levenshtein distance, for suggesting the flag that was meant.
int EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<int> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    int diagonal = row[0];
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const int substituted = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
    }
  }
  return row[b.size()];
}

std::string FormatLimit(double limit) {
  return std::abs(limit) < 1e15 && limit == std::floor(limit) ? absl::StrFormat("%.0f", limit)
                                                              : absl::StrCat(limit);
}

absl::Status CheckRange(absl::string_view name, double value, const FlagRange& range) {
  if (value >= range.min && value <= range.max) return absl::OkStatus();
  const std::string given = FormatLimit(value);
  if (std::isinf(range.max)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--", name, " is ", given, ", but must be at least ", FormatLimit(range.min)));
  }
  return absl::InvalidArgumentError(absl::StrCat("--", name, " is ", given, ", but must lie in [",
                                                 FormatLimit(range.min), ", ",
                                                 FormatLimit(range.max), "]"));
}

absl::Status BadValue(absl::string_view name, absl::string_view text, absl::string_view wanted) {
  return absl::InvalidArgumentError(
      absl::StrCat("--", name, " is \"", text, "\", but must be ", wanted));
}

std::optional<bool> ParseBool(absl::string_view text) {
  bool value;
  if (absl::SimpleAtob(text, &value)) return value;
  return std::nullopt;
}

template <class Int>
absl::Status AssignInt(absl::string_view name, absl::string_view text, FlagRange range,
                       Int* value) {
  Int parsed;
  if (!absl::SimpleAtoi(text, &parsed)) return BadValue(name, text, "a whole number");
  RETURN_IF_ERROR(CheckRange(name, static_cast<double>(parsed), range));
  *value = parsed;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<int64_t> ParseBytes(absl::string_view text) {
  const std::string lower = absl::AsciiStrToLower(absl::StripAsciiWhitespace(text));
  absl::string_view number = lower;
  double factor = 1;
  for (const auto& unit : kByteUnits) {
    if (absl::ConsumeSuffix(&number, unit.suffix)) {
      factor = unit.factor;
      break;
    }
  }
  double value;
  if (!absl::SimpleAtod(absl::StripAsciiWhitespace(number), &value) || !(value >= 0) ||
      value * factor > 0x1p62) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", text, "\" is not a size such as 2GiB, 512MiB or 4096"));
  }
  return static_cast<int64_t>(std::llround(value * factor));
}

std::string FormatBytes(double bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  int unit = 0;
  while (std::abs(bytes) >= 1024 && unit < 4) {
    bytes /= 1024;
    ++unit;
  }
  if (bytes == std::floor(bytes) && unit == 0) return absl::StrFormat("%.0f B", bytes);
  const int decimals = bytes >= 100 ? 0 : bytes >= 10 ? 1 : 2;
  return absl::StrFormat("%.*f %s", decimals, bytes, kUnits[unit]);
}

CommandLine::CommandLine(Info info) : info_(std::move(info)) {}

void CommandLine::Add(std::string name, std::string* value, std::string value_name,
                      std::string help) {
  AddFlag(std::move(name), value, std::move(value_name), std::move(help), {});
}
void CommandLine::Add(std::string name, int* value, std::string value_name, std::string help,
                      FlagRange range) {
  AddFlag(std::move(name), value, std::move(value_name), std::move(help), range);
}
void CommandLine::Add(std::string name, int64_t* value, std::string value_name, std::string help,
                      FlagRange range) {
  AddFlag(std::move(name), value, std::move(value_name), std::move(help), range);
}
void CommandLine::Add(std::string name, double* value, std::string value_name, std::string help,
                      FlagRange range) {
  AddFlag(std::move(name), value, std::move(value_name), std::move(help), range);
}
void CommandLine::Add(std::string name, std::optional<int64_t>* value, std::string value_name,
                      std::string help, FlagRange range) {
  AddFlag(std::move(name), value, std::move(value_name), std::move(help), range);
}
void CommandLine::Add(std::string name, std::optional<double>* value, std::string value_name,
                      std::string help, FlagRange range) {
  AddFlag(std::move(name), value, std::move(value_name), std::move(help), range);
}
void CommandLine::Add(std::string name, std::vector<int>* value, std::string value_name,
                      std::string help, FlagRange range) {
  AddFlag(std::move(name), value, std::move(value_name), std::move(help), range);
}
void CommandLine::Add(std::string name, bool* value, std::string help) {
  AddFlag(std::move(name), value, "", std::move(help), {});
}
void CommandLine::Add(std::string name, std::vector<std::string>* value, std::string value_name,
                      std::string help) {
  AddFlag(std::move(name), value, std::move(value_name), std::move(help), {});
}
void CommandLine::AddBytes(std::string name, int64_t* value, std::string help, FlagRange range) {
  AddFlag(std::move(name), Size{value}, "SIZE", std::move(help), range);
}

void CommandLine::AddFlag(std::string name, Target target, std::string value_name, std::string help,
                          FlagRange range) {
  struct {
    std::string operator()(const std::string* v) const { return *v; }
    std::string operator()(const int* v) const { return absl::StrCat(*v); }
    std::string operator()(const int64_t* v) const { return absl::StrCat(*v); }
    std::string operator()(const double* v) const { return absl::StrCat(*v); }
    std::string operator()(const std::optional<int64_t>*) const { return ""; }
    std::string operator()(const std::optional<double>*) const { return ""; }
    std::string operator()(const std::vector<int>* v) const { return absl::StrJoin(*v, ","); }
    std::string operator()(const bool* v) const { return *v ? "true" : ""; }
    std::string operator()(const std::vector<std::string>*) const { return ""; }
    std::string operator()(const Size& v) const {
      return *v.bytes == 0 ? "" : FormatBytes(static_cast<double>(*v.bytes));
    }
  } to_text;
  std::string default_text = std::visit(to_text, target);
  flags_.push_back({std::move(name), target, std::move(value_name), std::move(help), range,
                    std::move(default_text)});
}

CommandLine::Flag* CommandLine::Find(absl::string_view name) {
  for (Flag& flag : flags_) {
    if (flag.name == name) return &flag;
  }
  return nullptr;
}

bool CommandLine::IsSet(absl::string_view name) const {
  return std::any_of(flags_.begin(), flags_.end(),
                     [&](const Flag& flag) { return flag.name == name && flag.set; });
}

absl::Status CommandLine::Assign(Flag& flag, absl::string_view text) {
  struct Visitor {
    const Flag& flag;
    absl::string_view text;
    absl::Status operator()(std::string* v) const {
      *v = std::string(text);
      return absl::OkStatus();
    }
    absl::Status operator()(std::vector<std::string>* v) const {
      v->emplace_back(text);
      return absl::OkStatus();
    }
    absl::Status operator()(int* v) const { return AssignInt(flag.name, text, flag.range, v); }
    absl::Status operator()(int64_t* v) const { return AssignInt(flag.name, text, flag.range, v); }
    absl::Status operator()(double* v) const {
      double parsed;
      if (!absl::SimpleAtod(text, &parsed) || std::isnan(parsed)) {
        return BadValue(flag.name, text, "a number");
      }
      RETURN_IF_ERROR(CheckRange(flag.name, parsed, flag.range));
      *v = parsed;
      return absl::OkStatus();
    }
    absl::Status operator()(std::optional<int64_t>* v) const { return (*this)(&v->emplace()); }
    absl::Status operator()(std::optional<double>* v) const { return (*this)(&v->emplace()); }
    absl::Status operator()(std::vector<int>* v) const {
      v->clear();
      for (const absl::string_view part : absl::StrSplit(text, ',')) {
        RETURN_IF_ERROR(AssignInt(flag.name, part, flag.range, &v->emplace_back()));
      }
      return absl::OkStatus();
    }
    absl::Status operator()(bool* v) const {
      const std::optional<bool> parsed = ParseBool(text);
      if (!parsed) return BadValue(flag.name, text, "true or false");
      *v = *parsed;
      return absl::OkStatus();
    }
    absl::Status operator()(Size v) const {
      absl::StatusOr<int64_t> parsed = ParseBytes(text);
      if (!parsed.ok()) return BadValue(flag.name, text, "a size such as 2GiB, 512MiB or 4096");
      RETURN_IF_ERROR(CheckRange(flag.name, static_cast<double>(*parsed), flag.range));
      *v.bytes = *parsed;
      return absl::OkStatus();
    }
  };
  RETURN_IF_ERROR(std::visit(Visitor{flag, text}, flag.target));
  flag.set = true;
  return absl::OkStatus();
}

absl::Status CommandLine::UnknownFlag(absl::string_view name) const {
  absl::string_view nearest = "help";
  int nearest_distance = EditDistance(name, nearest);
  for (const Flag& flag : flags_) {
    const int distance = EditDistance(name, flag.name);
    if (distance < nearest_distance) {
      nearest = flag.name;
      nearest_distance = distance;
    }
  }
  const bool close = nearest_distance <= std::max<int>(2, static_cast<int>(name.size()) / 3);
  return absl::InvalidArgumentError(
      absl::StrCat("there is no flag --", name,
                   close ? absl::StrCat("; did you mean --", nearest, "?")
                         : absl::StrCat("; see ", info_.program, " --help")));
}

absl::Status CommandLine::Parse(absl::Span<const std::string> args) {
  for (size_t i = 0; i < args.size(); ++i) {
    absl::string_view arg = args[i];
    if (arg == "--") {
      positional_.insert(positional_.end(), args.begin() + i + 1, args.end());
      break;
    }
    if (!absl::ConsumePrefix(&arg, "--")) {
      if (arg == "-h") {
        help_ = true;
      } else {
        positional_.emplace_back(arg);
      }
      continue;
    }
    const size_t equals = arg.find('=');
    const absl::string_view name = arg.substr(0, equals);
    if (name == "help" || name == "version") {
      (name == "help" ? help_ : version_) = true;
      continue;
    }
    Flag* flag = Find(name);
    absl::string_view negated = name;
    if (flag == nullptr && equals == arg.npos && absl::ConsumePrefix(&negated, "no-")) {
      Flag* positive = Find(negated);
      if (positive != nullptr && std::holds_alternative<bool*>(positive->target)) {
        RETURN_IF_ERROR(Assign(*positive, "false"));
        continue;
      }
    }
    if (flag == nullptr) return UnknownFlag(name);
    if (equals != arg.npos) {
      RETURN_IF_ERROR(Assign(*flag, arg.substr(equals + 1)));
    } else if (std::holds_alternative<bool*>(flag->target)) {
      RETURN_IF_ERROR(Assign(*flag, "true"));
    } else if (i + 1 < args.size()) {
      RETURN_IF_ERROR(Assign(*flag, args[++i]));
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat("--", name, " needs a value (", flag->value_name, ")"));
    }
  }
  if (info_.positional.empty() && !positional_.empty() && !help_ && !version_) {
    return absl::InvalidArgumentError(absl::StrCat("\"", positional_[0], "\" is no flag, and ",
                                                   info_.program, " takes only flags"));
  }
  return absl::OkStatus();
}

absl::Status CommandLine::ParseFile(const std::string& path) {
  std::ifstream file(path);
  if (!file) return absl::NotFoundError(absl::StrCat("--config: cannot open ", path));
  std::vector<Flag*> assigned;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    const absl::string_view text =
        absl::StripAsciiWhitespace(absl::string_view(line).substr(0, line.find('#')));
    if (text.empty()) continue;
    const std::string place = absl::StrCat(path, ":", number, ": ");
    const size_t equals = text.find('=');
    if (equals == text.npos) {
      return absl::InvalidArgumentError(absl::StrCat(place, "\"", text, "\" is not `key = value`"));
    }
    const absl::string_view key = absl::StripTrailingAsciiWhitespace(text.substr(0, equals));
    const absl::string_view value = absl::StripLeadingAsciiWhitespace(text.substr(equals + 1));
    Flag* flag = Find(key);
    absl::Status status = flag == nullptr ? UnknownFlag(key) : absl::OkStatus();
    // A repeated flag takes every line of the file; any other keeps what the command line said.
    const bool mine = std::find(assigned.begin(), assigned.end(), flag) != assigned.end();
    if (status.ok() && (!flag->set || mine)) {
      status = Assign(*flag, value);
      assigned.push_back(flag);
    }
    if (!status.ok()) return absl::Status(status.code(), absl::StrCat(place, status.message()));
  }
  return absl::OkStatus();
}

void CommandLine::ParseOrExit(absl::Span<const std::string> args) {
  const absl::Status status = Parse(args);
  if (help_ || version_) {
    std::fputs(help_ ? Help().c_str() : absl::StrCat(kVersion, "\n").c_str(), stdout);
    std::exit(0);  // NOLINT(concurrency-mt-unsafe): flags are read before there are threads
  }
  if (!status.ok()) {
    std::fprintf(stderr, "%s: %s\n", info_.program.c_str(), std::string(status.message()).c_str());
    std::exit(2);  // NOLINT(concurrency-mt-unsafe)
  }
}

void CommandLine::ParseOrExit(int argc, char** argv) {
  ParseOrExit(std::vector<std::string>(argv + std::min(argc, 1), argv + argc));
}

std::string CommandLine::Help() const {
  std::string out =
      absl::StrCat("usage: ", info_.program, " [flags]", info_.positional.empty() ? "" : " ",
                   info_.positional, "\n\n", info_.summary, "\n\n");
  for (const Flag& flag : flags_) {
    std::string left =
        absl::StrCat("  --", flag.name, flag.value_name.empty() ? "" : " ", flag.value_name);
    const std::string fallback =
        flag.default_text.empty() ? "" : absl::StrCat(" (default ", flag.default_text, ")");
    absl::StrAppendFormat(&out, "%-30s %s%s\n", left, flag.help, fallback);
  }
  absl::StrAppendFormat(&out, "%-30s %s\n", "  --help, --version", "print and exit");
  if (!info_.example.empty()) absl::StrAppend(&out, "\nexample:\n  ", info_.example, "\n");
  return out;
}

}  // namespace latentd
