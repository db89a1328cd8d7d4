#include "server/admission.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace latentd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string Refusal(const absl::Status& status) {
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  return std::string(status.message());
}

TEST(AdmissionTest, CallsAndBytesAreBoundedAndGivenBack) {
  Admission admission(2);
  constexpr size_t kHalf = Admission::kMaxBytes / 2;
  ASSERT_TRUE(admission.Enter(kHalf).ok());
  EXPECT_THAT(Refusal(admission.Enter(kHalf + 1)),
              AllOf(HasSubstr("134217728 bytes"), HasSubstr("takes 268435456")));
  ASSERT_TRUE(admission.Enter(kHalf).ok());
  EXPECT_THAT(Refusal(admission.Enter(0)),
              HasSubstr("2 requests are open, and the server takes 2"));
  EXPECT_EQ(admission.open(), 2);
  admission.Leave(kHalf);
  admission.Leave(kHalf);
  EXPECT_EQ(admission.open(), 0);
  EXPECT_TRUE(admission.Enter(Admission::kMaxBytes).ok());
  admission.Close();
  EXPECT_TRUE(absl::IsUnavailable(admission.Enter(0)));
}

TEST(AdmissionTest, AnIdIsServedOnceAtATime) {
  Admission admission(2);
  EXPECT_TRUE(admission.Claim("a").ok());
  EXPECT_TRUE(absl::IsAlreadyExists(admission.Claim("a")));
  admission.Release("a");
  EXPECT_TRUE(admission.Claim("a").ok());
}

}  // namespace
}  // namespace latentd
