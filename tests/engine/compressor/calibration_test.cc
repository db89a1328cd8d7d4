#include "engine/compressor/calibration.h"

#include "absl/strings/str_cat.h"
#include "engine/local_engine.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/checkpoint/temporary_folder.h"
#include "tests/testing/tiny_model.h"

namespace latentd {
namespace {

using ::testing::HasSubstr;

// A byte is a token.
class ByteTokenizer final : public Tokenizer {
 public:
  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text, bool, bool) const override {
    const size_t at = text.find('\xff');
    if (at != text.npos) return absl::InvalidArgumentError(absl::StrCat("no UTF-8 at byte ", at));
    return std::vector<int32_t>(text.begin(), text.end());
  }
  absl::StatusOr<std::string> Decode(const std::vector<int32_t>& ids, bool) const override {
    return std::string(ids.begin(), ids.end());
  }
  std::string_view TokenBytes(int32_t, bool) const override { return {}; }
  bool strips_leading_space() const override { return false; }
  int vocab_size() const override { return 128; }
};

class UserTemplate final : public ChatTemplate {
 public:
  absl::StatusOr<std::string> Render(const std::vector<ChatMessage>& messages,
                                     bool) const override {
    return "user: " + messages[0].content + "\nend";
  }
};

absl::Status Ignore(double) { return absl::OkStatus(); }

class CalibrationTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto checkpoint = Checkpoint::Open(WriteTinyModel({}));
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    checkpoint_ = *std::move(checkpoint);
  }

  absl::StatusOr<CalibrationWindows> FromModel(int num_blocks, int count, int tokens, uint64_t seed,
                                               const Progress& progress = Ignore, int seats = 5) {
    const auto engine = CreateLocalEngine(*checkpoint_, nullptr, *CreateCpuOps(2),
                                          {.num_blocks = num_blocks, .num_sequences = seats});
    EXPECT_TRUE(engine.ok()) << engine.status();
    return WindowsFromModel(**engine, checkpoint_->config(), tokenizer_, &chat_template_, count,
                            tokens, seed, progress);
  }

  const ByteTokenizer tokenizer_;
  const UserTemplate chat_template_;
  const TemporaryFolder folder_;
  std::unique_ptr<Checkpoint> checkpoint_;
};

TEST_F(CalibrationTest, FilesGiveEvenlySpacedWindows) {
  const std::string first = folder_.Write("first", "0123456789"),
                    second = folder_.Write("second", "abcde");
  const auto windows = WindowsFromFiles({first, second}, tokenizer_, 5, 2);
  ASSERT_TRUE(windows.ok()) << windows.status();
  std::vector<std::string> texts;
  for (const auto& window : *windows) texts.push_back(*tokenizer_.Decode(window, false));
  EXPECT_THAT(texts, ::testing::ElementsAre("01", "45", "89", "ab", "de"));
}

TEST_F(CalibrationTest, FilesThatAreTooShortOrTooManyAreRefusedWithBothNumbers) {
  const std::string file = folder_.Write("short", "0123456789");
  EXPECT_THAT(WindowsFromFiles({file}, tokenizer_, 3, 4).status().message(),
              HasSubstr("short has 10 tokens, its 3 windows of 4 need 12"));
  EXPECT_THAT(WindowsFromFiles({file}, tokenizer_, 1, 11).status().message(),
              HasSubstr("short has 10 tokens, its 1 window of 11 needs 11"));
  EXPECT_THAT(WindowsFromFiles({file, file}, tokenizer_, 1, 4).status().message(),
              HasSubstr("--calibration names 2 files, for 1 windows"));
  EXPECT_EQ(WindowsFromFiles({folder_.path() + "/none"}, tokenizer_, 1, 4).status().code(),
            absl::StatusCode::kNotFound);
}

// What a tokenizer says of a text names no file.
TEST_F(CalibrationTest, AFileThatIsNoTextIsNamed) {
  const std::string file = folder_.Write("binary", "012\xff");
  EXPECT_EQ(WindowsFromFiles({file}, tokenizer_, 1, 4).status().message(),
            "--calibration " + file + ": no UTF-8 at byte 3");
}

TEST_F(CalibrationTest, TheModelsWindowsDependOnTheSeedAloneAndNotOnThePool) {
  const auto windows = FromModel(10, 5, 80, 7);
  ASSERT_TRUE(windows.ok()) << windows.status();
  ASSERT_EQ(windows->size(), 5u);
  const std::vector<int32_t> user_turn = *tokenizer_.Encode("user: ", false, true);
  for (size_t i = 0; i < windows->size(); ++i) {
    ASSERT_EQ((*windows)[i].size(), 80u);
    if (i % 2 == 1) {
      EXPECT_TRUE(std::equal(user_turn.begin(), user_turn.end(), (*windows)[i].begin())) << i;
    }
  }
  EXPECT_NE((*windows)[0], (*windows)[2]);
  for (const int num_blocks : {2, 4, 7}) EXPECT_EQ(*FromModel(num_blocks, 5, 80, 7), *windows);
  EXPECT_EQ(*FromModel(10, 5, 80, 7, Ignore, /*seats=*/2), *windows);
  EXPECT_NE(*FromModel(10, 5, 80, 8), *windows);
}

TEST_F(CalibrationTest, AWindowShorterThanTheUsersTurnBeginsAtTheStartToken) {
  const auto windows = FromModel(2, 2, 6, 1);
  ASSERT_TRUE(windows.ok()) << windows.status();
  EXPECT_EQ((*windows)[0][0], (*windows)[1][0]);
  EXPECT_EQ((*windows)[1].size(), 6u);
}

TEST_F(CalibrationTest, APoolBelowOneWindowIsRefusedAndProgressCanEndTheWork) {
  EXPECT_THAT(FromModel(1, 2, 80, 1).status().message(),
              HasSubstr("80 tokens needs 2 cache blocks, the pool has 1"));
  int calls = 0;
  const auto stopped = FromModel(4, 2, 80, 1, [&](double) {
    return ++calls < 3 ? absl::OkStatus() : absl::CancelledError("enough");
  });
  EXPECT_EQ(stopped.status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(calls, 3);
}

}  // namespace
}  // namespace latentd
