#include "base/mapped_file.h"

#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace latentd {
namespace {

using ::testing::HasSubstr;

std::string WriteFile(const std::string& name, const std::string& content) {
  const std::string path = ::testing::TempDir() + "/" + name;
  std::ofstream(path, std::ios::binary) << content;
  return path;
}

TEST(MappedFileTest, ShowsTheBytesOfTheFile) {
  const std::string path = WriteFile("mapped_file_test.bin", std::string("a\0b", 3));
  const auto file = MappedFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->path(), path);
  ASSERT_EQ((*file)->bytes().size(), 3u);
  EXPECT_EQ(std::memcmp((*file)->bytes().data(), "a\0b", 3), 0);
}

TEST(MappedFileTest, TheBytesOutliveTheName) {
  const std::string path = WriteFile("mapped_file_gone.bin", "still here");
  const auto file = MappedFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_EQ(unlink(path.c_str()), 0);
  EXPECT_EQ(std::memcmp((*file)->bytes().data(), "still here", 10), 0);
}

TEST(MappedFileTest, AnEmptyFileHasNoBytes) {
  const auto file = MappedFile::Open(WriteFile("mapped_file_empty.bin", ""));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE((*file)->bytes().empty());
}

TEST(MappedFileTest, AMissingFileIsNamed) {
  const auto file = MappedFile::Open("/nowhere/model.gguf");
  EXPECT_EQ(file.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(file.status().message()), HasSubstr("/nowhere/model.gguf"));
}

TEST(MappedFileTest, AFolderIsNoFile) {
  const auto file = MappedFile::Open(::testing::TempDir());
  EXPECT_EQ(file.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(file.status().message()), HasSubstr("not a regular file"));
}

}  // namespace
}  // namespace latentd
