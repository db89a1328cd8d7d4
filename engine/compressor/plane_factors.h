#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/latents_file.h"
#include "engine/compressor/matrix.h"

namespace latentd {

// Keys or values y [s * head_dim] of s KV heads in two factors: y ~ up (down y). A method finds
// them from what it knows of y alone; for y = W x the factors of W are (down W) and up.
struct Factors {
  Matrix down;  // [latent_dim, s * head_dim]
  Matrix up;    // [s * head_dim, latent_dim]
};

// Turns the latent by an orthogonal matrix inside each segment, so that its dims share their range
// before low-bit codes; up x down is unchanged.
void RotateSegments(const std::vector<Segment>& segments, Factors* factors);

// The K or V factors of one layer as numbers of a latents file, and what the report says of them.
struct PlaneFactors {
  CachePlane plane;
  DType dtype = DType::kF16;
  std::vector<uint8_t> down;   // [latent_heads * dims, hidden]
  std::vector<uint8_t> up;     // [latent_heads * s * head_dim, dims]
  std::vector<float> mean;     // [latent_heads * dims]; empty: no mean is taken out
  std::vector<float> offset;   // [num_kv_heads * head_dim]; empty: likewise
  std::vector<double> energy;  // by dim of a latent head, falling, summed over the heads; all dims
  double predicted_kl = 0;     // nats per predicted token; 0 where the method predicts none

  TensorView DownView(int64_t hidden_dim) const;
  TensorView UpView() const;
  double EnergyKept() const;  // share of `energy` that lies in the plane's dims
};

struct LayerFactors {
  PlaneFactors k, v;
  int sinks = 0;
  bool own_page = false;

  LatentLayer View(const ModelConfig& config) const;  // borrows the numbers
};

// Appends down x weight and up of the next latent head, whose rows of the projection `weight` are
// [s * head_dim, hidden].
void AppendFactors(const Factors& factors, const Matrix& weight, PlaneFactors* plane);

// The k or v projection of a layer in double, rows [begin, begin + count). NOT_FOUND names the
// tensor.
absl::StatusOr<Matrix> ProjectionRows(const Checkpoint& checkpoint, int layer,
                                      const char* projection, int begin, int count);

// Rows and columns [begin, begin + count) of a square matrix.
Matrix DiagonalBlock(const Matrix& square, int begin, int count);

// The heads of a group that `text` asks for: "all", a number, or empty for the largest divisor of
// the KV heads up to 4 (Palu's default), all where that is 1. INVALID_ARGUMENT for other text, or a
// number that does not divide the model's KV heads.
absl::StatusOr<int> HeadsPerGroup(std::string_view text, int num_kv_heads);

// For people: "groups of all KV heads", "groups of 4 KV heads".
std::string DescribeGroups(int heads_per_group, int num_kv_heads);

}  // namespace latentd
