"""A random decoder with biases, small enough for every test.

Puts tools/compare/rivals on the path.
"""

import pathlib
import sys

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[4] / "tools/compare/rivals"))

from decoder import Decoder  # noqa: E402


def tiny_model():
    generator = torch.Generator().manual_seed(7)

    def random(*shape):
        return torch.randn(*shape, generator=generator)

    config = {
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "hidden_size": 144,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
    }
    weights = {"model.embed_tokens.weight": random(50, 144), "model.norm.weight": torch.ones(144)}
    for layer in range(2):
        prefix = f"model.layers.{layer}."
        for name, rows, columns in (
            ("q", 256, 144),
            ("k", 128, 144),
            ("v", 128, 144),
            ("o", 144, 256),
        ):
            weights[f"{prefix}self_attn.{name}_proj.weight"] = random(rows, columns) / columns**0.5
            if name != "o":
                weights[f"{prefix}self_attn.{name}_proj.bias"] = random(rows)
        for name, rows, columns in (("gate", 96, 144), ("up", 96, 144), ("down", 144, 96)):
            weights[f"{prefix}mlp.{name}_proj.weight"] = random(rows, columns) / columns**0.5
        for name in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{prefix}{name}.weight"] = torch.ones(144)
    return Decoder(config, weights, "cpu")


def random_ids(count, seed=1):
    return torch.randint(0, 50, (count,), generator=torch.Generator().manual_seed(seed))
