#include "engine/checkpoint/safetensors_file.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/mapped_file.h"
#include "base/message.h"
#include "base/status_macros.h"
#include "engine/checkpoint/json.h"

namespace latentd {
namespace {

using Json = nlohmann::json;

struct StoredType {
  const char* name;
  int bytes;
  std::optional<DType> dtype;
};
constexpr StoredType kStoredTypes[] = {
    {"F32", 4, DType::kF32},   {"F16", 2, DType::kF16},      {"BF16", 2, DType::kBF16},
    {"F64", 8, std::nullopt},  {"I64", 8, std::nullopt},     {"U64", 8, std::nullopt},
    {"I32", 4, std::nullopt},  {"U32", 4, std::nullopt},     {"I16", 2, std::nullopt},
    {"U16", 2, std::nullopt},  {"I8", 1, std::nullopt},      {"U8", 1, std::nullopt},
    {"BOOL", 1, std::nullopt}, {"F8_E4M3", 1, std::nullopt}, {"F8_E5M2", 1, std::nullopt},
};

class HeaderReader {
 public:
  HeaderReader(const std::string& name, absl::Span<const std::byte> data)
      : name_(name), data_(data) {}

  absl::Status ReadTensor(const std::string& key, const Json& entry, StoredTensor& out) const {
    const auto error = [&](const auto&... parts) {
      return absl::InvalidArgumentError(Message(name_, ": tensor ", key, " ", parts...));
    };
    if (!entry.is_object()) return error("is no JSON object");
    RETURN_IF_ERROR(ReadField(entry, "dtype", Message(name_, ": tensor ", key), out.type));
    const auto* type = std::find_if(std::begin(kStoredTypes), std::end(kStoredTypes),
                                    [&](const StoredType& t) { return out.type == t.name; });
    if (type == std::end(kStoredTypes)) return error("has the unknown type \"", out.type, "\"");
    out.dtype = type->dtype;

    const auto shape = entry.find("shape");
    const auto offsets = entry.find("data_offsets");
    if (shape == entry.end() || !shape->is_array() || shape->size() > 16) {
      return error("has no shape of at most 16 extents");
    }
    for (const Json& extent : *shape) {
      const std::optional<int64_t> count = AsCount(extent);
      if (!count.has_value()) return error("has the extent ", extent.dump());
      out.shape.push_back(*count);
    }
    const std::optional<int64_t> values = NumValues(out.shape);
    if (!values.has_value() || *values > int64_t{1} << 56) {
      return error("has the impossible shape ", ShapeText(out.shape));
    }
    if (offsets == entry.end() || !offsets->is_array() || offsets->size() != 2) {
      return error("has no pair of data_offsets");
    }
    const std::optional<int64_t> begin = AsCount((*offsets)[0]);
    const std::optional<int64_t> end = AsCount((*offsets)[1]);
    if (!begin.has_value() || !end.has_value() || *begin > *end) {
      return error("has the data_offsets ", offsets->dump());
    }
    if (static_cast<uint64_t>(*end) > data_.size()) {
      return error("ends at byte ", *end, " of the data, but the file has ", data_.size());
    }
    if (*end - *begin != *values * type->bytes) {
      return error("has ", *end - *begin, " bytes, but ", out.type, " ", ShapeText(out.shape),
                   " takes ", *values * type->bytes);
    }
    out.data = data_.subspan(*begin, *end - *begin);
    return absl::OkStatus();
  }

  // Tensors cover the data without holes and without overlaps, as the format demands.
  absl::Status CheckCover(const StoredTensors& tensors) const {
    std::vector<const StoredTensors::value_type*> order;
    for (const auto& tensor : tensors) order.push_back(&tensor);
    std::sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
      const auto &x = a->second.data, &y = b->second.data;
      return x.data() != y.data() ? x.data() < y.data() : x.size() < y.size();
    });
    const std::byte* covered = data_.data();
    for (const auto* tensor : order) {
      const absl::Span<const std::byte> bytes = tensor->second.data;
      if (bytes.data() != covered) {
        return absl::InvalidArgumentError(Message(
            name_, ": tensor ", tensor->first, " begins at byte ", bytes.data() - data_.data(),
            " of the data, but what lies before it ends at ", covered - data_.data()));
      }
      covered += bytes.size();
    }
    if (covered != data_.data() + data_.size()) {
      return absl::InvalidArgumentError(Message(name_, ": the tensors end at byte ",
                                                covered - data_.data(),
                                                " of the data, the file at ", data_.size()));
    }
    return absl::OkStatus();
  }

 private:
  const std::string& name_;
  const absl::Span<const std::byte> data_;
};

absl::Status ReadMetadata(const Json& entry, const std::string& name,
                          std::map<std::string, std::string>& out) {
  if (!entry.is_object()) {
    return absl::InvalidArgumentError(Message(name, ": __metadata__ is no JSON object"));
  }
  for (const auto& [key, value] : entry.items()) {
    if (!value.is_string()) {
      return absl::InvalidArgumentError(
          Message(name, ": the metadata value of \"", key, "\" is no string"));
    }
    out[key] = value.get<std::string>();
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SafetensorsFile> SafetensorsFile::Open(const std::string& path) {
  ASSIGN_OR_RETURN(std::shared_ptr<const MappedFile> mapped, MappedFile::Open(path));
  ASSIGN_OR_RETURN(SafetensorsFile file, Parse(mapped->bytes(), path));
  file.storage = std::move(mapped);
  return file;
}

absl::StatusOr<SafetensorsFile> SafetensorsFile::Parse(absl::Span<const std::byte> bytes,
                                                       const std::string& name) {
  uint64_t header_length = 0;
  if (bytes.size() < sizeof(header_length)) {
    return absl::InvalidArgumentError(
        Message(name, ": ", bytes.size(), " bytes are no safetensors file, it has at least 8"));
  }
  std::memcpy(&header_length, bytes.data(), sizeof(header_length));
  if (std::memcmp(bytes.data(), "GGUF", 4) == 0) {
    return absl::InvalidArgumentError(
        Message(name, ": this looks like a GGUF model, it is no latents or safetensors file"));
  }
  bytes.remove_prefix(sizeof(header_length));
  if (header_length > bytes.size() || header_length > kMaxSafetensorsHeader) {
    return absl::InvalidArgumentError(
        Message(name, ": this is no safetensors file, or a damaged one: its header would take ",
                header_length, " bytes, but the file has ", bytes.size(), " left and ",
                kMaxSafetensorsHeader, " are allowed"));
  }
  const std::string_view header(reinterpret_cast<const char*>(bytes.data()), header_length);
  ASSIGN_OR_RETURN(const Json document, ParseJson(header, name));
  if (!document.is_object()) {
    return absl::InvalidArgumentError(Message(name, ": the header is no JSON object"));
  }
  const HeaderReader reader(name, bytes.subspan(header_length));
  SafetensorsFile file;
  for (const auto& [key, entry] : document.items()) {
    if (key == "__metadata__") {
      RETURN_IF_ERROR(ReadMetadata(entry, name, file.metadata));
    } else {
      RETURN_IF_ERROR(reader.ReadTensor(key, entry, file.tensors[key]));
    }
  }
  RETURN_IF_ERROR(reader.CheckCover(file.tensors));
  return file;
}

}  // namespace latentd
