#include "engine/checkpoint/json.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "base/message.h"
#include "base/status_macros.h"

namespace latentd {
namespace {

using Json = nlohmann::json;

constexpr int kMaxDepth = 64;

// Nesting of brackets outside strings; enough to bound the recursion of whatever walks the
// document.
int Depth(std::string_view text) {
  int depth = 0, deepest = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      deepest = std::max(deepest, ++depth);
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return deepest;
}

absl::Status WrongType(const char* key, std::string_view name, const Json& value,
                       const char* wanted) {
  return absl::InvalidArgumentError(
      Message(name, ": \"", key, "\" is a JSON ", value.type_name(), ", it must be ", wanted));
}

const Json* Find(const Json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto it = object.find(key);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

std::optional<int64_t> AsInteger(const Json& value) {
  if (value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{INT64_MAX})
    return std::nullopt;
  if (value.is_number_integer()) return value.get<int64_t>();
  // Some writers say 2048.0.
  if (!value.is_number_float()) return std::nullopt;
  const double number = value.get<double>();
  if (!(std::abs(number) < 0x1p53) || number != std::floor(number)) return std::nullopt;
  return static_cast<int64_t>(number);
}

absl::Status ReadInt32(const Json& value, const char* key, std::string_view name, int32_t& out) {
  if (!value.is_number()) return WrongType(key, name, value, "an integer");
  const std::optional<int64_t> integer = AsInteger(value);
  if (!integer.has_value() || *integer < INT32_MIN || *integer > INT32_MAX) {
    return absl::InvalidArgumentError(Message(name, ": \"", key, "\" is ", value.dump(),
                                              ", it must be an integer between ", INT32_MIN,
                                              " and ", INT32_MAX));
  }
  out = static_cast<int32_t>(*integer);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Json> ParseJson(std::string_view text, std::string_view name) {
  const int depth = Depth(text);
  if (depth > kMaxDepth) {
    return absl::InvalidArgumentError(
        Message(name, ": JSON that nests ", depth, " deep, at most ", kMaxDepth, " is allowed"));
  }
  std::vector<std::set<std::string>> keys(kMaxDepth + 2);  // of the object open at each depth
  std::string duplicate;
  bool found_duplicate = false;
  auto watch = [&](int at, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::object_start) keys[at + 1].clear();
    if (event == Json::parse_event_t::key) {
      const std::string& key = parsed.get_ref<const std::string&>();
      if (!keys[at].insert(key).second && !found_duplicate) {
        found_duplicate = true;
        duplicate = key;
      }
    }
    return true;
  };
  Json document = Json::parse(text.begin(), text.end(), watch, /*allow_exceptions=*/false);
  if (document.is_discarded()) {
    return absl::InvalidArgumentError(Message(name, ": ", text.size(), " bytes that are no JSON"));
  }
  if (found_duplicate) {
    return absl::InvalidArgumentError(Message(name, ": the key \"", duplicate, "\" occurs twice"));
  }
  return document;
}

bool HasField(const Json& object, const char* key) { return Find(object, key) != nullptr; }

std::optional<int64_t> AsCount(const Json& value) {
  if (!value.is_number_integer()) return std::nullopt;
  const std::optional<int64_t> integer = AsInteger(value);
  if (!integer.has_value() || *integer < 0 || *integer > int64_t{1} << 62) return std::nullopt;
  return integer;
}

absl::Status ReadField(const Json& object, const char* key, std::string_view name, int& out) {
  const Json* value = Find(object, key);
  return value == nullptr ? absl::OkStatus() : ReadInt32(*value, key, name, out);
}

absl::Status ReadField(const Json& object, const char* key, std::string_view name, float& out) {
  const Json* value = Find(object, key);
  if (value == nullptr) return absl::OkStatus();
  if (!value->is_number()) return WrongType(key, name, *value, "a number");
  const double number = value->get<double>();
  if (!(std::abs(number) <= 3e38)) {
    return absl::InvalidArgumentError(
        Message(name, ": \"", key, "\" is ", number, ", it must be below 3e38"));
  }
  out = static_cast<float>(number);
  return absl::OkStatus();
}

absl::Status ReadField(const Json& object, const char* key, std::string_view name, bool& out) {
  const Json* value = Find(object, key);
  if (value == nullptr) return absl::OkStatus();
  if (!value->is_boolean()) return WrongType(key, name, *value, "true or false");
  out = value->get<bool>();
  return absl::OkStatus();
}

absl::Status ReadField(const Json& object, const char* key, std::string_view name,
                       std::string& out) {
  const Json* value = Find(object, key);
  if (value == nullptr) return absl::OkStatus();
  if (!value->is_string()) return WrongType(key, name, *value, "a string");
  out = value->get<std::string>();
  return absl::OkStatus();
}

absl::Status ReadField(const Json& object, const char* key, std::string_view name,
                       std::vector<float>& out) {
  const Json* value = Find(object, key);
  if (value == nullptr) return absl::OkStatus();
  if (!value->is_array()) return WrongType(key, name, *value, "a list of numbers");
  out.clear();
  for (const Json& element : *value) {
    if (!element.is_number()) return WrongType(key, name, element, "a list of numbers");
    out.push_back(static_cast<float>(std::clamp(element.get<double>(), -3e38, 3e38)));
  }
  return absl::OkStatus();
}

absl::Status ReadField(const Json& object, const char* key, std::string_view name,
                       std::vector<int32_t>& out) {
  const Json* value = Find(object, key);
  if (value == nullptr) return absl::OkStatus();
  out.clear();
  if (!value->is_array()) return ReadInt32(*value, key, name, out.emplace_back());
  for (const Json& element : *value) {
    RETURN_IF_ERROR(ReadInt32(element, key, name, out.emplace_back()));
  }
  return absl::OkStatus();
}

}  // namespace latentd
