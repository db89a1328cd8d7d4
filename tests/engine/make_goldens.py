#!/usr/bin/env python3
"""Makes tests/engine/golden: tiny seeded models of each family, and what Hugging Face transformers computes with them.

    python3 -m venv build/goldens && build/goldens/bin/pip install torch transformers safetensors gguf
    build/goldens/bin/python tests/engine/make_goldens.py [NAME...]      all, or some of the models alone

Each folder is a Hugging Face model (config.json as published models write it, safetensors) with golden.json beside it:
{"made_by", "seed", "cases": [{"prompt_ids", "greedy_ids", "logits", "all_logits"}]}. `greedy_ids` are the 24 tokens after
the prompt (an end token does not end them), `logits` [vocab] those of the last prompt position, `all_logits`
[prompt, vocab] of every one (short prompts only). llama-gguf holds model.gguf instead: Q8_0 weights, q and k rows in
llama.cpp's order, RoPE scaling as a tensor of factors; its golden is computed with the weights that Q8_0 stands for.
qwen3-gguf and bloom-gguf hold F16 weights under the names that the gguf package maps Hugging Face's to; their goldens are computed
by transformers from the same file.

factors.safetensors makes a compressed model of a folder's: layers.N.{k,v}_{down,up} in 32 bits, down [groups * dims, hidden] and up
[kv_dim, dims], where a group is some KV heads that follow each other. compressed.json holds the cases of the model whose K and V
projections are the products up down of each group, with their biases as they were.
"""

import copy
import json
import pathlib
import shutil
import sys

import gguf
import numpy
import safetensors.torch
import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

ROOT = pathlib.Path(__file__).parent / "golden"
MADE_BY = f"transformers {transformers.__version__}, torch {torch.__version__.split('+')[0]}, float32"
NEW_TOKENS = 24
SHORT_PROMPT, LONG_PROMPT = 12, 90  # within one page of the cache, and across two
LEAST_MARGIN = 0.02  # between the two best logits of every greedy step: rounding never decides a golden

LLAMA = dict(
    architectures=["LlamaForCausalLM"], model_type="llama", vocab_size=128, hidden_size=32, intermediate_size=64,
    num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16, max_position_embeddings=256,
    rms_norm_eps=1e-5, rope_theta=10000.0, hidden_act="silu", tie_word_embeddings=False, attention_bias=False,
    bos_token_id=1, eos_token_id=2)
LLAMA3 = dict(LLAMA, rope_theta=500000.0, eos_token_id=[2, 3], rope_scaling=dict(
    rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32))
QWEN2 = dict(
    architectures=["Qwen2ForCausalLM"], model_type="qwen2", vocab_size=96, hidden_size=64, intermediate_size=16,
    num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256, rms_norm_eps=1e-6,
    rope_theta=1000000.0, hidden_act="silu", tie_word_embeddings=True, use_sliding_window=False, bos_token_id=1,
    eos_token_id=2)
GPT2 = dict(
    architectures=["GPT2LMHeadModel"], model_type="gpt2", vocab_size=128, n_embd=32, n_layer=2, n_head=2, n_positions=128,
    n_ctx=128, layer_norm_epsilon=1e-5, activation_function="gelu_new", bos_token_id=1, eos_token_id=2)
MISTRAL = dict(LLAMA, architectures=["MistralForCausalLM"], model_type="mistral", sliding_window=20)
del MISTRAL["attention_bias"]
QWEN3 = dict(
    architectures=["Qwen3ForCausalLM"], model_type="qwen3", vocab_size=96, hidden_size=32, intermediate_size=64,
    num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16, max_position_embeddings=256,
    rms_norm_eps=1e-6, rope_theta=1000000.0, hidden_act="silu", tie_word_embeddings=True, attention_bias=False,
    use_sliding_window=False, sliding_window=None, max_window_layers=2, bos_token_id=1, eos_token_id=2)
BLOOM = dict(
    architectures=["BloomForCausalLM"], model_type="bloom", vocab_size=96, n_embed=48, n_layer=2, num_attention_heads=6,
    layer_norm_epsilon=1e-5, apply_residual_connection_post_layernorm=False, n_inner=None, offset_alibi=100, seq_length=256,
    bos_token_id=1, eos_token_id=2)

