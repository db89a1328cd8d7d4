#include "engine/checkpoint/weight_binder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

namespace latentd {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Tensors of any shape whose rows (of the first axis) all bytes tell apart.
class Tensors {
 public:
  void Add(const std::string& name, std::vector<int64_t> shape, DType dtype = DType::kF32) {
    const int64_t rows = shape.size() == 1 ? 1 : shape[0];
    auto& bytes = *storage_.emplace_back(
        std::make_unique<std::vector<std::byte>>(rows * RowBytes(dtype, shape.back())));
    if (dtype == DType::kF32) {
      for (size_t i = 0; i < bytes.size() / 4; ++i) {
        const float value = static_cast<float>(i);
        std::memcpy(&bytes[i * 4], &value, 4);
      }
    } else {
      for (size_t i = 0; i < bytes.size(); ++i) {
        bytes[i] = static_cast<std::byte>(i / RowBytes(dtype, shape.back()) + i);
      }
    }
    stored[name] = {
        .type = Info(dtype).name, .dtype = dtype, .shape = std::move(shape), .data = bytes};
  }
  StoredTensors stored;

 private:
  std::vector<std::unique_ptr<std::vector<std::byte>>> storage_;
};

const Family& FamilyNamed(std::string_view name) { return **FindGgufFamily(name); }

const ModelConfig kLlama = {.family = "llama",
                            .vocab_size = 5,
                            .num_layers = 1,
                            .hidden_dim = 32,
                            .mlp_dim = 64,
                            .num_heads = 4,
                            .num_kv_heads = 2,
                            .head_dim = 8,
                            .max_context = 16,
                            .tied_embeddings = true};

// A GGUF llama whose attention has the given type.
Tensors GgufLlama(DType attention = DType::kF32) {
  Tensors tensors;
  tensors.Add("token_embd.weight", {5, 32});
  tensors.Add("output_norm.weight", {32});
  tensors.Add("blk.0.attn_norm.weight", {32});
  tensors.Add("blk.0.attn_q.weight", {32, 32}, attention);
  tensors.Add("blk.0.attn_k.weight", {16, 32}, attention);
  tensors.Add("blk.0.attn_v.weight", {16, 32}, attention);
  tensors.Add("blk.0.attn_output.weight", {32, 32});
  tensors.Add("blk.0.ffn_norm.weight", {32});
  tensors.Add("blk.0.ffn_gate.weight", {64, 32});
  tensors.Add("blk.0.ffn_up.weight", {64, 32});
  tensors.Add("blk.0.ffn_down.weight", {32, 64});
  return tensors;
}

// Row of a GGUF file where the half-split row `row` of a head of 8 dims is found: pairs (x[2j],
// x[2j + 1]).
int64_t InterleavedRow(int64_t row) {
  const int64_t head = row / 8, dim = row % 8;
  return head * 8 + (dim < 4 ? 2 * dim : 2 * (dim - 4) + 1);
}

TEST(WeightBinderTest, PutsWholeQuantisedRowsIntoHalfSplitOrder) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kQ8_0, DType::kQ4_1}) {
    const Tensors tensors = GgufLlama(dtype);
    const auto bound =
        BindWeights(FamilyNamed("llama"), kLlama, TensorFormat::kGguf, tensors.stored);
    ASSERT_TRUE(bound.ok()) << bound.status();
    for (const char* part : {"q", "k"}) {
      const TensorView& view = bound->views.at(std::string("layers.0.") + part + ".weight");
      const std::byte* file =
          tensors.stored.at(std::string("blk.0.attn_") + part + ".weight").data.data();
      for (int64_t r = 0; r < view.rows; ++r) {
        EXPECT_EQ(std::memcmp(view.row(r), file + InterleavedRow(r) * RowBytes(dtype, 32),
                              RowBytes(dtype, 32)),
                  0)
            << part << " row " << r;
      }
    }
    // v has no positions: it stays where it is.
    EXPECT_EQ(bound->views.at("layers.0.v.weight").data,
              tensors.stored.at("blk.0.attn_v.weight").data.data());
  }
}

