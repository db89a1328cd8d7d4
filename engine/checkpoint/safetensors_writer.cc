#include "engine/checkpoint/safetensors_writer.h"

#include <nlohmann/json.hpp>

#include "base/message.h"
#include "base/status_macros.h"
#include "engine/checkpoint/atomic_file.h"
#include "engine/checkpoint/safetensors_file.h"

namespace latentd {
namespace {

using Json = nlohmann::json;

const char* TypeName(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "F32";
    case DType::kF16:
      return "F16";
    case DType::kBF16:
      return "BF16";
    default:
      return nullptr;
  }
}

}  // namespace

absl::Status WriteSafetensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                              const std::map<std::string, std::string>& metadata) {
  Json header = Json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  int64_t offset = 0;
  for (const NamedTensor& tensor : tensors) {
    const TensorView& view = tensor.view;
    const char* type = TypeName(view.dtype);
    if (type == nullptr) {
      return absl::InvalidArgumentError(Message("tensor ", tensor.name, " has type ",
                                                Info(view.dtype).name,
                                                ", a safetensors file holds F32, F16 and BF16"));
    }
    if (header.contains(tensor.name)) {
      return absl::InvalidArgumentError(Message("the tensor ", tensor.name, " occurs twice"));
    }
    Json shape = Json::array({view.rows, view.cols});
    if (tensor.is_vector) shape = Json::array({view.rows * view.cols});
    header[tensor.name] = {
        {"dtype", type}, {"shape", shape}, {"data_offsets", {offset, offset + view.bytes()}}};
    offset += view.bytes();
  }
  // Data that begins at a multiple of 8 can be used in place. Strings that are no UTF-8 are
  // replaced, not thrown at.
  std::string text = header.dump(-1, ' ', false, Json::error_handler_t::replace);
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t length = text.size();
  if (length > kMaxSafetensorsHeader) {
    return absl::InvalidArgumentError(Message(path, ": the header would take ", length, " bytes, ",
                                              kMaxSafetensorsHeader, " are allowed"));
  }

  ASSIGN_OR_RETURN(const std::unique_ptr<AtomicFile> file, AtomicFile::Create(path));
  RETURN_IF_ERROR(file->Write(&length, sizeof(length)));
  RETURN_IF_ERROR(file->Write(text));
  for (const NamedTensor& tensor : tensors) {
    RETURN_IF_ERROR(file->Write(tensor.view.data, tensor.view.bytes()));
  }
  return file->Publish();
}

}  // namespace latentd
