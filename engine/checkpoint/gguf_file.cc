#include "engine/checkpoint/gguf_file.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/mapped_file.h"
#include "base/message.h"
#include "base/status_macros.h"
#include "engine/checkpoint/gguf_types.h"

namespace latentd {
namespace {

using namespace gguf;

constexpr int kMaxArrayDepth = 4;
constexpr uint64_t kMaxDims = 4;
constexpr uint64_t kMinValueBytes = 8 + 4 + 1;       // empty key, type, one byte
constexpr uint64_t kMinTensorBytes = 8 + 4 + 4 + 8;  // empty name, no dims, type, offset
constexpr uint64_t kDefaultAlignment = 32;

// What bytes that do not begin with GGUF are. A safetensors file begins with the length of its
// header, 8 bytes, and the header, in ours with the metadata first.
const char* Guess(absl::Span<const std::byte> bytes) {
  const std::string_view head(reinterpret_cast<const char*>(bytes.data()),
                              std::min<size_t>(bytes.size(), 64));
  if (head.size() < 9 || head[8] != '{') return "it does not begin with GGUF";
  return head.find("\"latentd\"") != head.npos
             ? "it looks like a latents file, name the model that it was made for"
             : "it looks like a safetensors file, name its folder";
}

}  // namespace

// Reads forward through the file; every read is checked against what is left.
class GgufFile::Cursor {
 public:
  Cursor(absl::Span<const std::byte> bytes, const std::string& name) : bytes_(bytes), name_(name) {}

  size_t position() const { return position_; }
  uint64_t left() const { return bytes_.size() - position_; }
  absl::Span<const std::byte> Since(size_t start) const {
    return bytes_.subspan(start, position_ - start);
  }
  absl::Span<const std::byte> From(size_t start) const { return bytes_.subspan(start); }

  absl::Status Error(std::string_view what) const {
    return absl::InvalidArgumentError(Message(name_, ": byte ", position_, ": ", what));
  }
  absl::Status Skip(uint64_t bytes, std::string_view what) {
    if (bytes > left()) {
      return Error(Message(what, " takes ", bytes, " bytes, but the file has ", left(), " left"));
    }
    position_ += bytes;
    return absl::OkStatus();
  }
  template <typename T>
  absl::Status Read(T& out, std::string_view what) {
    const size_t start = position_;
    RETURN_IF_ERROR(Skip(sizeof(T), what));
    out = Load<T>(bytes_.data() + start);
    return absl::OkStatus();
  }
  absl::Status ReadString(std::string_view& out, std::string_view what) {
    uint64_t length = 0;
    RETURN_IF_ERROR(Read(length, what));
    const size_t start = position_;
    RETURN_IF_ERROR(Skip(length, what));
    out = {reinterpret_cast<const char*>(bytes_.data()) + start, length};
    return absl::OkStatus();
  }
  // Passes over `count` values of one type.
  absl::Status SkipValues(uint32_t type, uint64_t count, int depth, std::string_view what) {
    if (type >= kNumValueTypes) {
      return Error(Message(what, " has type ", type, ", types end at ", kNumValueTypes - 1));
    }
    const uint64_t bytes = kValueTypes[type].bytes;
    if (bytes > 0) {
      if (count > left() / bytes) {
        return Error(Message(what, " has ", count, " elements of ", bytes,
                             " bytes, but the file has ", left(), " bytes left"));
      }
      return Skip(count * bytes, what);
    }
    if (type == kArray && depth >= kMaxArrayDepth) {
      return Error(Message(what, " nests arrays deeper than ", kMaxArrayDepth));
    }
    const uint64_t min_bytes = type == kString ? 8 : 12;
    if (count > left() / min_bytes) {
      return Error(Message(what, " has ", count, " elements of at least ", min_bytes,
                           " bytes, but the file has ", left(), " bytes left"));
    }
    for (uint64_t i = 0; i < count; ++i) {
      if (type == kString) {
        std::string_view ignored;
        RETURN_IF_ERROR(ReadString(ignored, what));
        continue;
      }
      uint32_t element_type = 0;
      uint64_t elements = 0;
      RETURN_IF_ERROR(Read(element_type, what));
      RETURN_IF_ERROR(Read(elements, what));
      RETURN_IF_ERROR(SkipValues(element_type, elements, depth + 1, what));
    }
    return absl::OkStatus();
  }