TEST(WeightBinderTest, LeavesQwen2sRowsAsTheyAre) {
  Tensors tensors = GgufLlama();
  for (const char* part : {"q", "k", "v"}) {
    tensors.Add(std::string("blk.0.attn_") + part + ".bias", {*part == 'q' ? 32 : 16});
  }
  const auto bound = BindWeights(FamilyNamed("qwen2"), kLlama, TensorFormat::kGguf, tensors.stored);
  ASSERT_TRUE(bound.ok()) << bound.status();
  EXPECT_EQ(bound->views.at("layers.0.q.weight").data,
            tensors.stored.at("blk.0.attn_q.weight").data.data());
  tensors.stored.erase("blk.0.attn_k.bias");
  EXPECT_THAT(
      std::string(BindWeights(FamilyNamed("qwen2"), kLlama, TensorFormat::kGguf, tensors.stored)
                      .status()
                      .message()),
      HasSubstr("blk.0.attn_k.bias"));
}

TEST(WeightBinderTest, ReordersBiasesOfLlama) {
  Tensors tensors = GgufLlama();
  tensors.Add("blk.0.attn_k.bias", {16});
  const auto bound = BindWeights(FamilyNamed("llama"), kLlama, TensorFormat::kGguf, tensors.stored);
  ASSERT_TRUE(bound.ok()) << bound.status();
  const TensorView& bias = bound->views.at("layers.0.k.bias");
  EXPECT_EQ(bias.rows, 1);
  EXPECT_EQ(bias.cols, 16);
  for (int64_t i = 0; i < 16; ++i) {
    EXPECT_EQ(reinterpret_cast<const float*>(bias.data)[i], InterleavedRow(i));
  }
}

Tensors HfGpt2(const std::string& prefix) {
  Tensors tensors;
  tensors.Add(prefix + "wte.weight", {5, 4});
  tensors.Add(prefix + "wpe.weight", {6, 4});
  for (const char* norm : {"ln_f", "h.0.ln_1", "h.0.ln_2"}) {
    tensors.Add(prefix + norm + ".weight", {4});
    tensors.Add(prefix + norm + ".bias", {4});
  }
  tensors.Add(prefix + "h.0.attn.c_attn.weight", {4, 12});
  tensors.Add(prefix + "h.0.attn.c_attn.bias", {12});
  tensors.Add(prefix + "h.0.attn.c_proj.weight", {4, 4});
  tensors.Add(prefix + "h.0.attn.c_proj.bias", {4});
  tensors.Add(prefix + "h.0.mlp.c_fc.weight", {4, 16});
  tensors.Add(prefix + "h.0.mlp.c_fc.bias", {16});
  tensors.Add(prefix + "h.0.mlp.c_proj.weight", {16, 4});
  tensors.Add(prefix + "h.0.mlp.c_proj.bias", {4});
  return tensors;
}

const ModelConfig kGpt2 = {.family = "gpt2",
                           .vocab_size = 5,
                           .num_layers = 1,
                           .hidden_dim = 4,
                           .mlp_dim = 16,
                           .num_heads = 2,
                           .num_kv_heads = 2,
                           .head_dim = 2,
                           .max_context = 6,
                           .tied_embeddings = true};

TEST(WeightBinderTest, TransposesAndSplitsGpt2) {
  for (const char* prefix : {"transformer.", ""}) {
    const Tensors tensors = HfGpt2(prefix);
    const auto bound =
        BindWeights(FamilyNamed("gpt2"), kGpt2, TensorFormat::kHuggingFace, tensors.stored);
    ASSERT_TRUE(bound.ok()) << bound.status();
    const char* parts[] = {"q", "k", "v"};
    for (int part = 0; part < 3; ++part) {
      const TensorView& weight =
          bound->views.at(std::string("layers.0.") + parts[part] + ".weight");
      const TensorView& bias = bound->views.at(std::string("layers.0.") + parts[part] + ".bias");
      ASSERT_EQ(weight.rows, 4);
      ASSERT_EQ(weight.cols, 4);
      for (int64_t r = 0; r < 4; ++r) {
        for (int64_t c = 0; c < 4; ++c) {
          // c_attn[c][4 * part + r], whose value is its index.
          EXPECT_EQ(reinterpret_cast<const float*>(weight.row(r))[c], c * 12 + part * 4 + r);
        }
        EXPECT_EQ(reinterpret_cast<const float*>(bias.data)[r], part * 4 + r);
      }
    }
    const TensorView& up = bound->views.at("layers.0.up.weight");
    EXPECT_EQ(up.rows, 16);
    EXPECT_EQ(reinterpret_cast<const float*>(up.row(7))[3], 3 * 16 + 7);
  }
}

