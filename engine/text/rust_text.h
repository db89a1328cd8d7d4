#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"

// The C interface of the crate in rust/ (its lib.rs says the same from the other side). Inputs are
// borrowed for the call; results and messages are copied through a sink. Functions that return an
// int32_t give 0, or a canonical error code whose message went to the sink.
extern "C" {

struct LatentdBytes {
  const uint8_t* data;
  size_t size;
};

struct LatentdSink {
  void* context;
  void (*write)(void* context, LatentdBytes bytes);
};

struct LatentdTimeFormatter {
  void* context;  // outlives the template; any thread may call format
  void (*format)(void* context, LatentdBytes format, LatentdSink result);
};

struct LatentdTokenizer;
struct LatentdChatTemplate;

int32_t latentd_tokenizer_create(LatentdBytes json, LatentdTokenizer** out, LatentdSink message);
void latentd_tokenizer_free(LatentdTokenizer* tokenizer);
int32_t latentd_tokenizer_encode(const LatentdTokenizer* tokenizer, LatentdBytes text,
                                 bool add_special, bool parse_special, LatentdSink ids);
LatentdBytes latentd_tokenizer_token_bytes(const LatentdTokenizer* tokenizer, uint32_t id,
                                           bool* special);
size_t latentd_tokenizer_num_ids(const LatentdTokenizer* tokenizer);
bool latentd_tokenizer_strips_leading_space(const LatentdTokenizer* tokenizer);

int32_t latentd_chat_template_create(LatentdBytes source, LatentdTimeFormatter time,
                                     LatentdChatTemplate** out, LatentdSink message);
void latentd_chat_template_free(LatentdChatTemplate* chat_template);
int32_t latentd_chat_template_render(const LatentdChatTemplate* chat_template,
                                     LatentdBytes variables, LatentdSink text);

}  // extern "C"

namespace latentd {

inline LatentdBytes RustBytes(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

inline std::string_view StringView(LatentdBytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data), bytes.size};
}

// A sink that appends to `out`.
inline LatentdSink RustSink(std::string* out) {
  return {out, [](void* context, LatentdBytes bytes) {
            static_cast<std::string*>(context)->append(StringView(bytes));
          }};
}

// The outcome of a call whose sink wrote to `message`.
inline absl::Status RustStatus(int32_t code, const std::string& message) {
  return code == 0 ? absl::OkStatus() : absl::Status(static_cast<absl::StatusCode>(code), message);
}

}  // namespace latentd
