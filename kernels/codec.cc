#include "kernels/codec.h"

#include "kernels/dtype.h"

namespace latentd {

const CodecInfo& Info(Codec codec) {
  static constexpr CodecInfo kInfo[] = {
      {"f32", 32, 0}, {"f16", 16, 0},    {"int8", 8, 2},    {"int4", 4, 2},    {"int3", 3, 2},
      {"int2", 2, 2}, {"minmax4", 4, 4}, {"minmax3", 3, 4}, {"minmax2", 2, 4},
  };
  return kInfo[static_cast<int>(codec)];
}

std::optional<Codec> ParseCodec(std::string_view name) {
  for (int i = 0; i <= static_cast<int>(Codec::kMinMax2); ++i) {
    if (name == Info(static_cast<Codec>(i)).name) return static_cast<Codec>(i);
  }
  return std::nullopt;
}

std::optional<Codec> GridCodec(int bits) {
  switch (bits) {
    case 8:
      return Codec::kInt8;
    case 4:
      return Codec::kInt4;
    case 3:
      return Codec::kInt3;
    case 2:
      return Codec::kInt2;
    default:
      return std::nullopt;
  }
}

float DecodeScale(Codec codec, CodeScale scale) { return HalfToFloat(scale.scale); }

float DecodeOffset(Codec codec, CodeScale scale) {
  if (Info(codec).scale_bytes == 4) return HalfToFloat(scale.zero);
  const float half_top = static_cast<float>((1 << Info(codec).bits) - 1) * 0.5f;
  return -half_top * HalfToFloat(scale.scale);
}

}  // namespace latentd
