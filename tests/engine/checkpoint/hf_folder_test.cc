#include "engine/checkpoint/hf_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/engine/checkpoint/safetensors_builder.h"
#include "tests/engine/checkpoint/temporary_folder.h"

namespace latentd {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::vector<std::byte> Shard(const std::string& tensor) {
  return SafetensorsBytes("{\"" + tensor + R"(":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
                          4);
}

constexpr const char* kIndex = "model.safetensors.index.json";

std::string TensorsErrorOf(const TemporaryFolder& folder) {
  return std::string(OpenHfTensors(folder.path()).status().message());
}

TEST(HfFolderTest, ReadsShards) {
  const TemporaryFolder folder;
  folder.Write("1.safetensors", Shard("a"));
  folder.Write("2.safetensors", Shard("b"));
  folder.Write(kIndex, R"({"weight_map":{"a":"1.safetensors","b":"2.safetensors"}})");
  const auto files = OpenHfTensors(folder.path());
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_EQ(files->tensors.size(), 2u);
  EXPECT_EQ(files->storage.size(), 2u);
}

TEST(HfFolderTest, AnIndexThatDisagreesWithItsShardsIsAnError) {
  const TemporaryFolder folder;
  EXPECT_THAT(TensorsErrorOf(folder), HasSubstr("model.safetensors"));
  folder.Write("1.safetensors", Shard("a"));
  folder.Write("2.safetensors", Shard("b"));
  folder.Write(kIndex, R"({"weight_map":{"a":"1.safetensors","c":"2.safetensors"}})");
  EXPECT_THAT(TensorsErrorOf(folder), AllOf(HasSubstr("tensor b"), HasSubstr("nowhere")));
  folder.Write(kIndex, R"({"weight_map":{"a":"1.safetensors","c":"1.safetensors"}})");
  EXPECT_THAT(TensorsErrorOf(folder), AllOf(HasSubstr("tensor c"), HasSubstr("1.safetensors")));
  folder.Write(kIndex, R"({"weight_map":{"a":"3.safetensors"}})");
  EXPECT_THAT(TensorsErrorOf(folder), HasSubstr("3.safetensors"));
}

TEST(HfFolderTest, ShardsLieInTheFolder) {
  const TemporaryFolder folder;
  for (const char* shard : {"../x.safetensors", "/etc/passwd", "..", "", "a\\u0000b"}) {
    folder.Write(kIndex, std::string(R"({"weight_map":{"a":")") + shard + "\"}}");
    EXPECT_THAT(TensorsErrorOf(folder), HasSubstr("no file of the folder")) << shard;
  }
  folder.Write(kIndex, R"({"weight_map":{"a":3}})");
  EXPECT_THAT(TensorsErrorOf(folder), HasSubstr("no string"));
  folder.Write(kIndex, R"({"weight_map":3})");
  EXPECT_THAT(TensorsErrorOf(folder), HasSubstr("weight_map"));
}

TEST(HfFolderTest, FindsTheChatTemplate) {
  const TemporaryFolder folder;
  EXPECT_EQ(ReadHfTokenizer(folder.path())->chat_template, "");
  folder.Write("tokenizer.json", "{}");
  folder.Write("tokenizer_config.json", R"({"chat_template":"one"})");
  EXPECT_EQ(ReadHfTokenizer(folder.path())->chat_template, "one");
  EXPECT_EQ(ReadHfTokenizer(folder.path())->tokenizer_json, "{}");
  folder.Write("tokenizer_config.json",
               R"({"chat_template":[{"name":"tool_use","template":"tools"},
                                    {"name":"default","template":"two"}]})");
  EXPECT_EQ(ReadHfTokenizer(folder.path())->chat_template, "two");
  folder.Write("chat_template.jinja", "three");
  EXPECT_EQ(ReadHfTokenizer(folder.path())->chat_template, "three");
  folder.Write("chat_template.jinja", std::string(5 << 20, 'x'));
  EXPECT_THAT(std::string(ReadHfTokenizer(folder.path()).status().message()),
              AllOf(HasSubstr("5242880"), HasSubstr("4194304")));
}

}  // namespace
}  // namespace latentd
