"""What rivals learn before they serve: moments, ranges and gradients of k (before RoPE) and v on
calibration text."""

import sys
import time

import torch

SINKS = 4  # the positions that the means leave out
PLANES = ("k", "v")


class Calibration:
    """Per plane ("k", "v") and layer, over all calibration tokens:
    moment[plane][layer]      E[y y^T] of y = k or v without its bias, [dims, dims] float64
    mean[plane][layer]        mean of y without the first SINKS positions, [dims]
    fisher[plane][layer]      RMS of the gradient of the projection's weights, their mean
    samples[plane][layer]     k or v with its bias, [windows, tokens, dims]
    sensitivity[plane][layer] the squared gradients of `samples`
    fisher and sensitivity are None without gradients.
    """

    def __init__(self):
        self.moment, self.mean, self.fisher, self.samples, self.sensitivity = (
            {"k": [], "v": []} for _ in range(5)
        )


def calibrate(model, windows, gradients):
    """Runs the uncompressed model over the windows (all of one length), with the gradients of the
    mean negative log-likelihood of each when asked for."""
    result = Calibration()
    seen = {plane: [[] for _ in range(model.layers)] for plane in PLANES}
    slopes = {plane: [[] for _ in range(model.layers)] for plane in PLANES}
    squared = {plane: [0.0] * model.layers for plane in PLANES}
    begin = time.time()
    for number, ids in enumerate(windows):
        graph = []

        def record(layer, k, v):
            if gradients:
                k.retain_grad(), v.retain_grad()
                graph.append((k, v))
            seen["k"][layer].append(k.detach())
            seen["v"][layer].append(v.detach())
            return k, v

        with torch.set_grad_enabled(gradients):
            if gradients:
                for plane in PLANES:
                    for layer in range(model.layers):
                        weight = model.weights[
                            f"model.layers.{layer}.self_attn.{plane}_proj.weight"
                        ]
                        weight.requires_grad_(True)
                        weight.grad = None
            hidden = model.hidden(ids, record=record)
            if gradients:
                log_probs = model.log_probs(hidden[:-1])
                loss = -log_probs.gather(1, ids[1:, None].to(model.device)).mean()
                loss.backward()
                for layer, (k, v) in enumerate(graph):
                    for plane, leaf in zip(PLANES, (k, v)):
                        slopes[plane][layer].append(leaf.grad.square())
                        weight = model.weights[
                            f"model.layers.{layer}.self_attn.{plane}_proj.weight"
                        ]
                        squared[plane][layer] = squared[plane][layer] + weight.grad.square()
                        weight.grad = None
        print(
            f"\rcalibration {number + 1}/{len(windows)}, {time.time() - begin:.0f} s",
            end="",
            file=sys.stderr,
            flush=True,
        )
    print(file=sys.stderr)
    for plane in PLANES:
        for layer in range(model.layers):
            weight = model.weights[f"model.layers.{layer}.self_attn.{plane}_proj.weight"]
            weight.requires_grad_(False)
            samples = torch.stack(seen[plane][layer])
            y = samples - model.bias(layer, plane)
            flat = y.flatten(0, 1).double()
            result.moment[plane].append(flat.T @ flat / len(flat))
            result.mean[plane].append(y[:, SINKS:].flatten(0, 1).double().mean(0).float())
            result.samples[plane].append(samples)
            result.sensitivity[plane].append(
                torch.stack(slopes[plane][layer]) if gradients else None
            )
            rms = (squared[plane][layer] / len(windows)).sqrt().mean().item() if gradients else None
            result.fisher[plane].append(rms)
            seen[plane][layer] = slopes[plane][layer] = None
    return result
