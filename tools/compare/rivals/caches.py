"""The rivals' caches, simulated.

Each has a name, a family (its series in the plot), and:
view(layer, k, v)  k before RoPE and v, [tokens, kv_heads * head_dim], biases included -> View
bytes_at(length)   what the whole model's cache holds while the last of `length` tokens attends:
                   codes, scales, zero points, outliers, exact first tokens and 16-bit residual
                   windows; constants of the model are not counted
begin_window()     forgets what was counted in the window before
"""

import torch

from calibration import PLANES, SINKS
from codes import ggml_block, hadamard, min_max, nearest_level, symmetric, weighted_levels
from decoder import View


class Cache:
    def __init__(self, model, name, family):
        self.model, self.name, self.family = model, name, family
        self.dims = model.kv_heads * model.head_dim
        self.bias = {
            plane: [model.bias(layer, plane) for layer in range(model.layers)] for plane in PLANES
        }
        self.full_bytes = 4 * self.dims * model.layers  # of K and V of one token at 16 bits

    def begin_window(self):
        pass

    def decoded(self, layer, plane, y):
        """y = k or v as the cache gives it back, [tokens, dims]."""
        raise NotImplementedError

    def view(self, layer, k, v):
        heads = self.model.split_heads
        k = self.model.rope(heads(self.decoded(layer, "k", k)))
        return View(k, heads(self.decoded(layer, "v", v)))

    def bytes_per_token(self):
        """What one token more adds in a long sequence."""
        raise NotImplementedError

    def bytes_at(self, length):
        return length * self.bytes_per_token()

    def rotate(self, y, order):
        """y times a Hadamard matrix in blocks of `order`; the matrix as well."""
        matrix = hadamard(order).to(y.device)
        return (y.view(len(y), -1, order) @ matrix).view(y.shape), matrix


class Uncompressed(Cache):
    def __init__(self, model):
        super().__init__(model, "uncompressed, 16 bits", "uncompressed")

    def decoded(self, layer, plane, y):
        return y

    def bytes_per_token(self):
        return self.full_bytes


def _exact_first(decoded, y, count):
    return torch.cat([y[:count].half().float(), decoded[count:]]) if count else decoded


class Rotated(Cache):
    """Per token: Hadamard, symmetric codes, one fp16 scale. Over all KV heads at once, or with
    `per_head` one code a head."""

    def __init__(self, model, bits, bias_out=True, calibration=None, sinks=0, per_head=False):
        words = ["per head"] * per_head + ["bias in"] * (model.has_bias and not bias_out)
        words += ["mean out"] * (calibration is not None) + [f"{sinks} exact sinks"] * (sinks > 0)
        super().__init__(
            model, ", ".join([f"int{bits}"] + words), ", ".join(["rotated int"] + words)
        )
        self.bits, self.sinks = bits, sinks
        self.order = model.head_dim if per_head else self.dims
        self.offset = {
            plane: [
                self.bias[plane][layer] * bias_out
                + (calibration.mean[plane][layer] if calibration else 0)
                for layer in range(model.layers)
            ]
            for plane in PLANES
        }

    def decoded(self, layer, plane, y):
        offset = self.offset[plane][layer]
        rotated, matrix = self.rotate(y - offset, self.order)
        blocks = symmetric(rotated.view(len(y), -1, self.order), self.bits) @ matrix.T
        return _exact_first(blocks.view(y.shape) + offset, y, self.sinks)

    def bytes_per_token(self):
        return 2 * self.model.layers * (self.dims * self.bits / 8 + 2 * self.dims / self.order)

    def bytes_at(self, length):
        return length * self.bytes_per_token() + self.sinks * self.full_bytes


class Palu(Cache):
    """arXiv 2407.21118: low-rank latents of all KV heads together, truncation-aware, Hadamard,
    min-max codes per token. The bias stays out of the latent. Dims are multiples of 16."""

    def __init__(self, model, calibration, keep, bits, allocation):
        super().__init__(
            model, f"Palu {keep:.0%}, {bits} bits, {allocation}", f"Palu, {allocation}"
        )
        self.bits = bits
        weights = {
            plane: [1.0] * model.layers if allocation == "uniform" else calibration.fisher[plane]
            for plane in PLANES
        }
        ranks = allocate_ranks(weights["k"] + weights["v"], self.dims, keep)
        self.ranks = {"k": ranks[: model.layers], "v": ranks[model.layers :]}
        self.down, self.up = {}, {}
        for plane in PLANES:
            factors = [
                self._factors(calibration.moment[plane][layer], self.ranks[plane][layer])
                for layer in range(model.layers)
            ]
            self.down[plane], self.up[plane] = zip(*factors)

    @staticmethod
    def _factors(moment, rank):
        """With W C_x W^T = U S^2 U^T: latent = S^-1/2 U^T y, whose square-root split is that of the
        whitened W's singular values."""
        squares, vectors = torch.linalg.eigh(moment)
        root = squares.flip(0)[:rank].clamp(min=1e-12) ** 0.25
        vectors = vectors.flip(1)[:, :rank]
        matrix = hadamard(rank).double().to(moment.device)
        return (vectors / root @ matrix).float(), (matrix.T @ (vectors * root).T).float()

    def decoded(self, layer, plane, y):
        bias = self.bias[plane][layer]
        latent = (y - bias) @ self.down[plane][layer]
        if self.bits < 16:
            latent = min_max(latent, self.bits)
        return latent @ self.up[plane][layer] + bias

    def bytes_per_token(self):
        metadata = 4 if self.bits < 16 else 0
        return sum(
            rank * self.bits / 8 + metadata for plane in PLANES for rank in self.ranks[plane]
        )