 private:
  const absl::Span<const std::byte> bytes_;
  const std::string& name_;
  size_t position_ = 0;
};

absl::StatusOr<std::unique_ptr<GgufFile>> GgufFile::Open(const std::string& path) {
  ASSIGN_OR_RETURN(std::shared_ptr<const MappedFile> file, MappedFile::Open(path));
  const absl::Span<const std::byte> bytes = file->bytes();
  return Parse(bytes, std::move(file), path);
}

absl::StatusOr<std::unique_ptr<GgufFile>> GgufFile::Parse(absl::Span<const std::byte> bytes,
                                                          std::shared_ptr<const void> storage,
                                                          std::string name) {
  auto file = std::unique_ptr<GgufFile>(new GgufFile());
  file->name_ = std::move(name);
  file->storage_ = std::move(storage);
  Cursor cursor(bytes, file->name_);
  uint32_t magic = 0, version = 0;
  uint64_t num_tensors = 0, num_values = 0;
  RETURN_IF_ERROR(cursor.Read(magic, "the magic number"));
  if (magic != 0x46554747) return cursor.Error(Message("this is no GGUF file: ", Guess(bytes)));
  RETURN_IF_ERROR(cursor.Read(version, "the version"));
  if (version != 2 && version != 3) {
    return cursor.Error(Message("GGUF version ", version, " is not supported, 2 and 3 are"));
  }
  RETURN_IF_ERROR(cursor.Read(num_tensors, "the number of tensors"));
  RETURN_IF_ERROR(cursor.Read(num_values, "the number of values"));
  RETURN_IF_ERROR(file->ReadValues(cursor, num_values));
  RETURN_IF_ERROR(file->ReadTensors(cursor, num_tensors));
  RETURN_IF_ERROR(file->CheckNoOverlap());
  return file;
}

absl::Status GgufFile::ReadValues(Cursor& cursor, uint64_t count) {
  if (count > cursor.left() / kMinValueBytes) {
    return cursor.Error(
        Message(count, " metadata values cannot fit into ", cursor.left(), " bytes"));
  }
  for (uint64_t i = 0; i < count; ++i) {
    std::string_view key;
    Value value;
    RETURN_IF_ERROR(cursor.ReadString(key, Message("the key of value ", i)));
    if (key.size() > 65535) {
      return cursor.Error(Message("a key of ", key.size(), " bytes, at most 65535 are allowed"));
    }
    RETURN_IF_ERROR(cursor.Read(value.type, key));
    size_t start = cursor.position();
    if (value.type == kArray) {
      RETURN_IF_ERROR(cursor.Read(value.element_type, key));
      RETURN_IF_ERROR(cursor.Read(value.count, key));
      start = cursor.position();
      RETURN_IF_ERROR(cursor.SkipValues(value.element_type, value.count, 1, key));
    } else {
      RETURN_IF_ERROR(cursor.SkipValues(value.type, 1, 0, key));
    }
    value.payload = cursor.Since(start);
    if (!values_.emplace(key, value).second) {
      return cursor.Error(Message("the key ", key, " occurs twice"));
    }
  }
  return absl::OkStatus();
}

absl::Status GgufFile::ReadTensors(Cursor& cursor, uint64_t count) {
  if (count > cursor.left() / kMinTensorBytes) {
    return cursor.Error(Message(count, " tensors cannot fit into ", cursor.left(), " bytes"));
  }
  ASSIGN_OR_RETURN(const std::optional<int64_t> alignment_value, Int("general.alignment"));
  const int64_t alignment = alignment_value.value_or(kDefaultAlignment);
  if (alignment < 8 || alignment > (1 << 20) || (alignment & (alignment - 1)) != 0) {
    return cursor.Error(Message("general.alignment is ", alignment,
                                ", it must be a power of two between 8 and 1048576"));
  }
  struct Place {
    StoredTensor* tensor;
    const std::string* name;
    uint64_t offset;
    uint64_t bytes;
  };
  std::vector<Place> places;
  for (uint64_t i = 0; i < count; ++i) {
    std::string_view name;
    RETURN_IF_ERROR(cursor.ReadString(name, Message("the name of tensor ", i)));
    const std::string what = Message("tensor ", name);
    uint32_t num_dims = 0, type = 0;
    uint64_t offset = 0;
    RETURN_IF_ERROR(cursor.Read(num_dims, what));
    if (num_dims < 1 || num_dims > kMaxDims) {
      return cursor.Error(
          Message(what, " has ", num_dims, " dims, 1 to ", kMaxDims, " are allowed"));
    }
    StoredTensor tensor;
    tensor.shape.resize(num_dims);
    for (uint32_t d = num_dims; d-- > 0;) RETURN_IF_ERROR(cursor.Read(tensor.shape[d], what));
    RETURN_IF_ERROR(cursor.Read(type, what));
    RETURN_IF_ERROR(cursor.Read(offset, what));

    const auto* known = std::find_if(std::begin(kTensorTypes), std::end(kTensorTypes),
                                     [&](const TensorType& t) { return t.id == type; });
    if (known == std::end(kTensorTypes) || !known->dtype.has_value()) {
      const std::string type_name =
          known == std::end(kTensorTypes) ? Message("number ", type) : known->name;
      return absl::UnimplementedError(Message(
          name_, ": ", what, " has type ", type_name,
          "; supported are F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K and Q6_K"));
    }
    tensor.type = known->name;
    tensor.dtype = known->dtype;
    const DTypeInfo& info = Info(*known->dtype);
    const std::optional<int64_t> values = NumValues(tensor.shape);
    if (!values.has_value() || *values == 0 || *values > (int64_t{1} << 50)) {
      return cursor.Error(Message(what, " has the impossible shape ", ShapeText(tensor.shape)));
    }
    const int64_t cols = tensor.shape.back();
    if (cols % info.block_size != 0) {
      return cursor.Error(Message(what, " has rows of ", cols, " values, ", tensor.type,
                                  " stores blocks of ", info.block_size));
    }
    if (offset % alignment != 0) {
      return cursor.Error(Message(what, " starts at offset ", offset,
                                  ", which is no multiple of the alignment ", alignment));
    }
    const uint64_t bytes = static_cast<uint64_t>(*values / info.block_size) * info.block_bytes;
    const auto [place, inserted] = tensors_.emplace(name, std::move(tensor));
    if (!inserted) return cursor.Error(Message(what, " occurs twice"));
    places.push_back({&place->second, &place->first, offset, bytes});
  }

  const uint64_t data_start = (cursor.position() + alignment - 1) / alignment * alignment;
  const uint64_t file_size = cursor.position() + cursor.left();
  const uint64_t data_size = file_size > data_start ? file_size - data_start : 0;
  for (const Place& place : places) {
    if (place.offset > data_size || place.bytes > data_size - place.offset) {
      return absl::InvalidArgumentError(
          Message(name_, ": tensor ", *place.name, " takes ", place.bytes, " bytes from offset ",
                  place.offset, ", but the file has ", data_size, " bytes of tensor data"));
    }
    place.tensor->data = cursor.From(data_start).subspan(place.offset, place.bytes);
  }
  return absl::OkStatus();
}

absl::Status GgufFile::CheckNoOverlap() const {
  std::vector<const StoredTensors::value_type*> order;
  for (const auto& tensor : tensors_) order.push_back(&tensor);
  std::sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return a->second.data.data() < b->second.data.data();
  });
  for (size_t i = 1; i < order.size(); ++i) {
    const absl::Span<const std::byte> before = order[i - 1]->second.data;
    const absl::Span<const std::byte> after = order[i]->second.data;
    if (before.data() + before.size() > after.data()) {
      return absl::InvalidArgumentError(
          Message(name_, ": tensors ", order[i - 1]->first, " and ", order[i]->first,
                  " overlap by ", before.data() + before.size() - after.data(), " bytes"));
    }
  }
  return absl::OkStatus();
}

}  // namespace latentd
