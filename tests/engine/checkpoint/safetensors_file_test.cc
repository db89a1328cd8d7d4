#include "engine/checkpoint/safetensors_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "tests/engine/checkpoint/safetensors_builder.h"

namespace latentd {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::string ErrorOf(std::string_view header, size_t data_bytes) {
  const std::vector<std::byte> bytes = SafetensorsBytes(header, data_bytes);
  return std::string(SafetensorsFile::Parse(bytes, "test").status().message());
}

TEST(SafetensorsFileTest, ReadsTensorsAndMetadata) {
  const std::vector<std::byte> bytes = SafetensorsBytes(
      R"({"__metadata__":{"format":"pt"},
          "b":{"dtype":"F16","shape":[3],"data_offsets":[24,30]},
          "a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},
          "empty":{"dtype":"F32","shape":[0,3],"data_offsets":[24,24]},
          "mask":{"dtype":"BOOL","shape":[2],"data_offsets":[30,32]}})",
      32);
  const auto file = SafetensorsFile::Parse(bytes, "test");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT(file->tensors.at("a").shape, ElementsAre(2, 3));
  EXPECT_EQ(file->tensors.at("a").dtype, DType::kF32);
  EXPECT_EQ(file->tensors.at("b").data.data(), file->tensors.at("a").data.data() + 24);
  EXPECT_FALSE(file->tensors.at("mask").dtype.has_value());
  EXPECT_EQ(file->metadata.at("format"), "pt");
}

TEST(SafetensorsFileTest, RefusesAHeaderThatDoesNotFit) {
  EXPECT_FALSE(SafetensorsFile::Parse({}, "test").ok());
  std::vector<std::byte> bytes(16, std::byte{0xff});
  EXPECT_THAT(std::string(SafetensorsFile::Parse(bytes, "test").status().message()),
              AllOf(HasSubstr("18446744073709551615"), HasSubstr("8 left")));
}

TEST(SafetensorsFileTest, SaysThatAModelOfAnotherFormatIsOne) {
  std::vector<std::byte> bytes(64);
  std::memcpy(bytes.data(), "GGUF", 4);
  EXPECT_EQ(SafetensorsFile::Parse(bytes, "m.gguf").status().message(),
            "m.gguf: this looks like a GGUF model, it is no latents or safetensors file");
}

TEST(SafetensorsFileTest, RefusesAHeaderThatIsNotWhatItShouldBe) {
  EXPECT_THAT(ErrorOf("{", 0), HasSubstr("no JSON"));
  EXPECT_THAT(ErrorOf("[]", 0), HasSubstr("no JSON object"));
  EXPECT_THAT(ErrorOf(std::string(100000, '['), 0), HasSubstr("100000 deep"));
  EXPECT_THAT(ErrorOf(R"({"a":7})", 0), HasSubstr("tensor a"));
  EXPECT_THAT(ErrorOf(R"({"__metadata__":{"x":1}})", 0), HasSubstr("\"x\""));
  EXPECT_THAT(ErrorOf(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},
                          "a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
                      4),
              HasSubstr("\"a\" occurs twice"));
}

TEST(SafetensorsFileTest, RefusesATensorThatIsNotWhatItShouldBe) {
  const auto tensor = [](std::string_view dtype, std::string_view shape, std::string_view offsets) {
    return std::string(R"({"a":{"dtype":)") + std::string(dtype) + R"(,"shape":)" +
           std::string(shape) + R"(,"data_offsets":)" + std::string(offsets) + "}}";
  };
  EXPECT_THAT(ErrorOf(tensor("\"F31\"", "[1]", "[0,4]"), 4), HasSubstr("\"F31\""));
  EXPECT_THAT(ErrorOf(tensor("3", "[1]", "[0,4]"), 4), HasSubstr("dtype"));
  EXPECT_THAT(ErrorOf(tensor("\"F32\"", "[-1]", "[0,4]"), 4), HasSubstr("extent -1"));
  EXPECT_THAT(ErrorOf(tensor("\"F32\"", "[1.5]", "[0,4]"), 4), HasSubstr("extent 1.5"));
  EXPECT_THAT(ErrorOf(tensor("\"F32\"", "3", "[0,4]"), 4), HasSubstr("shape"));
  EXPECT_THAT(ErrorOf(tensor("\"F32\"", "[4611686018427387904,4]", "[0,4]"), 4),
              HasSubstr("impossible shape"));
  EXPECT_THAT(ErrorOf(tensor("\"F32\"", "[18446744073709551615]", "[0,4]"), 4),
              HasSubstr("extent"));
  EXPECT_THAT(ErrorOf(tensor("\"F32\"", "[2]", "[0,4]"), 4),
              AllOf(HasSubstr("has 4 bytes"), HasSubstr("takes 8")));
  EXPECT_THAT(ErrorOf(tensor("\"F32\"", "[2]", "[0,8]"), 4),
              AllOf(HasSubstr("ends at byte 8"), HasSubstr("has 4")));
  EXPECT_THAT(ErrorOf(tensor("\"F32\"", "[1]", "[4,0]"), 4), HasSubstr("[4,0]"));
  EXPECT_THAT(ErrorOf(tensor("\"F32\"", "[1]", "[0]"), 4), HasSubstr("data_offsets"));
}

TEST(SafetensorsFileTest, RefusesOverlapsHolesAndRests) {
  EXPECT_THAT(ErrorOf(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},
                          "b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})",
                      12),
              AllOf(HasSubstr("tensor b begins at byte 4"), HasSubstr("ends at 8")));
  EXPECT_THAT(ErrorOf(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8),
              HasSubstr("begins at byte 4"));
  EXPECT_THAT(ErrorOf(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 9),
              AllOf(HasSubstr("byte 4"), HasSubstr("9")));
}

}  // namespace
}  // namespace latentd