def allocate_ranks(importance, dims, keep, multiple=16):
    """Ranks in proportion to `importance`, at most `dims` each; what is cut off goes to the others
    in proportion; multiples of `multiple` whose sum is keep * dims * len(importance) but for half a
    multiple each when all are alike.
    """
    if len(set(importance)) == 1:
        return [int(keep * dims / multiple + 0.5) * multiple] * len(importance)
    budget = keep * dims * len(importance)
    ranks, open_ = [0.0] * len(importance), set(range(len(importance)))
    while open_:
        left = budget - sum(ranks[i] for i in range(len(ranks)) if i not in open_)
        total = sum(importance[i] for i in open_)
        for i in open_:
            ranks[i] = left * importance[i] / total
        clipped = {i for i in open_ if ranks[i] > dims}
        for i in clipped:
            ranks[i] = dims
        open_ -= clipped
        if not clipped:
            break
    whole = [max(multiple, int(rank // multiple) * multiple) for rank in ranks]
    by_rest = sorted(range(len(ranks)), key=lambda i: whole[i] - ranks[i])
    for i in by_rest:
        if sum(whole) + multiple / 2 > budget:
            break
        if whole[i] < dims:
            whole[i] += multiple
    return whole


class Kivi(Cache):
    """arXiv 2402.02750 and its code: min-max codes of K after RoPE per channel in groups of 32
    tokens, of V per token in groups of 32 dims; step and minimum fp16. K keeps the newest tokens in
    16 bits until `residual` of them are there, V the newest `residual`.
    """

    GROUP = 32

    def __init__(self, model, bits, residual):
        super().__init__(model, f"KIVI-{bits}, residual {residual}", f"KIVI, residual {residual}")
        self.bits, self.residual = bits, residual

    def view(self, layer, k, v):
        k, v = self.model.rope(self.model.split_heads(k)), self.model.split_heads(v)
        heads, tokens, dims = k.shape
        whole = tokens // self.GROUP * self.GROUP
        groups = min_max(k[:, :whole].reshape(heads, -1, self.GROUP, dims), self.bits, dim=2).view(
            heads, whole, dims
        )
        v_codes = min_max(v.reshape(heads, tokens, -1, self.GROUP), self.bits).view(v.shape)
        position = torch.arange(tokens, device=k.device)
        return View(
            torch.cat([groups, k[:, whole:]], 1),
            v_codes,
            k.half().float(),
            v.half().float(),
            position // self.residual * self.residual,
            position - self.residual,
        )

    def bytes_per_token(self):
        return self.full_bytes * (self.bits / 8 + 4 / self.GROUP) / 2

    def bytes_at(self, length):
        last = length - 1
        k_coded, v_coded = last // self.residual * self.residual, max(0, last - self.residual)
        coded, half = self.bytes_per_token() / 2, self.full_bytes / 2
        return (k_coded + v_coded) * coded + (2 * length - k_coded - v_coded) * half


class KvQuant(Cache):
    """After arXiv 2401.18079 and its code: K before RoPE per channel and V per token are brought to
    [-1, 1] and rounded to levels fitted per layer (k-means, weighted by squared gradients where
    calibrated with them); the first token stays in 16 bits. With `outliers`, that share is kept
    apart, 2 bytes of value and 2 of index each and a 4-byte pointer per token and matrix: K beyond
    the calibrated percentiles of its channel, V beyond those of its token. 2 bits use the paper's
    Q-Norm.
    """

    def __init__(self, model, calibration, bits, outliers):
        super().__init__(
            model,
            f"KVQuant-like {bits} bits" + (f", {outliers:.0%} outliers" if outliers else ""),
            "KVQuant-like" + (", 1% outliers" if outliers else ""),
        )
        self.bits, self.outliers, self.tail = bits, outliers, outliers / 2
        self.begin_window()
        self.limits, self.levels, self.norm = (
            [],
            {plane: [] for plane in PLANES},
            {plane: [] for plane in PLANES},
        )
        for layer in range(model.layers):
            for plane in PLANES:
                # The first token is stored exactly, so nothing is learned from it.
                samples = calibration.samples[plane][layer][:, 1:].flatten(0, 1)
                weights = calibration.sensitivity[plane][layer]
                weights = (
                    torch.ones_like(samples) if weights is None else weights[:, 1:].flatten(0, 1)
                )
                limits = (
                    self._channel_limits(samples) if plane == "k" else self._token_limits(samples)
                )
                centre, reach, kept = self._normalise(samples, *limits)
                if plane == "k":
                    self.limits.append(limits)
                scaled = ((samples - centre) / reach)[kept]
                levels = weighted_levels(scaled, weights[kept], 2**bits)
                rounded = nearest_level(scaled, levels)
                stretch = scaled.std() / rounded.std() if bits == 2 else torch.tensor(1.0)
                shift = scaled.mean() - rounded.mean() * stretch if bits == 2 else torch.tensor(0.0)
                self.levels[plane].append(levels)
                self.norm[plane].append((stretch.item(), shift.item()))

    def begin_window(self):
        self.found, self.seen = 0, 0

    def _channel_limits(self, samples):
        """Per channel: the `tail` percentiles over tokens at both ends."""
        ordered = samples.sort(0).values
        last = len(ordered) - 1
        return ordered[round(last * self.tail)], ordered[round(last * (1 - self.tail))]

    def _token_limits(self, y):
        """Per token: the least and largest value that is not an outlier."""
        if not self.outliers:
            return y.amin(-1, keepdim=True), y.amax(-1, keepdim=True)
        edges = torch.quantile(
            y, torch.tensor([self.tail, 1 - self.tail], device=y.device), dim=-1
        )[..., None]
        inside = torch.where((y > edges[0]) & (y < edges[1]), y, y.median(-1, keepdim=True).values)
        return inside.amin(-1, keepdim=True), inside.amax(-1, keepdim=True)

    @staticmethod
    def _normalise(y, low, high):
        """Centre and reach, as stored, that bring y to [-1, 1], and which values are codes, not
        outliers."""
        centre, reach = ((high + low) / 2).half().float(), ((high - low) / 2).half().float().clamp(
            min=2.0**-14
        )
        return centre, reach, (y >= low) & (y <= high)

    def decoded(self, layer, plane, y):
        centre, reach, kept = self._normalise(
            y, *(self.limits[layer] if plane == "k" else self._token_limits(y))
        )
        stretch, shift = self.norm[plane][layer]
        decoded = (
            nearest_level((y - centre) / reach, self.levels[plane][layer]) * stretch + shift
        ) * reach + centre
        if self.outliers:
            self.found += (~kept[1:]).sum().item()
            self.seen += len(y) - 1
            decoded = torch.where(kept, decoded, y.half().float())
        return _exact_first(decoded, y, 1)

    def bytes_per_token(self):
        codes = self.full_bytes * self.bits / 16 + 4 * self.model.layers
        if not self.outliers:
            return codes
        # `seen` counts a token once per matrix.
        return codes + 2 * self.model.layers * (4 * self.found / max(1, self.seen) + 4)

    def bytes_at(self, length):
        return (length - 1) * self.bytes_per_token() + self.full_bytes


class LlamaCpp(Cache):
    """llama.cpp's q8_0 or q4_0 cache: K after RoPE and V in blocks of 32; rotated by a Hadamard
    matrix first (as its sources of llama-cpp-python 0.3.36 do), of the largest power of two that
    divides head_dim for K and of 64 for V."""

    def __init__(self, model, bits, rotated=True):
        super().__init__(
            model,
            f"llama.cpp q{bits}_0" + ("" if rotated else ", not rotated"),
            "llama.cpp" + ("" if rotated else ", not rotated"),
        )
        self.bits, self.rotated = bits, rotated and model.head_dim % 64 == 0

    def _coded(self, y, order):
        if not self.rotated:
            return ggml_block(y, self.bits)
        rotated, matrix = self.rotate(y.reshape(-1, y.shape[-1]), order)
        blocks = ggml_block(rotated, self.bits).view(len(rotated), -1, order) @ matrix.T
        return blocks.reshape(y.shape)

    def view(self, layer, k, v):
        k, v = self.model.rope(self.model.split_heads(k)), self.model.split_heads(v)
        order = self.model.head_dim & -self.model.head_dim
        return View(self._coded(k, order), self._coded(v, 64))

    def bytes_per_token(self):
        return self.full_bytes / 16 * (self.bits + 0.5)
