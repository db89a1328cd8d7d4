#include "engine/evaluation/items_file.h"

#include <filesystem>
#include <fstream>
#include <sstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace latentd {
namespace {

using ::testing::HasSubstr;

std::string NewPath(const std::string& name) {
  const std::string path = testing::TempDir() + "/" + name;
  std::filesystem::remove(path);
  return path;
}

std::string Contents(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

const nlohmann::ordered_json kHeader = {{"latent_eval", "tasks"}, {"model", "m"}};

TEST(ItemsFile, GoesOnWhereItStopped) {
  const std::string path = NewPath("resumed.jsonl");
  {
    auto file = ItemsFile::Open(path, kHeader);
    ASSERT_TRUE(file.ok()) << file.status();
    ASSERT_TRUE(file->Add({"piqa", 7}, {{"acc", 1}}).ok());
  }
  std::ofstream(path, std::ios::app) << R"({"task": "piqa", "ind)";  // a kill in the middle
  auto file = ItemsFile::Open(path, kHeader);
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_NE(file->Find({"piqa", 7}), nullptr);
  EXPECT_EQ((*file->Find({"piqa", 7}))["acc"], 1);
  EXPECT_EQ(file->Find({"piqa", 8}), nullptr);
  EXPECT_EQ(file->Find({"arc_easy", 7}), nullptr);
  ASSERT_TRUE(file->Add({"piqa", 8}, {{"acc", 0}}).ok());
  EXPECT_EQ(Contents(path), R"({"latent_eval":"tasks","model":"m"}
{"task":"piqa","index":7,"acc":1}
{"task":"piqa","index":8,"acc":0}
)");
}

TEST(ItemsFile, ResultsOfSomethingElseAreNotMixedIn) {
  const std::string path = NewPath("other.jsonl");
  ASSERT_TRUE(ItemsFile::Open(path, kHeader).ok());
  const absl::Status other =
      ItemsFile::Open(path, {{"latent_eval", "tasks"}, {"model", "n"}}).status();
  EXPECT_EQ(other.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(other.message(), HasSubstr(R"("model":"m")"));
  EXPECT_THAT(other.message(), HasSubstr(R"("model":"n")"));
  EXPECT_THAT(ItemsFile::Read(path, "retrieval").status().message(),
              HasSubstr("no results of latent-eval retrieval"));
}

TEST(ItemsFile, DamageIsNamedByItsLine) {
  const std::string path = NewPath("damaged.jsonl");
  std::ofstream(path) << R"({"latent_eval": "tasks"})"
                      << "\n{\"task\": 3}\n";
  EXPECT_THAT(ItemsFile::Read(path, "tasks").status().message(), HasSubstr("line 2"));
  std::ofstream(path) << "no results\n";
  EXPECT_THAT(ItemsFile::Open(path, kHeader).status().message(), HasSubstr("line 1"));
  EXPECT_EQ(Contents(path), "no results\n");  // somebody's file stays as it is
}

TEST(ItemsFile, WithoutAPathNothingIsWritten) {
  ItemsFile file;
  ASSERT_TRUE(file.Add({"piqa", 0}, {{"acc", 1}}).ok());
  EXPECT_NE(file.Find({"piqa", 0}), nullptr);
}

}  // namespace
}  // namespace latentd
