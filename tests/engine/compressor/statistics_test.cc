#include "engine/compressor/statistics.h"

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "engine/checkpoint/safetensors_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/checkpoint/limited_disk.h"
#include "tests/engine/checkpoint/temporary_folder.h"
#include "tests/engine/compressor/tested_algebra.h"
#include "tests/testing/decoder_harness.h"
#include "tests/testing/tiny_model.h"

namespace latentd {
namespace {

using ::testing::HasSubstr;
using Gradients = StatisticsOptions::Gradients;

absl::Status Ignore(double) { return absl::OkStatus(); }

// Every number of the statistics, for comparing bits.
std::vector<double> Numbers(const std::vector<LayerStatistics>& layers) {
  std::vector<double> numbers;
  for (const LayerStatistics& layer : layers) {
    for (const PlaneStatistics* plane : {&layer.k, &layer.v}) {
      for (const auto* part : {&plane->second_moment.values, &plane->mean, &plane->fisher.values}) {
        numbers.insert(numbers.end(), part->begin(), part->end());
      }
      numbers.push_back(plane->weight_fisher_sum);
      numbers.push_back(plane->weight_fisher_rms);
    }
  }
  return numbers;
}

// ---- Against PyTorch (make_gradient_goldens.py) ----

class StatisticsGoldenTest : public OpsTest, public ::testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    OpsTest::SetUp();
    if (IsSkipped()) return;
    const std::string folder = GoldenModel(GetParam());
    auto checkpoint = Checkpoint::Open(folder);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    checkpoint_ = *std::move(checkpoint);
    auto golden = SafetensorsFile::Open(folder + "/gradient.safetensors");
    ASSERT_TRUE(golden.ok()) << golden.status();
    golden_ = *std::move(golden);
    const StoredTensor& windows = golden_.tensors.find("windows")->second;
    const auto* ids = reinterpret_cast<const int32_t*>(windows.data.data());
    for (int64_t w = 0; w < windows.shape[0]; ++w) {
      windows_.emplace_back(ids + w * windows.shape[1], ids + (w + 1) * windows.shape[1]);
    }
  }

  std::vector<LayerStatistics> Measure(Gradients gradients) const {
    const auto algebra = NewAlgebra(2);
    const auto measured = MeasureStatistics(
        *checkpoint_, windows_, {.sinks = 3, .gradients = gradients, .seed = 11}, *algebra, Ignore);
    EXPECT_TRUE(measured.ok()) << measured.status();
    return *measured;
  }

  // To 1e-4 of the largest value.
  void ExpectGolden(const std::string& name, const std::vector<double>& values) const {
    const auto at = golden_.tensors.find(name);
    ASSERT_NE(at, golden_.tensors.end()) << name;
    ASSERT_EQ(at->second.data.size(), values.size() * sizeof(float)) << name;
    std::vector<float> golden(values.size());
    std::memcpy(golden.data(), at->second.data.data(), at->second.data.size());
    double largest = 0;
    for (const float value : golden) largest = std::max(largest, std::abs(double{value}));
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_NEAR(values[i], golden[i], 1e-4 * largest) << name << " " << i;
    }
  }

  std::unique_ptr<Checkpoint> checkpoint_;
  SafetensorsFile golden_;
  CalibrationWindows windows_;
};

