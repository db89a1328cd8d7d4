#include "base/message.h"

#include <string_view>

#include "gtest/gtest.h"

namespace latentd {
namespace {

TEST(MessageTest, JoinsNumbersAndEveryKindOfText) {
  const std::string_view view = "tensor";
  EXPECT_EQ(Message(view, " ", std::string("q"), " has ", 3, " rows, not ", int64_t{4}, "."),
            "tensor q has 3 rows, not 4.");
  EXPECT_EQ(Message(std::string_view()), "");
}

}  // namespace
}  // namespace latentd
