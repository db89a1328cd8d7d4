#include "engine/checkpoint/gguf_file.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/mapped_file.h"
#include "base/message.h"
#include "base/status_macros.h"

namespace latentd {
namespace {

enum ValueType : uint32_t {
  kUint8,
  kInt8,
  kUint16,
  kInt16,
  kUint32,
  kInt32,
  kFloat32,
  kBool,
  kString,
  kArray,
  kUint64,
  kInt64,
  kFloat64,
  kNumValueTypes,
};

struct ValueTypeInfo {
  const char* name;
  int bytes;  // 0: of varying size
};
constexpr ValueTypeInfo kValueTypes[kNumValueTypes] = {
    {"u8", 1},   {"i8", 1},     {"u16", 2},   {"i16", 2}, {"u32", 4}, {"i32", 4}, {"f32", 4},
    {"bool", 1}, {"string", 0}, {"array", 0}, {"u64", 8}, {"i64", 8}, {"f64", 8},
};

constexpr int kMaxArrayDepth = 4;
constexpr uint64_t kMaxDims = 4;
constexpr uint64_t kMinValueBytes = 8 + 4 + 1;       // empty key, type, one byte
constexpr uint64_t kMinTensorBytes = 8 + 4 + 4 + 8;  // empty name, no dims, type, offset
constexpr uint64_t kDefaultAlignment = 32;

struct TensorType {
  uint32_t id;
  const char* name;
  std::optional<DType> dtype;
};
constexpr TensorType kTensorTypes[] = {
    {0, "F32", DType::kF32},      {1, "F16", DType::kF16},       {2, "Q4_0", DType::kQ4_0},
    {3, "Q4_1", DType::kQ4_1},    {6, "Q5_0", DType::kQ5_0},     {7, "Q5_1", DType::kQ5_1},
    {8, "Q8_0", DType::kQ8_0},    {9, "Q8_1", std::nullopt},     {10, "Q2_K", std::nullopt},
    {11, "Q3_K", std::nullopt},   {12, "Q4_K", DType::kQ4_K},    {13, "Q5_K", DType::kQ5_K},
    {14, "Q6_K", DType::kQ6_K},   {15, "Q8_K", std::nullopt},    {16, "IQ2_XXS", std::nullopt},
    {17, "IQ2_XS", std::nullopt}, {18, "IQ3_XXS", std::nullopt}, {19, "IQ1_S", std::nullopt},
    {20, "IQ4_NL", std::nullopt}, {21, "IQ3_S", std::nullopt},   {22, "IQ2_S", std::nullopt},
    {23, "IQ4_XS", std::nullopt}, {24, "I8", std::nullopt},      {25, "I16", std::nullopt},
    {26, "I32", std::nullopt},    {27, "I64", std::nullopt},     {28, "F64", std::nullopt},
    {29, "IQ1_M", std::nullopt},  {30, "BF16", DType::kBF16},    {34, "TQ1_0", std::nullopt},
    {35, "TQ2_0", std::nullopt},  {39, "MXFP4", std::nullopt},
};

template <typename T>
T Load(const std::byte* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

// The integer of a scalar; nullopt when its type is no integer or it passes int64.
std::optional<int64_t> LoadInt(uint32_t type, const std::byte* bytes) {
  switch (type) {
    case kUint8:
      return Load<uint8_t>(bytes);
    case kInt8:
      return Load<int8_t>(bytes);
    case kUint16:
      return Load<uint16_t>(bytes);
    case kInt16:
      return Load<int16_t>(bytes);
    case kUint32:
      return Load<uint32_t>(bytes);
    case kInt32:
      return Load<int32_t>(bytes);
    case kInt64:
      return Load<int64_t>(bytes);
    case kUint64: {
      const uint64_t value = Load<uint64_t>(bytes);
      if (value > uint64_t{INT64_MAX}) return std::nullopt;
      return static_cast<int64_t>(value);
    }
    default:
      return std::nullopt;
  }
}

std::optional<double> LoadFloat(uint32_t type, const std::byte* bytes) {
  if (type == kFloat32) return Load<float>(bytes);
  if (type == kFloat64) return Load<double>(bytes);
  const std::optional<int64_t> integer = LoadInt(type, bytes);
  if (!integer.has_value()) return std::nullopt;
  return static_cast<double>(*integer);
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
  if (magic != 0x46554747) return cursor.Error("this is no GGUF file: it does not begin with GGUF");
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

const GgufFile::Value* GgufFile::FindValue(std::string_view key) const {
  const auto it = values_.find(key);
  return it == values_.end() ? nullptr : &it->second;
}

absl::Status GgufFile::WrongType(std::string_view key, const Value& value,
                                 std::string_view wanted) const {
  std::string type = kValueTypes[value.type].name;
  if (value.type == kArray) type += Message(" of ", kValueTypes[value.element_type].name);
  return absl::InvalidArgumentError(
      Message(name_, ": ", key, " is a value of type ", type, ", not ", wanted));
}

absl::StatusOr<std::optional<int64_t>> GgufFile::Int(std::string_view key) const {
  const Value* value = FindValue(key);
  if (value == nullptr) return std::nullopt;
  const std::optional<int64_t> integer = LoadInt(value->type, value->payload.data());
  if (!integer.has_value()) return WrongType(key, *value, "an integer below 2^63");
  return integer;
}

absl::StatusOr<std::optional<double>> GgufFile::Float(std::string_view key) const {
  const Value* value = FindValue(key);
  if (value == nullptr) return std::nullopt;
  const std::optional<double> number = LoadFloat(value->type, value->payload.data());
  if (!number.has_value()) return WrongType(key, *value, "a number");
  return number;
}

absl::StatusOr<std::optional<bool>> GgufFile::Bool(std::string_view key) const {
  const Value* value = FindValue(key);
  if (value == nullptr) return std::nullopt;
  if (value->type != kBool) return WrongType(key, *value, "a bool");
  return value->payload[0] != std::byte{0};
}

absl::StatusOr<std::optional<std::string_view>> GgufFile::String(std::string_view key) const {
  const Value* value = FindValue(key);
  if (value == nullptr) return std::nullopt;
  if (value->type != kString) return WrongType(key, *value, "a string");
  return std::string_view(reinterpret_cast<const char*>(value->payload.data()) + 8,
                          value->payload.size() - 8);
}

absl::StatusOr<std::vector<std::string>> GgufFile::Strings(std::string_view key) const {
  const Value* value = FindValue(key);
  if (value == nullptr) return std::vector<std::string>();
  if (value->type != kArray || value->element_type != kString) {
    return WrongType(key, *value, "an array of strings");
  }
  Cursor cursor(value->payload, name_);
  std::vector<std::string> strings;
  strings.reserve(value->count);
  for (uint64_t i = 0; i < value->count; ++i) {
    std::string_view text;
    RETURN_IF_ERROR(cursor.ReadString(text, key));
    strings.emplace_back(text);
  }
  return strings;
}

absl::StatusOr<std::vector<float>> GgufFile::Floats(std::string_view key) const {
  const Value* value = FindValue(key);
  if (value == nullptr) return std::vector<float>();
  if (value->type != kArray ||
      (value->element_type != kFloat32 && value->element_type != kFloat64)) {
    return WrongType(key, *value, "an array of floats");
  }
  const int bytes = kValueTypes[value->element_type].bytes;
  std::vector<float> floats(value->count);
  for (uint64_t i = 0; i < value->count; ++i) {
    floats[i] =
        static_cast<float>(*LoadFloat(value->element_type, value->payload.data() + i * bytes));
  }
  return floats;
}

absl::StatusOr<std::vector<int32_t>> GgufFile::Ints(std::string_view key) const {
  const Value* value = FindValue(key);
  if (value == nullptr) return std::vector<int32_t>();
  if (value->type != kArray || kValueTypes[value->element_type].bytes == 0) {
    return WrongType(key, *value, "an array of integers");
  }
  const int bytes = kValueTypes[value->element_type].bytes;
  std::vector<int32_t> integers(value->count);
  for (uint64_t i = 0; i < value->count; ++i) {
    const std::optional<int64_t> integer =
        LoadInt(value->element_type, value->payload.data() + i * bytes);
    if (!integer.has_value() || *integer < INT32_MIN || *integer > INT32_MAX) {
      return WrongType(key, *value, "an array of 32-bit integers");
    }
    integers[i] = static_cast<int32_t>(*integer);
  }
  return integers;
}

}  // namespace latentd
