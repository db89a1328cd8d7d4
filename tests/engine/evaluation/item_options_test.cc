#include "engine/evaluation/item_options.h"

#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace latentd {
namespace {

using ::testing::HasSubstr;

class ItemOptionsTest : public ::testing::Test {
 protected:
  std::string NewPath(const std::string& name) const {
    const std::string path = testing::TempDir() + "/item_options_" + name;
    std::filesystem::remove(path);
    return path;
  }
  absl::StatusOr<ItemFiles> Open(const ItemOptions& options, const std::string& latents,
                                 int seed) const {
    const EvaluationModel model{.model = {.model = "m.gguf", .latents = latents}};
    return OpenItems(options, "retrieval", model, info_, {{"seed", seed}});
  }
  const EngineInfo info_ = {.bytes_per_token = 100, .cache_name = "mixed"};
};

TEST_F(ItemOptionsTest, LatentsAreToldApartByTheirBytes) {
  const std::string items = NewPath("items"), latents = NewPath("latents");
  std::ofstream(latents) << "0123456789";
  ASSERT_TRUE(Open({.items = items}, latents, 1).ok());
  EXPECT_TRUE(Open({.items = items}, latents, 1).ok());
  std::ofstream(latents) << "012345678a";  // made anew, from another text
  EXPECT_EQ(Open({.items = items}, latents, 1).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(ItemOptionsTest, OtherQuestionsAreNotCompared) {
  const std::string items = NewPath("compared");
  ASSERT_TRUE(Open({.items = items}, "", 1).ok());
  EXPECT_TRUE(Open({.compare = items}, "", 1).ok());
  EXPECT_THAT(Open({.compare = items}, "", 2).status().message(),
              HasSubstr("holds results of other questions: its seed is 1, here 2"));
}

}  // namespace
}  // namespace latentd
