#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/latents_file.h"

namespace latentd {

// Latents of any layout, made without data: a group of KV heads keeps the first dims of a rotation
// of its keys or values. With all dims kept they change nothing but the codes.
struct TestLatents {
  int heads_per_group = 1;
  std::vector<Segment> k, v;  // of every latent head
  int sinks = 0;
  bool own_page = false;
  bool means = false;  // random ones; the offsets give back what they take
};

std::unique_ptr<Latents> MakeTestLatents(const Checkpoint& checkpoint, const TestLatents& options);

}  // namespace latentd
