"""A Llama or Qwen2 decoder in fp32 whose attention reads what a rival's cache would hold."""

import json
import pathlib

import torch
import torch.nn.functional as F


class Decoder:
    """Weights of one model, fp32. `layers`, `heads`, `kv_heads`, `head_dim`, `vocab`; biases are
    None where absent."""

    def __init__(self, config, weights, device):
        self.layers = config["num_hidden_layers"]
        self.heads = config["num_attention_heads"]
        self.kv_heads = config["num_key_value_heads"]
        self.head_dim = config.get("head_dim") or config["hidden_size"] // self.heads
        self.epsilon = config["rms_norm_eps"]
        self.theta = config["rope_theta"]
        self.device = device
        self.weights = {name: tensor.to(device, torch.float32) for name, tensor in weights.items()}
        self.weights.setdefault("lm_head.weight", self.weights["model.embed_tokens.weight"])
        self.vocab = len(self.weights["lm_head.weight"])

    def bias(self, layer, which):
        """The bias of `which` ("k" or "v") of a layer, [kv_heads * head_dim]; zeros where the model
        has none."""
        bias = self.weights.get(f"model.layers.{layer}.self_attn.{which}_proj.bias")
        return (
            torch.zeros(self.kv_heads * self.head_dim, device=self.device) if bias is None else bias
        )

    @property
    def has_bias(self):
        return "model.layers.0.self_attn.k_proj.bias" in self.weights

    def rope(self, x):
        """Rotates [heads, tokens, head_dim] at positions 0, 1, ...; half-split."""
        half = self.head_dim // 2
        frequency = 1.0 / self.theta ** (torch.arange(half, device=x.device).float() / half)
        angle = torch.arange(x.shape[1], device=x.device).float()[:, None] * frequency
        cos, sin = angle.cos(), angle.sin()
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    def split_heads(self, x):
        """[tokens, heads * head_dim] -> [heads, tokens, head_dim]."""
        return x.view(len(x), -1, self.head_dim).transpose(0, 1)

    def hidden(self, tokens, cache=None, record=None):
        """The normed last hidden states [tokens, hidden] of one window of ids. `cache.view(layer,
        k, v)` gets k before RoPE and v, [tokens, kv_heads * head_dim], and says what attention
        sees; without it everything is seen uncoded. `record(layer, k, v)` may return other k and v
        (leaves of a graph, say)."""
        x = F.embedding(tokens.to(self.device), self.weights["model.embed_tokens.weight"])
        for layer in range(self.layers):
            prefix = f"model.layers.{layer}."
            h = self._norm(x, prefix + "input_layernorm")
            q, k, v = (self._linear(h, f"{prefix}self_attn.{name}_proj") for name in "qkv")
            if record:
                k, v = record(layer, k, v)
            view = (
                cache.view(layer, k, v)
                if cache
                else View(self.rope(self.split_heads(k)), self.split_heads(v))
            )
            mixed = self._attention(self.rope(self.split_heads(q)), view)
            x = x + self._linear(mixed, prefix + "self_attn.o_proj")
            h = self._norm(x, prefix + "post_attention_layernorm")
            gate = F.silu(self._linear(h, prefix + "mlp.gate_proj"))
            x = x + self._linear(
                gate * self._linear(h, prefix + "mlp.up_proj"), prefix + "mlp.down_proj"
            )
        return self._norm(x, "model.norm")

    def log_probs(self, hidden):
        """[rows, hidden] -> [rows, vocab]."""
        return torch.log_softmax(F.linear(hidden, self.weights["lm_head.weight"]), -1)

    def _norm(self, x, name):
        return (
            x
            * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.epsilon)
            * self.weights[name + ".weight"]
        )

    def _linear(self, x, name):
        return F.linear(x, self.weights[name + ".weight"], self.weights.get(name + ".bias"))

    def _attention(self, q, view):
        """q [heads, tokens, head_dim] -> [tokens, heads * head_dim]; one KV head at a time to bound
        memory."""
        tokens = q.shape[1]
        key = torch.arange(tokens, device=q.device)
        future = key[None, :] > key[:, None]
        mixed = []
        for head, queries in enumerate(q.view(self.kv_heads, -1, tokens, self.head_dim)):
            scores = queries @ view.k[head].T
            if view.k_full is not None:
                scores = torch.where(
                    key[None, :] < view.k_coded[:, None], scores, queries @ view.k_full[head].T
                )
            weights = torch.softmax(
                (scores * self.head_dim**-0.5).masked_fill(future, float("-inf")), -1
            )
            if view.v_full is None:
                mixed.append(weights @ view.v[head])
            else:
                coded = key[None, :] < view.v_coded[:, None]
                mixed.append(
                    (weights * coded) @ view.v[head] + (weights * ~coded) @ view.v_full[head]
                )
        return torch.cat(mixed).transpose(0, 1).reshape(tokens, -1)