# name: config, type of the stored weights, number of files
MODELS = {
    "llama": (LLAMA, torch.float32, 1),
    "llama-rope3": (LLAMA3, torch.float32, 1),
    "llama-f16": (LLAMA, torch.float16, 1),
    "llama-bf16-sharded": (LLAMA, torch.bfloat16, 2),
    "qwen2": (QWEN2, torch.float32, 1),
    "gpt2": (GPT2, torch.float32, 1),
    "mistral": (MISTRAL, torch.float32, 1),
    "qwen3": (QWEN3, torch.float32, 1),
    "bloom": (BLOOM, torch.float32, 1),
}

# name: KV heads that share a latent, dims of the latent
COMPRESSED = {"llama": (2, 16), "qwen2": (2, 16), "gpt2": (2, 16), "mistral": (2, 16), "qwen3": (2, 16), "bloom": (3, 16)}


def hf_config(stated):
    """transformers' own config object; a copy, since it writes into the nested dictionaries that it is given."""
    return transformers.AutoConfig.for_model(**copy.deepcopy({k: v for k, v in stated.items() if k != "architectures"}))


def seeded_weights(model, seed):
    """Weights large enough that every part of the model moves the logits: biases and norms are not left at 0 and 1."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
    for name, value in sorted(model.state_dict().items()):
        if name in tied:
            continue
        noise = torch.randn(value.shape, generator=generator)
        if "norm" in name or ".ln_" in name:
            # A smaller embedding, so that the layers have a say: tied, it would repeat every token.
            share = 0.3 if "embeddings_layernorm" in name else 1.0
            weights[name] = share * ((1.0 if name.endswith("weight") else 0.0) + 0.2 * noise)
        elif name.endswith("bias"):
            weights[name] = 0.3 * noise
        elif "wte" in name or "embed" in name or "wpe" in name:
            weights[name] = 0.5 * noise
        else:
            weights[name] = 1.6 * noise / value.shape[-1] ** 0.5
    return weights


def save(folder, config, weights, dtype, files):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(dict(config, torch_dtype=str(dtype)[6:]), indent=1) + "\n")
    (folder / "generation_config.json").write_text(
        json.dumps(dict(bos_token_id=1, eos_token_id=config["eos_token_id"], temperature=0.6, top_p=0.9), indent=1) + "\n")
    stored = {name: value.to(dtype).contiguous() for name, value in weights.items()}
    if files == 1:
        safetensors.torch.save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
        return
    names = sorted(stored)
    weight_map = {}
    for i in range(files):
        file = f"model-{i + 1:05d}-of-{files:05d}.safetensors"
        part = names[i::files]
        safetensors.torch.save_file({n: stored[n] for n in part}, folder / file, metadata={"format": "pt"})
        weight_map.update({n: file for n in part})
    total = sum(t.numel() * t.element_size() for t in stored.values())
    (folder / "model.safetensors.index.json").write_text(
        json.dumps(dict(metadata=dict(total_size=total), weight_map=weight_map), indent=1) + "\n")


def rounded(values):
    return [float(f"{v:.7g}") for v in values.tolist()]


@torch.no_grad()
def case(model, prompt, with_all):
    """The golden of one prompt, and the smallest margin between the two best logits of its greedy steps."""
    ids, margin = list(prompt), float("inf")
    for _ in range(NEW_TOKENS):
        last = model(torch.tensor([ids]), use_cache=False).logits[0, -1]
        best = last.topk(2).values
        margin = min(margin, float(best[0] - best[1]))
        ids.append(int(last.argmax()))
    logits = model(torch.tensor([prompt]), use_cache=False).logits[0]
    golden = dict(prompt_ids=list(prompt), greedy_ids=ids[len(prompt):], logits=rounded(logits[-1]))
    if with_all:
        golden["all_logits"] = [rounded(row) for row in logits]
    return golden, margin


def make(name, config, dtype, files):
    folder = ROOT / name

    def build(seed):
        save(folder, config, seeded_weights(empty_model(config), seed), dtype, files)
        return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")

    write_golden(folder / "golden.json", config["vocab_size"], build)


def empty_model(config):
    return transformers.AutoModelForCausalLM.from_config(hf_config(config), attn_implementation="eager")


def write_golden(path, vocab_size, build):
    """Writes the golden of build(seed), with the first seed whose greedy steps are clear and varied."""
    for seed in range(1, 1000):
        model = build(seed).eval()
        generator = torch.Generator().manual_seed(seed)
        prompts = [[1] + torch.randint(4, vocab_size, (n - 1,), generator=generator).tolist()
                   for n in (SHORT_PROMPT, LONG_PROMPT)]
        results = [case(model, p, with_all=len(p) == SHORT_PROMPT) for p in prompts]
        margin = min(m for _, m in results)
        varied = all(len(set(g["greedy_ids"])) >= 6 for g, _ in results)
        if margin > LEAST_MARGIN and varied:
            break
    else:
        raise SystemExit(f"{path}: no seed below 1000 has margins above {LEAST_MARGIN}")
    cases = ",\n".join(json.dumps(g) for g, _ in results)
    path.write_text(f'{{"made_by": "{MADE_BY}", "seed": {seed}, "cases": [\n{cases}\n]}}\n')
    print(f"{path.parent.name}/{path.name}: seed {seed}, smallest margin {margin:.4f}, "
          f"{sum(f.stat().st_size for f in path.parent.iterdir()) // 1024} KiB")


def key_value_rows(model, layer):
    """Views of the K and V projections [kv_heads, head_dim, hidden] of a layer: what is written to them changes the model."""
    config = model.config
    if config.model_type == "gpt2":
        fused = model.transformer.h[layer].attn.c_attn.weight.data.T
        return fused.view(3, config.n_head, -1, config.n_embd)[1:]
    if config.model_type == "bloom":
        fused = model.transformer.h[layer].self_attention.query_key_value.weight.data
        return fused.view(config.n_head, 3, -1, config.hidden_size).transpose(0, 1)[1:]
    attention = model.model.layers[layer].self_attn
    return [p.weight.data.view(config.num_key_value_heads, -1, config.hidden_size) for p in (attention.k_proj, attention.v_proj)]


def compress(model, heads_per_group, dims):
    """Cuts the K and V projections of the model to their best `dims` dims per group of heads; returns the factors."""
    factors = {}
    for layer in range(model.config.num_hidden_layers):
        for plane, weight in zip("kv", key_value_rows(model, layer)):
            downs, ups = [], []
            for rows in weight.split(heads_per_group):  # views into the model
                u, s, vt = torch.linalg.svd(rows.flatten(0, 1), full_matrices=False)
                root = s[:dims].sqrt()
                ups.append(u[:, :dims] * root)
                downs.append(root[:, None] * vt[:dims])
                rows.copy_((ups[-1] @ downs[-1]).view(rows.shape))
            factors[f"layers.{layer}.{plane}_down"] = torch.cat(downs)
            factors[f"layers.{layer}.{plane}_up"] = torch.cat(ups)
    return factors


def make_compressed(name, heads_per_group, dims):
    folder = ROOT / name
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    factors = compress(model, heads_per_group, dims)
    safetensors.torch.save_file({k: v.contiguous() for k, v in factors.items()}, folder / "factors.safetensors")
    write_golden(folder / "compressed.json", model.config.vocab_size, lambda seed: model)


GGUF_NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down"}


def gguf_name(name):
    base = name.removesuffix(".weight")
    if not base.startswith("model.layers."):
        return GGUF_NAMES[base] + ".weight"
    layer, rest = base.removeprefix("model.layers.").split(".", 1)
    return f"blk.{layer}.{GGUF_NAMES[rest]}.weight"


def interleaved(weight, heads):
    """The rows of q or k as llama.cpp wants them: the two halves of each head that RoPE pairs, alternating."""
    return weight.reshape(heads, 2, -1, weight.shape[-1]).swapaxes(1, 2).reshape(weight.shape)


def save_gguf(path, config, weights, rope_factors):
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("llama")
    pieces = ["<unk>", "<s>", "</s>"] + [chr(0x21 + i) if i < 94 else f"\u2581{chr(0x40 + i - 94)}"
                                          for i in range(config["vocab_size"] - 3)]
    writer.add_token_list(pieces)
    writer.add_token_scores([-float(i) for i in range(len(pieces))])
    writer.add_token_types([2, 3, 3] + [1] * (len(pieces) - 3))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_tensor("rope_freqs.weight", rope_factors)
    for name, value in weights.items():
        data = value.numpy().astype(numpy.float32)
        if "q_proj" in name:
            data = interleaved(data, config["num_attention_heads"])
        if "k_proj" in name:
            data = interleaved(data, config["num_key_value_heads"])
        if data.ndim == 1:
            writer.add_tensor(gguf_name(name), data)
        else:
            quantised = gguf.quants.quantize(data, gguf.GGMLQuantizationType.Q8_0)
            writer.add_tensor(gguf_name(name), quantised, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def make_gguf(name, config):
    folder = ROOT / name

    def build(seed):
        model = empty_model(config)
        weights = seeded_weights(model, seed)
        for key, value in weights.items():
            if value.ndim == 2:  # rows of whole Q8_0 blocks, so that their order does not matter
                stored = gguf.quants.quantize(value.numpy(), gguf.GGMLQuantizationType.Q8_0)
                weights[key] = torch.from_numpy(gguf.quants.dequantize(stored, gguf.GGMLQuantizationType.Q8_0))
        plain = 1.0 / config["rope_theta"] ** (numpy.arange(0, config["head_dim"], 2) / config["head_dim"])
        scaled, _ = ROPE_INIT_FUNCTIONS[config["rope_scaling"]["rope_type"]](model.config, "cpu")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        save_gguf(folder / "model.gguf", config, weights, (plain / scaled.numpy()).astype(numpy.float32))
        model.load_state_dict(weights)
        return model

    write_golden(folder / "golden.json", config["vocab_size"], build)


def save_f16_gguf(path, arch, config, weights):
    """As convert_hf_to_gguf writes them: names from the gguf package, matrices in F16, vectors in F32."""
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[arch])
    writer.add_vocab_size(config.vocab_size)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    if arch == gguf.MODEL_ARCH.BLOOM:
        writer.add_context_length(256)
        writer.add_feed_forward_length(4 * config.hidden_size)
        writer.add_head_count_kv(config.num_attention_heads)
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
    else:
        writer.add_context_length(config.max_position_embeddings)
        writer.add_feed_forward_length(config.intermediate_size)
        writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
        writer.add_rope_freq_base(1000000.0)
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    for name, value in weights.items():
        data = value.numpy().astype(numpy.float16 if value.ndim == 2 else numpy.float32)
        if "query_key_value" in name:  # from [heads, q k v, ...] to q | k | v
            shape = data.shape
            data = data.reshape(config.num_attention_heads, 3, -1, *shape[1:]).swapaxes(0, 1).reshape(shape)
        writer.add_tensor(names.get_name(name.removeprefix("transformer."), try_suffixes=(".weight", ".bias")),
                          numpy.ascontiguousarray(data))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def make_f16_gguf(name, arch, config):
    folder = ROOT / name

    def build(seed):
        model = empty_model(config)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        save_f16_gguf(folder / "model.gguf", arch, model.config, seeded_weights(model, seed))
        return transformers.AutoModelForCausalLM.from_pretrained(
            folder, config=hf_config(config), gguf_file="model.gguf", dtype=torch.float32, attn_implementation="eager")

    write_golden(folder / "golden.json", config["vocab_size"], build)


if __name__ == "__main__":
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    jobs = {name: [lambda name=name, rest=rest: make(name, *rest)] for name, rest in MODELS.items()}
    for model_name, groups in COMPRESSED.items():
        jobs[model_name].append(lambda name=model_name, groups=groups: make_compressed(name, *groups))
    jobs["llama-gguf"] = [lambda: make_gguf("llama-gguf", LLAMA3)]
    jobs["qwen3-gguf"] = [lambda: make_f16_gguf("qwen3-gguf", gguf.MODEL_ARCH.QWEN3, QWEN3)]
    jobs["bloom-gguf"] = [lambda: make_f16_gguf("bloom-gguf", gguf.MODEL_ARCH.BLOOM, BLOOM)]
    for model_name in sys.argv[1:] or jobs:
        for job in jobs[model_name]:
            job()