TEST(WeightBinderTest, SplitsGgufGpt2InPlace) {
  Tensors tensors;
  tensors.Add("token_embd.weight", {5, 4});
  tensors.Add("position_embd.weight", {6, 4});
  for (const char* norm : {"output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"}) {
    tensors.Add(std::string(norm) + ".weight", {4});
    tensors.Add(std::string(norm) + ".bias", {4});
  }
  tensors.Add("blk.0.attn_qkv.weight", {12, 4});
  tensors.Add("blk.0.attn_qkv.bias", {12});
  tensors.Add("blk.0.attn_output.weight", {4, 4});
  tensors.Add("blk.0.attn_output.bias", {4});
  tensors.Add("blk.0.ffn_up.weight", {16, 4});
  tensors.Add("blk.0.ffn_up.bias", {16});
  tensors.Add("blk.0.ffn_down.weight", {4, 16});
  tensors.Add("blk.0.ffn_down.bias", {4});
  const auto bound = BindWeights(FamilyNamed("gpt2"), kGpt2, TensorFormat::kGguf, tensors.stored);
  ASSERT_TRUE(bound.ok()) << bound.status();
  EXPECT_TRUE(bound->owned.empty());
  const TensorView& v = bound->views.at("layers.0.v.weight");
  EXPECT_EQ(v.rows, 4);
  EXPECT_EQ(reinterpret_cast<const float*>(v.data)[0], 8 * 4);
}

// Two heads of two dims: rows are [head][q, k, v][dim] in Hugging Face files, q | k | v in GGUF.
TEST(WeightBinderTest, TakesBloomsHeadsApart) {
  Tensors hf, gguf;
  hf.Add("word_embeddings.weight", {5, 4});
  gguf.Add("token_embd.weight", {5, 4});
  const std::pair<const char*, const char*> norms[] = {
      {"word_embeddings_layernorm", "token_embd_norm"},
      {"ln_f", "output_norm"},
      {"h.0.input_layernorm", "blk.0.attn_norm"},
      {"h.0.post_attention_layernorm", "blk.0.ffn_norm"}};
  for (const auto& [hf_name, gguf_name] : norms) {
    for (const char* part : {".weight", ".bias"}) {
      hf.Add(std::string(hf_name) + part, {4});
      gguf.Add(std::string(gguf_name) + part, {4});
    }
  }
  const struct {
    const char *hf, *gguf;
    int64_t rows, cols;
  } linears[] = {{"h.0.self_attention.query_key_value", "blk.0.attn_qkv", 12, 4},
                 {"h.0.self_attention.dense", "blk.0.attn_output", 4, 4},
                 {"h.0.mlp.dense_h_to_4h", "blk.0.ffn_up", 16, 4},
                 {"h.0.mlp.dense_4h_to_h", "blk.0.ffn_down", 4, 16}};
  for (const auto& linear : linears) {
    hf.Add(std::string("transformer.") + linear.hf + ".weight", {linear.rows, linear.cols});
    hf.Add(std::string("transformer.") + linear.hf + ".bias", {linear.rows});
    gguf.Add(std::string(linear.gguf) + ".weight", {linear.rows, linear.cols});
    gguf.Add(std::string(linear.gguf) + ".bias", {linear.rows});
  }
  const auto of_hf =
      BindWeights(FamilyNamed("bloom"), kGpt2, TensorFormat::kHuggingFace, hf.stored);
  ASSERT_TRUE(of_hf.ok()) << of_hf.status();
  const auto of_gguf = BindWeights(FamilyNamed("bloom"), kGpt2, TensorFormat::kGguf, gguf.stored);
  ASSERT_TRUE(of_gguf.ok()) << of_gguf.status();
  EXPECT_TRUE(of_gguf->owned.empty());
  const char* parts[] = {"q", "k", "v"};
  for (int part = 0; part < 3; ++part) {
    const std::string name = std::string("layers.0.") + parts[part];
    for (int64_t r = 0; r < 4; ++r) {
      const int64_t hf_row = r / 2 * 6 + part * 2 + r % 2, gguf_row = part * 4 + r;
      const auto first = [&](const BoundWeights& bound) {
        return *reinterpret_cast<const float*>(bound.views.at(name + ".weight").row(r));
      };
      const auto bias = [&](const BoundWeights& bound) {
        return reinterpret_cast<const float*>(bound.views.at(name + ".bias").data)[r];
      };
      EXPECT_EQ(first(*of_hf), 4 * hf_row);
      EXPECT_EQ(bias(*of_hf), hf_row);
      EXPECT_EQ(first(*of_gguf), 4 * gguf_row);
      EXPECT_EQ(bias(*of_gguf), gguf_row);
    }
  }
}

