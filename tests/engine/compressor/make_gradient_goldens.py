#!/usr/bin/env python3
"""Adds gradient.safetensors to the models in tests/engine/golden: what PyTorch's autograd says that the compressor measures.

    python3 -m venv build/goldens && build/goldens/bin/pip install torch transformers safetensors
    build/goldens/bin/python tests/engine/compressor/make_gradient_goldens.py

The text is the tensor `windows` [2, 40], the first SINKS tokens of a window are left out of the means. For every layer N and plane
P (k, v), over the outputs y of its projection before bias, QK-norm and RoPE:

    N.P.second_moment, N.P.mean   of y
    N.P.fisher                    E[g g^T], g the gradient by y of the sum of -log p(label), the labels drawn as the compressor
                                  does: the first id whose cumulative probability passes a counter-based uniform number
    N.P.weight_fisher             [sum over windows and entries of G^2, mean over entries of sqrt(mean over windows of G^2)],
                                  G the gradient by the weight of the same loss with the text's own next tokens
"""

import pathlib

import safetensors.torch
import torch
import transformers

GOLDEN = pathlib.Path(__file__).parent.parent / "golden"
WINDOWS, TOKENS, SINKS, SEED = 2, 40, 3, 11
MASK = (1 << 64) - 1


def random_bits(seed, counter):
    """base/random.h: SplitMix64's finaliser over both words."""
    def mix(z):
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return z ^ (z >> 31)
    return mix((mix((seed + 0x9E3779B97F4A7C15) & MASK) + (counter + 1) * 0x9E3779B97F4A7C15) & MASK)


def drawn(logits, window):
    cumulative = torch.softmax(logits.detach(), -1).cumsum(-1)
    seed = random_bits(SEED, window)
    uniform = torch.tensor([(random_bits(seed, t) >> 40) * 2.0 ** -24 for t in range(len(logits))], dtype=torch.float64)
    return (cumulative <= uniform[:, None]).sum(-1).clamp(max=logits.shape[-1] - 1)


class Projections:
    """The K and V projections of every layer of a model: their outputs in the latest pass, and their gradients."""

    def __init__(self, model):
        self.family = model.config.model_type
        self.heads = model.config.num_attention_heads
        self.layers = model.config.num_hidden_layers
        self.outputs = {}
        for layer in range(self.layers):
            if self.family == "gpt2":
                self.watch(model.transformer.h[layer].attn.c_attn, (layer, "qkv"))
            elif self.family == "bloom":
                self.watch(model.transformer.h[layer].self_attention.query_key_value, (layer, "qkv"))
            else:
                attention = model.model.layers[layer].self_attn
                self.watch(attention.k_proj, (layer, "k"))
                self.watch(attention.v_proj, (layer, "v"))

    def watch(self, module, key):
        def keep(module, inputs, output):
            output.retain_grad()
            self.outputs[key] = (module, inputs[0].detach()[0], output)
        module.register_forward_hook(keep)

    def read(self, layer, plane):
        """x [T, hidden], y and g [T, kv_dim] of the latest window."""
        fused = (layer, "qkv") in self.outputs
        module, x, output = self.outputs[layer, "qkv" if fused else plane]
        y, g = output.detach()[0], output.grad[0]
        if module.bias is not None:
            y = y - module.bias.detach()
        part = "qkv".index(plane)
        if self.family == "gpt2":  # q | k | v
            y, g = (values.reshape(len(x), 3, -1)[:, part] for values in (y, g))
        if self.family == "bloom":  # q | k | v of each head
            y, g = (values.reshape(len(x), self.heads, 3, -1)[:, :, part].reshape(len(x), -1) for values in (y, g))
        return x, y, g


def run(model, projections, windows, text):
    """(x, y, g) of every window for each (layer, plane)."""
    found = {(layer, plane): [] for layer in range(projections.layers) for plane in "kv"}
    for w, window in enumerate(windows):
        model.zero_grad()
        logits = model(window[None], use_cache=False).logits[0]
        labels = window[1:] if text else drawn(logits, w)
        torch.nn.functional.cross_entropy(logits[:len(labels)], labels, reduction="sum").backward()
        for key, values in found.items():
            values.append(projections.read(*key))
    return found


def make(folder):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager").eval()
    projections = Projections(model)
    generator = torch.Generator().manual_seed(1)
    windows = torch.randint(4, model.config.vocab_size, (WINDOWS, TOKENS), generator=generator)
    golden = {"windows": windows.to(torch.int32)}
    sampled, text = run(model, projections, windows, False), run(model, projections, windows, True)
    for (layer, plane), values in sampled.items():
        name = f"{layer}.{plane}."
        y = torch.cat([v[1][SINKS:] for v in values])
        g = torch.cat([v[2][SINKS:] for v in values])
        golden[name + "second_moment"] = y.T @ y / len(y)
        golden[name + "mean"] = y.mean(0)
        golden[name + "fisher"] = g.T @ g / len(g)
        squares = torch.stack([(g.T @ x) ** 2 for x, _, g in text[layer, plane]])
        golden[name + "weight_fisher"] = torch.stack([squares.sum(), squares.mean(0).sqrt().mean()])
    golden = {k: v if v.dtype == torch.int32 else v.to(torch.float32) for k, v in golden.items()}
    made_by = f"transformers {transformers.__version__}, torch {torch.__version__.split('+')[0]}, float64"
    safetensors.torch.save_file({k: v.contiguous() for k, v in golden.items()}, folder / "gradient.safetensors",
                                metadata={"made_by": made_by})
    print(folder.name, (folder / "gradient.safetensors").stat().st_size // 1024, "KiB")


for family in ("llama", "llama-rope3", "mistral", "qwen2", "qwen3", "gpt2", "bloom"):
    make(GOLDEN / family)