TEST_P(StatisticsGoldenTest, MomentsAndGradientsAreThoseOfAutograd) {
  const auto none = Measure(Gradients::kNone), sampled = Measure(Gradients::kSampled),
             text = Measure(Gradients::kText);
  for (size_t l = 0; l < none.size(); ++l) {
    for (const bool is_k : {true, false}) {
      const auto plane = [&](const std::vector<LayerStatistics>& layers) -> const PlaneStatistics& {
        return is_k ? layers[l].k : layers[l].v;
      };
      const std::string name = std::to_string(l) + (is_k ? ".k." : ".v.");
      for (const auto* layers : {&none, &sampled, &text}) {
        ExpectGolden(name + "second_moment", plane(*layers).second_moment.values);
        ExpectGolden(name + "mean", plane(*layers).mean);
      }
      ExpectGolden(name + "fisher", plane(sampled).fisher.values);
      ExpectGolden(name + "weight_fisher",
                   {plane(text).weight_fisher_sum, plane(text).weight_fisher_rms});
      EXPECT_TRUE(plane(none).fisher.values.empty());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, StatisticsGoldenTest,
                         ::testing::Values("llama", "llama-rope3", "qwen2", "gpt2", "mistral",
                                           "qwen3", "bloom"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// ---- Laws ----

class StatisticsTest : public OpsTest {
 protected:
  void SetUp() override {
    OpsTest::SetUp();
    if (IsSkipped()) return;
    checkpoint_ = Open({});
    for (int w = 0; w < 5; ++w) {
      std::vector<int32_t> window;
      for (int t = 0; t < 24; ++t) window.push_back((t * 31 + w * 17) % 128);
      windows_.push_back(window);
    }
    options_ = {.sinks = 4, .gradients = Gradients::kSampled, .seed = 3};
  }

  static std::unique_ptr<Checkpoint> Open(const TinyModelOptions& options) {
    auto checkpoint = Checkpoint::Open(WriteTinyModel(options));
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
    return *std::move(checkpoint);
  }

  absl::StatusOr<std::vector<LayerStatistics>> Measure(const Progress& progress = Ignore) const {
    const auto algebra = NewAlgebra(threads_);
    return MeasureStatistics(*checkpoint_, windows_, options_, *algebra, progress);
  }

  // Ends the work at the first progress past `share`.
  absl::Status EndAt(double share) const {
    return Measure([&](double done) {
             return done >= share ? absl::CancelledError("enough") : absl::OkStatus();
           })
        .status();
  }

  std::unique_ptr<Checkpoint> checkpoint_;
  CalibrationWindows windows_;
  StatisticsOptions options_;
  int threads_ = 2;
  const TemporaryFolder folder_;
};

TEST_F(StatisticsTest, BitsDoNotDependOnTheNumberOfThreads) {
  for (const Gradients gradients : {Gradients::kNone, Gradients::kSampled, Gradients::kText}) {
    options_.gradients = gradients;
    threads_ = 1;
    const auto one = Measure();
    threads_ = 3;
    EXPECT_EQ(Numbers(*one), Numbers(*Measure()));
  }
}

TEST_F(StatisticsTest, AnotherSeedDrawsOtherLabels) {
  const auto first = Measure();
  options_.seed = 4;
  const auto other = Measure();
  EXPECT_EQ((*first)[0].k.second_moment.values, (*other)[0].k.second_moment.values);
  EXPECT_NE((*first)[0].k.fisher.values, (*other)[0].k.fisher.values);
}

TEST_F(StatisticsTest, EveryWindowCountsByItsTokens) {
  options_.gradients = Gradients::kNone;
  const CalibrationWindows all = windows_;
  windows_[1].resize(14);  // 10 of 20 tokens past the sinks
  windows_.resize(2);
  const auto both = Measure();
  windows_.resize(1);
  const auto first = Measure();
  windows_ = {all[1]};
  windows_[0].resize(14);
  const auto second = Measure();
  const auto mean = [](const auto& s) { return (*s)[1].v.mean; };
  for (size_t i = 0; i < mean(both).size(); ++i) {
    EXPECT_NEAR(mean(both)[i], (20 * mean(first)[i] + 10 * mean(second)[i]) / 30, 1e-12);
  }
}

TEST_F(StatisticsTest, InterruptedAnywhereTheBitsAreTheSame) {
  for (const Gradients gradients : {Gradients::kNone, Gradients::kSampled, Gradients::kText}) {
    options_.gradients = gradients;
    options_.resume_path.clear();
    const std::vector<double> whole = Numbers(*Measure());
    options_.resume_path = folder_.path() + "/work" + std::to_string(static_cast<int>(gradients));
    // At once, between windows, within a window, between windows and within one again.
    for (const double share : {0.0, 0.2, 0.25, 0.6, 0.61}) {
      EXPECT_TRUE(absl::IsCancelled(EndAt(share))) << share;
    }
    double first = -1;
    const auto rest = Measure([&](double done) {
      if (first < 0) first = done;
      return absl::OkStatus();
    });
    ASSERT_TRUE(rest.ok()) << rest.status();
    EXPECT_EQ(first, 0.6);  // it went on, and not from within a window
    EXPECT_EQ(Numbers(*rest), whole);
    // All windows are done: nothing is computed again.
    const auto again = Measure(
        [](double done) { return done == 1 ? absl::OkStatus() : absl::InternalError("worked"); });
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(Numbers(*again), whole);
  }
}

TEST_F(StatisticsTest, AnEndWithinAWindowKeepsAllThatAreDone) {
  for (const Gradients gradients : {Gradients::kNone, Gradients::kSampled, Gradients::kText}) {
    options_.gradients = gradients;
    options_.resume_path.clear();
    const std::vector<double> whole = Numbers(*Measure());
    options_.resume_path = folder_.path() + "/work";
    for (const double share : {0.05, 0.1, 0.41, 0.45, 0.5, 0.55, 0.59}) {  // of five windows
      EXPECT_TRUE(absl::IsCancelled(EndAt(share))) << share;
      EXPECT_EQ(std::filesystem::exists(options_.resume_path), share > 0.2) << share;
      double first = -1;
      const auto rest = Measure([&](double done) {
        if (first < 0) first = done;
        return absl::OkStatus();
      });
      ASSERT_TRUE(rest.ok()) << rest.status();
      EXPECT_EQ(first >= 0.4, share > 0.2) << share;
      EXPECT_EQ(Numbers(*rest), whole) << share;
      std::filesystem::remove(options_.resume_path);
    }
  }
}

TEST_F(StatisticsTest, WorkOfAnotherRunIsRefusedWithWhatDiffers) {
  options_.resume_path = folder_.path() + "/work";
  ASSERT_TRUE(absl::IsCancelled(EndAt(0.4)));
  const auto refused = [&](const char* what) {
    const absl::Status status = Measure().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(status.message(), HasSubstr(options_.resume_path + " holds the work of another"));
    EXPECT_THAT(status.message(), HasSubstr(what));
  };
  const StatisticsOptions options = options_;
  options_.sinks = 5;
  refused("its sinks are 4, now 5");
  options_ = options;
  options_.seed = 8;
  refused("its seed is 3, now 8");
  options_ = options;
  options_.gradients = Gradients::kText;
  refused("its gradients are of drawn labels, now of the text");
  options_ = options;
  windows_[4][20] += 1;
  refused("calibration text");
  windows_[4][20] -= 1;
  windows_.push_back(windows_[0]);
  refused("its calibration windows are 5, now 6");
  windows_.pop_back();
  checkpoint_ = Open({.seed = 2});
  refused("model");
  checkpoint_ = Open({});
  threads_ = 1;
  EXPECT_TRUE(Measure().ok());
}

TEST_F(StatisticsTest, DamagedWorkIsRefused) {
  options_.resume_path = folder_.path() + "/work";
  ASSERT_TRUE(absl::IsCancelled(EndAt(0.4)));
  std::ifstream file(options_.resume_path, std::ios::binary);
  const std::string good{std::istreambuf_iterator<char>(file), {}};
  const auto refuses = [&](std::string bytes) {
    folder_.Write("work", bytes);
    EXPECT_THAT(std::string(Measure().status().message()), HasSubstr("damaged"));
  };
  refuses("");
  refuses("x" + good);
  refuses(good + "x");
  refuses(good.substr(0, good.size() - 1));
  std::string flipped = good;
  flipped[good.size() / 2] ^= 1;
  refuses(flipped);
  for (const size_t byte : {80, 88, 96}) {  // of the numbers of windows, of layers and of tokens
    flipped = good;
    flipped[byte] ^= 1;
    refuses(flipped);
  }
}

TEST_F(StatisticsTest, AFullDiskIsAnErrorAndLeavesTheOlderWork) {
  options_.resume_path = folder_.path() + "/work";
  ASSERT_TRUE(absl::IsCancelled(EndAt(0.4)));
  {
    const LimitedDisk disk(4000);
    EXPECT_THAT(std::string(Measure().status().message()),
                HasSubstr("cannot write " + options_.resume_path));
  }
  EXPECT_TRUE(Measure().ok());
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_.path()), {}), 1);
}

TEST_F(StatisticsTest, WindowsThatDoNotFitTheModelAreRefusedWithBothNumbers) {
  windows_[2].resize(4);
  EXPECT_THAT(std::string(Measure().status().message()), HasSubstr("has 4 tokens, allowed: 5"));
  windows_[2].resize(300, 1);
  EXPECT_THAT(std::string(Measure().status().message()), HasSubstr("300 tokens"));
  windows_[2].assign(20, 128);
  EXPECT_THAT(std::string(Measure().status().message()),
              HasSubstr("has token 128, the model has 128"));
  windows_.clear();
  EXPECT_TRUE(absl::IsInvalidArgument(Measure().status()));
}

}  // namespace
}  // namespace latentd
