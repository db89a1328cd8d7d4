#!/usr/bin/env python3
"""Makes tests/engine/golden/rope.json: the inverse frequencies, and the factor on cos and sin, of each RoPE scaling as published
configs state it, computed by Hugging Face transformers. The scalings that depend on the length are taken at `length`.

    build/goldens/bin/python tests/engine/make_rope_goldens.py      the environment of make_goldens.py
"""

import json

import torch
from make_goldens import LLAMA, MADE_BY, ROOT, hf_config, rounded
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS


def main():
    factors = [1.0 + 0.25 * i for i in range(8)]
    cases = [
        ("default", dict(rope_theta=10000.0), {}, 256),
        ("linear", dict(rope_theta=10000.0), dict(rope_type="linear", factor=4.0), 256),
        ("dynamic", dict(rope_theta=10000.0, max_position_embeddings=64), dict(rope_type="dynamic", factor=4.0), 256),
        ("yarn", dict(rope_theta=10000.0), dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=64), 256),
        ("yarn-mscale", dict(rope_theta=10000.0), dict(
            rope_type="yarn", factor=40.0, original_max_position_embeddings=64, beta_fast=32, beta_slow=1, mscale=0.707,
            mscale_all_dim=1.0), 2560),
        ("llama3", dict(rope_theta=500000.0), dict(
            rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
            original_max_position_embeddings=64), 512),
        ("longrope", dict(rope_theta=10000.0), dict(
            rope_type="longrope", short_factor=[1.0] * 8, long_factor=factors, original_max_position_embeddings=64), 256),
        ("longrope-short", dict(rope_theta=10000.0), dict(
            rope_type="longrope", short_factor=factors, long_factor=[9.0] * 8, original_max_position_embeddings=64), 64),
    ]
    out = []
    for name, overrides, scaling, length in cases:
        stated = dict(LLAMA, head_dim=16, max_position_embeddings=length)
        stated.update(overrides)
        if scaling:
            stated["rope_scaling"] = scaling
        config = hf_config(stated)
        kind = scaling.get("rope_type", "default")
        if kind == "default":
            inv_freq = 1.0 / stated["rope_theta"] ** (torch.arange(0, 16, 2, dtype=torch.int64).float() / 16)
            attention_factor = 1.0
        else:
            inv_freq, attention_factor = ROPE_INIT_FUNCTIONS[kind](config, "cpu", seq_len=length)
        out.append(dict(name=name, rope_theta=stated["rope_theta"], head_dim=16, length=length,
                        max_position_embeddings=stated["max_position_embeddings"], rope_scaling=scaling or None,
                        inv_freq=rounded(inv_freq), attention_factor=float(f"{attention_factor:.7g}")))
    text = ",\n".join(json.dumps(c) for c in out)
    (ROOT / "rope.json").write_text(f'{{"made_by": "{MADE_BY}", "cases": [\n{text}\n]}}\n')


if __name__ == "__main__":
    main()
