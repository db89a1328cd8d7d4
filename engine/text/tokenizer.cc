#include "engine/text/tokenizer.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/text/gguf_tokenizer.h"
#include "engine/text/incremental_decoder.h"
#include "engine/text/rust_text.h"

namespace latentd {
namespace {

class RustTokenizer final : public Tokenizer {
 public:
  explicit RustTokenizer(LatentdTokenizer* handle) : handle_(handle) {}
  ~RustTokenizer() override { latentd_tokenizer_free(handle_); }
  RustTokenizer(const RustTokenizer&) = delete;
  RustTokenizer& operator=(const RustTokenizer&) = delete;

  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text, bool add_special,
                                              bool parse_special) const override {
    std::string result;
    const int32_t code = latentd_tokenizer_encode(handle_, RustBytes(text), add_special,
                                                  parse_special, RustSink(&result));
    RETURN_IF_ERROR(RustStatus(code, result));
    std::vector<int32_t> ids(result.size() / sizeof(int32_t));
    if (!ids.empty()) std::memcpy(ids.data(), result.data(), result.size());
    return ids;
  }

  absl::StatusOr<std::string> Decode(const std::vector<int32_t>& ids,
                                     bool skip_special) const override {
    IncrementalDecoder decoder(this, {}, skip_special);
    std::string text;
    for (const int32_t id : ids) {
      ASSIGN_OR_RETURN(const std::string delta, decoder.Push(id));
      text.append(delta);
    }
    ASSIGN_OR_RETURN(const std::string rest, decoder.Flush());
    return text + rest;
  }

  std::string_view TokenBytes(int32_t id, bool skip_special) const override {
    if (id < 0) return {};
    bool special = false;
    const LatentdBytes bytes =
        latentd_tokenizer_token_bytes(handle_, static_cast<uint32_t>(id), &special);
    return special && skip_special ? std::string_view() : StringView(bytes);
  }

  bool strips_leading_space() const override {
    return latentd_tokenizer_strips_leading_space(handle_);
  }

  int vocab_size() const override { return static_cast<int>(latentd_tokenizer_num_ids(handle_)); }

 private:
  LatentdTokenizer* const handle_;  // owned
};

// The status with the model's path in front.
absl::Status Named(const TokenizerSource& source, const absl::Status& status) {
  if (source.path.empty()) return status;
  return absl::Status(status.code(), absl::StrCat(source.path, ": ", status.message()));
}

absl::StatusOr<std::string> JsonOf(const TokenizerSource& source) {
  if (!source.tokenizer_json.empty()) return source.tokenizer_json;
  if (source.gguf) return TokenizerJsonOf(*source.gguf);
  return absl::InvalidArgumentError("there is no tokenizer.json, so this model has no tokenizer");
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Create(const TokenizerSource& source) {
  const absl::StatusOr<std::string> json = JsonOf(source);
  if (!json.ok()) return Named(source, json.status());
  LatentdTokenizer* handle = nullptr;
  std::string message;
  const int32_t code = latentd_tokenizer_create(RustBytes(*json), &handle, RustSink(&message));
  if (const absl::Status status = RustStatus(code, message); !status.ok()) {
    return Named(source, status);
  }
  return std::make_unique<RustTokenizer>(handle);
}

}  // namespace latentd
