#include "engine/checkpoint/gguf_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/engine/checkpoint/gguf_builder.h"
#include "tests/engine/checkpoint/safetensors_builder.h"

namespace latentd {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

using Bytes = std::vector<std::byte>;

absl::StatusOr<std::unique_ptr<GgufFile>> Parse(const Bytes& bytes) {
  // Exactly as many bytes as the file has, so that a sanitizer sees a read beyond them.
  auto storage = std::make_shared<Bytes>(bytes.begin(), bytes.end());
  return GgufFile::Parse(*storage, storage, "test.gguf");
}

std::string ErrorOf(const GgufBuilder& builder) {
  return std::string(Parse(builder.Build()).status().message());
}

const std::vector<float> kEight = {1, 2, 3, 4, 5, 6, 7, 8};

TEST(GgufFileTest, ReadsEveryKindOfValue) {
  const auto file = Parse(GgufBuilder()
                              .Scalar("u8", 0, uint8_t{200})
                              .Scalar("i8", 1, int8_t{-3})
                              .Scalar("u16", 2, uint16_t{60000})
                              .Scalar("i16", 3, int16_t{-300})
                              .U32("u32", 4000000000u)
                              .Scalar("i32", 5, int32_t{-7})
                              .F32("f32", 1.5f)
                              .Bool("bool", true)
                              .String("string", "hello")
                              .Scalar("u64", 10, uint64_t{1} << 40)
                              .Scalar("i64", 11, int64_t{-1} << 40)
                              .Scalar("f64", 12, 0.25)
                              .Strings("strings", {"a", "", "bc"})
                              .Numbers<float>("floats", 6, {1.0f, 2.5f})
                              .Numbers<int32_t>("ints", 5, {1, -2})
                              .Build());
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(**(*file)->Int("u8"), 200);
  EXPECT_EQ(**(*file)->Int("i8"), -3);
  EXPECT_EQ(**(*file)->Int("u16"), 60000);
  EXPECT_EQ(**(*file)->Int("i16"), -300);
  EXPECT_EQ(**(*file)->Int("u32"), 4000000000);
  EXPECT_EQ(**(*file)->Int("i32"), -7);
  EXPECT_EQ(**(*file)->Float("f32"), 1.5);
  EXPECT_EQ(**(*file)->Float("i32"), -7.0);
  EXPECT_TRUE(**(*file)->Bool("bool"));
  EXPECT_EQ(**(*file)->String("string"), "hello");
  EXPECT_EQ(**(*file)->Int("u64"), int64_t{1} << 40);
  EXPECT_EQ(**(*file)->Int("i64"), int64_t{-1} << 40);
  EXPECT_EQ(**(*file)->Float("f64"), 0.25);
  EXPECT_THAT(*(*file)->Strings("strings"), ElementsAre("a", "", "bc"));
  EXPECT_THAT(*(*file)->Floats("floats"), ElementsAre(1.0f, 2.5f));
  EXPECT_THAT(*(*file)->Ints("ints"), ElementsAre(1, -2));
  EXPECT_FALSE((*file)->Int("absent")->has_value());
  EXPECT_THAT(*(*file)->Strings("absent"), IsEmpty());
}

TEST(GgufFileTest, AValueOfAnotherTypeIsAnErrorThatNamesTheKey) {
  const auto file = Parse(GgufBuilder()
                              .String("text", "x")
                              .Scalar("huge", 10, std::numeric_limits<uint64_t>::max())
                              .Numbers<int64_t>("wide", 11, {int64_t{1} << 40})
                              .Build());
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT(std::string((*file)->Int("text").status().message()),
              AllOf(HasSubstr("text"), HasSubstr("string"), HasSubstr("integer")));
  EXPECT_FALSE((*file)->Int("huge").ok());
  EXPECT_FALSE((*file)->Ints("wide").ok());
  EXPECT_FALSE((*file)->Float("text").ok());
  EXPECT_FALSE((*file)->Bool("huge").ok());
  EXPECT_FALSE((*file)->String("huge").ok());
  EXPECT_FALSE((*file)->Strings("wide").ok());
  EXPECT_FALSE((*file)->Floats("wide").ok());
}

TEST(GgufFileTest, ReadsTensorsOfBothVersions) {
  for (const uint32_t version : {2u, 3u}) {
    const auto file = Parse(GgufBuilder(version)
                                .Floats("a", {4, 2}, kEight)
                                .Tensor("q", {32, 3}, 8, Bytes(3 * 34))
                                .Build());
    ASSERT_TRUE(file.ok()) << file.status();
    const StoredTensor& a = (*file)->tensors().at("a");
    EXPECT_THAT(a.shape, ElementsAre(2, 4));
    EXPECT_EQ(a.dtype, DType::kF32);
    EXPECT_EQ(std::memcmp(a.data.data(), kEight.data(), 32), 0);
    EXPECT_EQ((*file)->tensors().at("q").data.size(), 3u * 34);
  }
}

TEST(GgufFileTest, EveryTruncationIsAnError) {
  const Bytes whole = GgufBuilder()
                          .String("general.architecture", "llama")
                          .Strings("tokens", {"a", "b"})
                          .U32("n", 3)
                          .Floats("a", {4, 2}, kEight)
                          .Build();
  ASSERT_TRUE(Parse(whole).ok());
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_FALSE(Parse(Bytes(whole.begin(), whole.begin() + size)).ok()) << size;
  }
}

TEST(GgufFileTest, RefusesWhatIsNoGguf) {
  EXPECT_THAT(std::string(Parse(Bytes(64)).status().message()), HasSubstr("GGUF"));
  EXPECT_THAT(ErrorOf(GgufBuilder(1)), HasSubstr("version 1"));
  EXPECT_THAT(ErrorOf(GgufBuilder(0x03000000)), HasSubstr("version 50331648"));
}