class View:
    """What attention sees: k (after RoPE) and v, [kv_heads, tokens, head_dim], as decoded. With
    k_full, the query at position n sees keys at positions < k_coded[n] from k and the others from
    k_full; v alike."""

    def __init__(self, k, v, k_full=None, v_full=None, k_coded=None, v_coded=None):
        self.k, self.v = k, v
        self.k_full, self.v_full = k_full, v_full
        self.k_coded, self.v_coded = k_coded, v_coded


def load(path, device="cpu"):
    """The model in a Hugging Face folder or a GGUF file. ValueError for another family or scaled
    RoPE."""
    path = pathlib.Path(path)
    config, weights = _load_gguf(path) if path.suffix == ".gguf" else _load_folder(path)
    return Decoder(config, weights, device)


def _load_folder(path):
    from safetensors.torch import load_file

    config = json.loads((path / "config.json").read_text())
    if config["model_type"] not in ("llama", "qwen2"):
        raise ValueError(f"{path}: model_type {config['model_type']}, known are llama and qwen2")
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    rope_type = rope.get("rope_type") or rope.get("type") or "default"
    if rope_type != "default":
        raise ValueError(f"{path}: rope_type {rope_type}, known is default")
    config["rope_theta"] = rope.get("rope_theta") or config["rope_theta"]
    weights = {}
    for file in sorted(path.glob("*.safetensors")):
        weights.update(load_file(file))
    return config, weights


_GGUF_LAYER = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_GGUF_OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def _load_gguf(path):
    import gguf

    reader = gguf.GGUFReader(path)
    family = reader.fields["general.architecture"].contents()
    if family not in ("llama", "qwen2"):
        raise ValueError(f"{path}: architecture {family}, known are llama and qwen2")

    def fact(name):
        return reader.fields[f"{family}.{name}"].contents()

    scaling = reader.fields.get(f"{family}.rope.scaling.type")
    if scaling is not None and scaling.contents() != "none":
        raise ValueError(f"{path}: rope scaling {scaling.contents()}, known is none")
    key_length = reader.fields.get(f"{family}.attention.key_length")
    config = {
        "num_hidden_layers": fact("block_count"),
        "num_attention_heads": fact("attention.head_count"),
        "num_key_value_heads": fact("attention.head_count_kv"),
        "hidden_size": fact("embedding_length"),
        "rms_norm_eps": fact("attention.layer_norm_rms_epsilon"),
        "rope_theta": fact("rope.freq_base"),
        "head_dim": key_length.contents() if key_length is not None else None,
    }
    weights = {}
    for tensor in reader.tensors:
        parts = tensor.name.split(".")
        if parts[0] == "blk":
            name = f"model.layers.{parts[1]}.{_GGUF_LAYER[parts[2]]}.{parts[3]}"
        elif parts[0] in _GGUF_OUTER:
            name = f"{_GGUF_OUTER[parts[0]]}.{parts[1]}"
        else:
            raise ValueError(f"{path}: tensor {tensor.name}, not known for a {family} model")
        values = torch.from_numpy(gguf.dequantize(tensor.data, tensor.tensor_type).copy()).float()
        if family == "llama" and parts[-2] in ("attn_q", "attn_k"):
            heads = config[
                "num_attention_heads" if parts[-2] == "attn_q" else "num_key_value_heads"
            ]
            # GGUF keeps a head's rows in pairs (i, i + half) for llama; here they are half-split.
            values = (
                values.view(heads, -1, 2, *values.shape[1:]).transpose(1, 2).reshape(values.shape)
            )
        weights[name] = values
    return config, weights
