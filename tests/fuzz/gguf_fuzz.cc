// Any bytes as a GGUF model: a checkpoint whose every tensor can be read, or an error.

#include "engine/checkpoint/checkpoint.h"
#include "tests/fuzz/input_file.h"
#include "tests/fuzz/read_everything.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const latentd::InputFile file(data, size);
  const auto checkpoint = latentd::Checkpoint::Open(file.path());
  if (checkpoint.ok()) latentd::ReadEverything(**checkpoint);
  return 0;
}
