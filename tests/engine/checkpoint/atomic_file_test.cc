#include "engine/checkpoint/atomic_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "tests/engine/checkpoint/limited_disk.h"
#include "tests/engine/checkpoint/temporary_folder.h"

namespace latentd {
namespace {

using testing::HasSubstr;

size_t FilesIn(const std::string& folder) {
  return std::distance(std::filesystem::directory_iterator(folder), {});
}

std::string Contents(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(AtomicFileTest, TheOldFileStandsUntilTheNewOneIsPublished) {
  const TemporaryFolder folder;
  const std::string path = folder.Write("x", "old");
  const auto file = AtomicFile::Create(path);
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_TRUE((*file)->Write("new ").ok());
  ASSERT_TRUE((*file)->Write("text").ok());
  EXPECT_EQ(Contents(path), "old");
  ASSERT_TRUE((*file)->Publish().ok());
  EXPECT_EQ(Contents(path), "new text");
  EXPECT_EQ(FilesIn(folder.path()), 1u);
}

TEST(AtomicFileTest, WhatIsNotPublishedLeavesNothing) {
  const TemporaryFolder folder;
  {
    const auto file = AtomicFile::Create(folder.path() + "/x");
    ASSERT_TRUE(file.ok()) << file.status();
    ASSERT_TRUE((*file)->Write("text").ok());
    EXPECT_EQ(FilesIn(folder.path()), 1u);
  }
  EXPECT_EQ(FilesIn(folder.path()), 0u);
}

TEST(AtomicFileTest, AFullDiskIsAnErrorThatNamesTheFile) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/x";
  {
    const LimitedDisk disk(1000);
    const auto file = AtomicFile::Create(path);
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_THAT(std::string((*file)->Write(std::string(2000, 'x')).message()),
                HasSubstr("cannot write " + path));
  }
  EXPECT_EQ(FilesIn(folder.path()), 0u);
}

TEST(AtomicFileTest, AFolderThatIsNotThereIsAnError) {
  const TemporaryFolder folder;
  const auto file = AtomicFile::Create(folder.path() + "/none/x");
  EXPECT_EQ(file.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(file.status().message()), HasSubstr("cannot create " + folder.path()));
}

}  // namespace
}  // namespace latentd
