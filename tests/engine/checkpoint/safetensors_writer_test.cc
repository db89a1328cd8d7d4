#include "engine/checkpoint/safetensors_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "engine/checkpoint/safetensors_file.h"
#include "tests/engine/checkpoint/temporary_folder.h"

namespace latentd {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

const std::vector<float> kSix = {1, 2, 3, 4, 5, 6};
const TensorView kMatrix = {.dtype = DType::kF32,
                            .rows = 2,
                            .cols = 3,
                            .data = reinterpret_cast<const std::byte*>(kSix.data())};

size_t FilesIn(const std::string& folder) {
  return std::distance(std::filesystem::directory_iterator(folder), {});
}

TEST(SafetensorsWriterTest, WhatIsWrittenReadsBack) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/x.safetensors";
  ASSERT_TRUE(WriteSafetensors(path, {{.name = "m", .view = kMatrix}}, {{"key", "value"}}).ok());
  // Over an old file as well.
  ASSERT_TRUE(
      WriteSafetensors(
          path, {{.name = "m", .view = kMatrix}, {.name = "v", .view = kMatrix, .is_vector = true}},
          {{"key", "\xff other"}})
          .ok());
  const auto file = SafetensorsFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT(file->tensors.at("m").shape, ElementsAre(2, 3));
  EXPECT_THAT(file->tensors.at("v").shape, ElementsAre(6));
  EXPECT_EQ(std::memcmp(file->tensors.at("v").data.data(), kSix.data(), 24), 0);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(file->tensors.at("m").data.data()) % 8, 0u);
  EXPECT_THAT(file->metadata.at("key"), HasSubstr("other"));
  EXPECT_EQ(FilesIn(folder.path()), 1u);
}

TEST(SafetensorsWriterTest, AnErrorLeavesNothingBehind) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/x.safetensors";
  TensorView quantised = kMatrix;
  quantised.dtype = DType::kQ8_0;
  EXPECT_THAT(std::string(WriteSafetensors(path, {{.name = "q", .view = quantised}}, {}).message()),
              HasSubstr("tensor q"));
  EXPECT_FALSE(
      WriteSafetensors(path, {{.name = "m", .view = kMatrix}, {.name = "m", .view = kMatrix}}, {})
          .ok());
  EXPECT_THAT(std::string(WriteSafetensors(folder.path() + "/none/x", {}, {}).message()),
              HasSubstr("none/x"));
  const std::string huge(kMaxSafetensorsHeader, 'x');
  EXPECT_THAT(std::string(WriteSafetensors(path, {}, {{"key", huge}}).message()),
              AllOf(HasSubstr(path), HasSubstr("33554432 are allowed")));
  // A rename over a folder fails after everything was written.
  std::filesystem::create_directory(path);
  EXPECT_FALSE(WriteSafetensors(path, {{.name = "m", .view = kMatrix}}, {}).ok());
  EXPECT_EQ(FilesIn(folder.path()), 1u);
}

}  // namespace
}  // namespace latentd
