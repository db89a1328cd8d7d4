#include "base/status_macros.h"

#include <memory>

#include "gtest/gtest.h"

namespace latentd {
namespace {

absl::Status PassOn(absl::Status status, int* after) {
  RETURN_IF_ERROR(status);
  ++*after;
  return absl::OkStatus();
}

absl::StatusOr<int> Sum(absl::StatusOr<int> a, absl::StatusOr<int> b) {
  ASSIGN_OR_RETURN(const int left, a);
  ASSIGN_OR_RETURN(const int right, b);
  return left + right;
}

TEST(StatusMacrosTest, ReturnIfErrorReturnsTheErrorAndSkipsTheRest) {
  int after = 0;
  EXPECT_EQ(PassOn(absl::NotFoundError("model.gguf"), &after), absl::NotFoundError("model.gguf"));
  EXPECT_EQ(after, 0);
  EXPECT_TRUE(PassOn(absl::OkStatus(), &after).ok());
  EXPECT_EQ(after, 1);
}

TEST(StatusMacrosTest, AssignOrReturnAssignsOrReturnsTheFirstError) {
  EXPECT_EQ(Sum(2, 3).value(), 5);
  EXPECT_EQ(Sum(2, absl::DataLossError("b")).status(), absl::DataLossError("b"));
  EXPECT_EQ(Sum(absl::DataLossError("a"), absl::DataLossError("b")).status(),
            absl::DataLossError("a"));
}

TEST(StatusMacrosTest, AssignOrReturnMovesWhatCannotBeCopied) {
  auto take = [](absl::StatusOr<std::unique_ptr<int>> from) -> absl::StatusOr<int> {
    ASSIGN_OR_RETURN(const std::unique_ptr<int> value, std::move(from));
    return *value;
  };
  EXPECT_EQ(take(std::make_unique<int>(7)).value(), 7);
}

}  // namespace
}  // namespace latentd