TEST(WeightBinderTest, NamesTheTensorAndBothShapes) {
  Tensors tensors = GgufLlama();
  tensors.Add("blk.0.attn_k.weight", {24, 32});
  EXPECT_THAT(
      std::string(BindWeights(FamilyNamed("llama"), kLlama, TensorFormat::kGguf, tensors.stored)
                      .status()
                      .message()),
      AllOf(HasSubstr("blk.0.attn_k.weight"), HasSubstr("[24, 32]"), HasSubstr("[16, 32]")));
}

TEST(WeightBinderTest, RefusesAnOptionalTensorOfSomeLayersAlone) {
  Tensors tensors = GgufLlama();
  for (auto& [name, tensor] : StoredTensors(tensors.stored)) {
    if (name.starts_with("blk.0.")) tensors.stored["blk.1." + name.substr(6)] = tensor;
  }
  ModelConfig config = kLlama;
  config.num_layers = 2;
  ASSERT_TRUE(BindWeights(FamilyNamed("llama"), config, TensorFormat::kGguf, tensors.stored).ok());
  for (const char* layer : {"0", "1"}) {
    Tensors some = GgufLlama();
    some.Add(std::string("blk.") + layer + ".attn_q.bias", {32});
    StoredTensors stored = tensors.stored;
    stored.insert(*some.stored.find(std::string("blk.") + layer + ".attn_q.bias"));
    EXPECT_THAT(
        std::string(BindWeights(FamilyNamed("llama"), config, TensorFormat::kGguf, stored)
                        .status()
                        .message()),
        HasSubstr(std::string("blk.") + (*layer == '0' ? "1" : "0") + ".attn_q.bias is missing"));
  }
}

TEST(WeightBinderTest, RefusesTypesThatWeightsCannotHave) {
  Tensors tensors = GgufLlama();
  tensors.stored["blk.0.attn_k.weight"].dtype = std::nullopt;
  tensors.stored["blk.0.attn_k.weight"].type = "I8";
  EXPECT_THAT(
      std::string(BindWeights(FamilyNamed("llama"), kLlama, TensorFormat::kGguf, tensors.stored)
                      .status()
                      .message()),
      AllOf(HasSubstr("blk.0.attn_k.weight"), HasSubstr("I8")));
  tensors = GgufLlama();
  tensors.Add("output_norm.weight", {32}, DType::kQ8_0);
  EXPECT_THAT(
      std::string(BindWeights(FamilyNamed("llama"), kLlama, TensorFormat::kGguf, tensors.stored)
                      .status()
                      .message()),
      HasSubstr("output_norm.weight"));
}

TEST(WeightBinderTest, CopiesATensorThatIsNotAligned) {
  Tensors tensors = GgufLlama();
  StoredTensor& norm = tensors.stored["output_norm.weight"];
  std::vector<std::byte> shifted(1 + 32 * sizeof(float));
  for (size_t i = 0; i < 32 * sizeof(float); ++i) shifted[i + 1] = norm.data[i];
  norm.data = absl::MakeConstSpan(shifted).subspan(1);
  const auto bound = BindWeights(FamilyNamed("llama"), kLlama, TensorFormat::kGguf, tensors.stored);
  ASSERT_TRUE(bound.ok()) << bound.status();
  const TensorView& view = bound->views.at("final_norm.weight");
  EXPECT_EQ(reinterpret_cast<uintptr_t>(view.data) % 4, 0u);
  EXPECT_EQ(reinterpret_cast<const float*>(view.data)[31], 31.0f);
}

}  // namespace
}  // namespace latentd
