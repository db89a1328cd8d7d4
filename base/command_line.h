#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace latentd {

// "2GiB", "1.5 GB", "4096": KiB MiB GiB TiB are powers of 1024, KB MB GB TB powers of 1000.
// INVALID_ARGUMENT otherwise.
absl::StatusOr<int64_t> ParseBytes(absl::string_view text);

// "2.00 GiB", "22.5 KiB", "512 B".
std::string FormatBytes(double bytes);

// Allowed values of a numeric flag, both ends included.
struct FlagRange {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
};

// The flags of one program or subcommand, as a table from which it parses them and writes --help. A
// flag is written `--name=value` or `--name value`; a bool also `--name` and `--no-name`; `--` ends
// the flags. Filled and used by main(), on its thread.
//
//   CommandLine flags({.program = "latent-eval perplexity", .summary = "Measures ..."});
//   flags.Add("model", &options.model, "PATH", "model folder or .gguf file");
//   flags.Add("window", &options.window, "N", "tokens of a window", {.min = 2});
//   flags.ParseOrExit(argc, argv);
class CommandLine {
 public:
  struct Info {
    std::string program;
    std::string summary;
    std::string example;     // one command line that works
    std::string positional;  // what --help calls the arguments that are no flags; empty: takes none
  };

  explicit CommandLine(Info info);

  // What *value holds now is the default that --help shows. *value must outlive
  // the last parse.
  void Add(std::string name, std::string* value, std::string value_name, std::string help);
  void Add(std::string name, int* value, std::string value_name, std::string help,
           FlagRange range = {});
  void Add(std::string name, int64_t* value, std::string value_name, std::string help,
           FlagRange range = {});
  void Add(std::string name, double* value, std::string value_name, std::string help,
           FlagRange range = {});
  // Without a default: stays nullopt when the flag is not given.
  void Add(std::string name, std::optional<int64_t>* value, std::string value_name,
           std::string help, FlagRange range = {});
  void Add(std::string name, std::optional<double>* value, std::string value_name, std::string help,
           FlagRange range = {});
  // Numbers with commas between them: "4096,16384".
  void Add(std::string name, std::vector<int>* value, std::string value_name, std::string help,
           FlagRange range = {});
  void Add(std::string name, bool* value, std::string help);
  // May be given many times; each adds one value.
  void Add(std::string name, std::vector<std::string>* value, std::string value_name,
           std::string help);
  // A size, as ParseBytes reads it.
  void AddBytes(std::string name, int64_t* value, std::string help, FlagRange range = {});

  // Parses the arguments after the program's name. INVALID_ARGUMENT names the flag, and the nearest
  // one when it is unknown.
  absl::Status Parse(absl::Span<const std::string> args);

  // Reads `key = value` lines (keys are flag names; # opens a comment). Flags that Parse saw keep
  // their values. NOT_FOUND, or INVALID_ARGUMENT that names file and line.
  absl::Status ParseFile(const std::string& path);

  // Parse for main(): --help and --version print and exit with 0; an error prints to stderr and
  // exits with 2.
  void ParseOrExit(absl::Span<const std::string> args);
  void ParseOrExit(int argc, char** argv);

  bool IsSet(absl::string_view name) const;  // given by Parse or ParseFile
  const std::vector<std::string>& positional() const { return positional_; }
  bool help_requested() const { return help_; }
  bool version_requested() const { return version_; }
  std::string Help() const;

 private:
  struct Size {
    int64_t* bytes;
  };
  using Target = std::variant<std::string*, int*, int64_t*, double*, std::optional<int64_t>*,
                              std::optional<double>*, std::vector<int>*, bool*,
                              std::vector<std::string>*, Size>;
  struct Flag {
    std::string name;
    Target target;
    std::string value_name;
    std::string help;
    FlagRange range;
    std::string default_text;
    bool set = false;
  };

  void AddFlag(std::string name, Target target, std::string value_name, std::string help,
               FlagRange range);
  Flag* Find(absl::string_view name);
  absl::Status UnknownFlag(absl::string_view name) const;
  static absl::Status Assign(Flag& flag, absl::string_view text);

  const Info info_;
  std::vector<Flag> flags_;
  std::vector<std::string> positional_;
  bool help_ = false;
  bool version_ = false;
};

}  // namespace latentd
