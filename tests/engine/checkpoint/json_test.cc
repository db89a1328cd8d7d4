#include "engine/checkpoint/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace latentd {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::string ErrorOf(std::string_view text) {
  return std::string(ParseJson(text, "x.json").status().message());
}

TEST(JsonTest, RefusesWhatIsNoJson) {
  for (const char* text : {"", "{", "{\"a\":NaN}", "{\"a\":1e999}", "[1,]", "\"\xff\"", "{}{}"}) {
    EXPECT_THAT(ErrorOf(text), HasSubstr("x.json")) << text;
  }
}

TEST(JsonTest, RefusesKeysThatOccurTwiceInOneObject) {
  EXPECT_THAT(ErrorOf(R"({"a":1,"b":{"c":1,"c":2}})"), HasSubstr("\"c\" occurs twice"));
  EXPECT_TRUE(ParseJson(R"({"a":{"c":1},"b":{"c":2},"l":[{"c":1},{"c":1}]})", "x").ok());
}

TEST(JsonTest, RefusesDeepNesting) {
  EXPECT_THAT(ErrorOf(std::string(1000000, '[')), HasSubstr("1000000 deep"));
  EXPECT_TRUE(ParseJson("[\"" + std::string(1000, '[') + "\\\"[\"]", "x").ok());
}

TEST(JsonTest, ReadsFieldsOfTheirTypesAlone) {
  const auto json = *ParseJson(
      R"({"int":7,"float":2.5,"whole":8.0,"big":4294967296,"huge":18446744073709551615,
          "yes":true,"text":"t","none":null,"list":[1,2],"mixed":[1,"x"]})",
      "x.json");
  int integer = -1;
  EXPECT_TRUE(ReadField(json, "absent", "x", integer).ok());
  EXPECT_TRUE(ReadField(json, "none", "x", integer).ok());
  EXPECT_EQ(integer, -1);
  EXPECT_TRUE(ReadField(json, "int", "x", integer).ok());
  EXPECT_EQ(integer, 7);
  EXPECT_TRUE(ReadField(json, "whole", "x", integer).ok());
  EXPECT_EQ(integer, 8);
  for (const char* key : {"float", "big", "huge", "yes", "text", "list"}) {
    EXPECT_THAT(std::string(ReadField(json, key, "x.json", integer).message()),
                AllOf(HasSubstr("x.json"), HasSubstr(key)));
  }
  float number = 0;
  EXPECT_TRUE(ReadField(json, "float", "x", number).ok());
  EXPECT_EQ(number, 2.5f);
  EXPECT_FALSE(ReadField(json, "text", "x", number).ok());
  bool flag = false;
  EXPECT_TRUE(ReadField(json, "yes", "x", flag).ok());
  EXPECT_TRUE(flag);
  EXPECT_FALSE(ReadField(json, "int", "x", flag).ok());
  std::vector<int32_t> ids;
  EXPECT_TRUE(ReadField(json, "int", "x", ids).ok());
  EXPECT_THAT(ids, ElementsAre(7));
  EXPECT_TRUE(ReadField(json, "list", "x", ids).ok());
  EXPECT_THAT(ids, ElementsAre(1, 2));
  EXPECT_FALSE(ReadField(json, "mixed", "x", ids).ok());
  std::vector<float> floats;
  EXPECT_FALSE(ReadField(json, "mixed", "x", floats).ok());
  EXPECT_FALSE(ReadField(json, "int", "x", floats).ok());
}

}  // namespace
}  // namespace latentd