TEST(GgufFileTest, SaysWhatAnotherFileLooksLike) {
  const auto error = [](const char* header) {
    return std::string(Parse(SafetensorsBytes(header, 0)).status().message());
  };
  EXPECT_THAT(error(R"({"__metadata__":{"latentd":"{}"}})"),
              HasSubstr("looks like a latents file"));
  EXPECT_THAT(error(R"({"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}})"),
              HasSubstr("looks like a safetensors file, name its folder"));
  EXPECT_THAT(error("a text"), HasSubstr("does not begin with GGUF"));
}

TEST(GgufFileTest, RefusesCountsAndLengthsThatTheFileCannotHold) {
  const uint64_t huge = uint64_t{1} << 60;
  EXPECT_FALSE(Parse(GgufBuilder().BuildWithCounts(huge, 0)).ok());
  EXPECT_FALSE(Parse(GgufBuilder().BuildWithCounts(0, huge)).ok());
  EXPECT_THAT(ErrorOf(GgufBuilder().Array("strings", 8, huge)), HasSubstr("strings"));
  EXPECT_THAT(ErrorOf(GgufBuilder().Array("bytes", 0, huge)), HasSubstr("bytes"));
  EXPECT_THAT(ErrorOf(GgufBuilder().Array("longs", 10, ~uint64_t{0})), HasSubstr("longs"));
  EXPECT_THAT(ErrorOf(GgufBuilder().Scalar("text", 8, huge)), HasSubstr("text"));
  EXPECT_THAT(ErrorOf(GgufBuilder().Scalar("odd", 77, 1)), HasSubstr("type 77"));
}

TEST(GgufFileTest, ReadsNestedArraysToADepthAlone) {
  GgufBuilder shallow, deep;
  shallow.Array("nested", 9, 1).Raw(uint32_t{0}).Raw(uint64_t{1}).Raw(uint8_t{5});
  EXPECT_TRUE(Parse(shallow.Build()).ok());
  deep.Array("nested", 9, 1);
  for (int i = 0; i < 100000; ++i) deep.Raw(uint32_t{9}).Raw(uint64_t{1});
  deep.Raw(uint32_t{0}).Raw(uint64_t{0});
  EXPECT_THAT(ErrorOf(deep), AllOf(HasSubstr("nested"), HasSubstr("deeper than 4")));
}

TEST(GgufFileTest, RefusesNamesThatOccurTwice) {
  EXPECT_THAT(ErrorOf(GgufBuilder().U32("k", 1).U32("k", 2)), HasSubstr("k occurs twice"));
  EXPECT_THAT(ErrorOf(GgufBuilder().Floats("a", {8}, kEight).Floats("a", {8}, kEight)),
              HasSubstr("tensor a occurs twice"));
}

TEST(GgufFileTest, RefusesTensorsThatDoNotFit) {
  EXPECT_THAT(ErrorOf(GgufBuilder().TensorAt("t", {8}, 0, 64).Data(80)),
              AllOf(HasSubstr("32 bytes from offset 64"), HasSubstr("80")));
  EXPECT_THAT(ErrorOf(GgufBuilder().TensorAt("t", {8}, 0, 4).Data(80)),
              AllOf(HasSubstr("offset 4"), HasSubstr("32")));
  EXPECT_THAT(ErrorOf(GgufBuilder().TensorAt("t", {8}, 0, ~uint64_t{31}).Data(80)),
              HasSubstr("tensor t"));
  EXPECT_THAT(ErrorOf(GgufBuilder().TensorAt("t", {uint64_t{1} << 40, uint64_t{1} << 40}, 0, 0)),
              HasSubstr("impossible shape"));
  EXPECT_THAT(ErrorOf(GgufBuilder().TensorAt("t", {~uint64_t{0}}, 0, 0)),
              HasSubstr("impossible shape"));
  EXPECT_THAT(ErrorOf(GgufBuilder().TensorAt("t", {0, 4}, 0, 0)), HasSubstr("impossible shape"));
  EXPECT_THAT(ErrorOf(GgufBuilder().TensorAt("t", {1, 1, 1, 1, 1}, 0, 0)), HasSubstr("5 dims"));
  EXPECT_THAT(ErrorOf(GgufBuilder().TensorAt("t", {33}, 8, 0).Data(80)),
              AllOf(HasSubstr("33"), HasSubstr("blocks of 32")));
  EXPECT_THAT(ErrorOf(GgufBuilder().TensorAt("a", {16}, 0, 0).TensorAt("b", {8}, 0, 32).Data(64)),
              AllOf(HasSubstr("a and b"), HasSubstr("32 bytes")));
}

TEST(GgufFileTest, NamesATypeThatIsNotSupported) {
  const absl::Status status =
      Parse(GgufBuilder().TensorAt("t", {256}, 10, 0).Data(256).Build()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("Q2_K"), HasSubstr("tensor t")));
  EXPECT_THAT(ErrorOf(GgufBuilder().TensorAt("t", {256}, 99, 0)), HasSubstr("number 99"));
}

TEST(GgufFileTest, ObeysTheAlignmentOfTheFile) {
  EXPECT_TRUE(
      Parse(GgufBuilder().U32("general.alignment", 8).TensorAt("t", {8}, 0, 8).Data(64).Build())
          .ok());
  EXPECT_THAT(ErrorOf(GgufBuilder().U32("general.alignment", 0)), HasSubstr("alignment is 0"));
  EXPECT_THAT(ErrorOf(GgufBuilder().U32("general.alignment", 48)), HasSubstr("alignment is 48"));
}

}  // namespace
}  // namespace latentd
