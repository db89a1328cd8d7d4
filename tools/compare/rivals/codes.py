"""Codes of rival caches, simulated: each function returns the decoded values, scales rounded as
they are stored."""

import functools
import math

import torch


def _paley(order):
    """A Hadamard matrix of `order` by Paley's two constructions, or None."""
    q = order - 1
    doubled = not (_is_prime(q) and q % 4 == 3)
    if doubled:
        q = order // 2 - 1
        if order % 2 or not (_is_prime(q) and q % 4 == 1):
            return None
    squares = {i * i % q for i in range(1, q)}
    chi = torch.tensor([0] + [1 if i in squares else -1 for i in range(1, q)], dtype=torch.float64)
    jacobsthal = torch.stack([chi[(torch.arange(q) - i) % q] for i in range(q)])
    core = torch.zeros(q + 1, q + 1, dtype=torch.float64)
    core[0, 1:] = 1
    core[1:, 0] = 1 if doubled else -1
    core[1:, 1:] = jacobsthal
    eye = torch.eye(q + 1, dtype=torch.float64)
    if not doubled:
        return core + eye
    plus = torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64)
    minus = torch.tensor([[1.0, -1.0], [-1.0, -1.0]], dtype=torch.float64)
    return torch.kron(core, plus) + torch.kron(eye, minus)


def _is_prime(n):
    return n > 1 and all(n % d for d in range(2, math.isqrt(n) + 1))


@functools.cache
def hadamard(order):
    """An orthogonal [order, order] Hadamard matrix / sqrt(order), first row and column positive:
    Sylvester's doublings of a Paley matrix. ValueError where neither construction reaches the
    order."""
    doublings, core = 0, order
    while core > 2 and _paley(core) is None and core % 2 == 0:
        doublings, core = doublings + 1, core // 2
    matrix = torch.ones(1, 1, dtype=torch.float64) if core == 1 else None
    if core == 2:
        matrix = torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64)
    elif core > 2:
        matrix = _paley(core)
    if matrix is None:
        raise ValueError(f"no Hadamard matrix of order {order} by Sylvester or Paley")
    for _ in range(doublings):
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)], 0)
    matrix = matrix * matrix[:, :1]
    matrix = matrix * matrix[:1, :]
    return (matrix / math.sqrt(order)).float()


def _half(x):
    return x.half().to(x.dtype)


def min_max(x, bits, dim=-1):
    """Asymmetric codes over `dim`: step and minimum in fp16, 2^bits levels from the minimum to the
    maximum."""
    low = _half(x.amin(dim, keepdim=True))
    step = _half((x.amax(dim, keepdim=True) - low) / (2**bits - 1)).clamp(min=2.0**-24)
    return ((x - low) / step).round().clamp(0, 2**bits - 1) * step + low


# The step over the standard deviation that serves a Gaussian best, a grid of 2^bits levels.
_GAUSSIAN_STEP = {2: 0.9957, 3: 0.5860, 4: 0.3352, 8: 0.0308}


def symmetric(x, bits):
    """Mid-rise codes {+-1/2, +-3/2, ...} per row of the last dim: one fp16 scale, two starts (RMS
    and absmax), two least-squares steps each, the better kept."""
    top = (2**bits - 1) / 2

    def codes(scale):
        return (torch.floor(x / scale) + 0.5).clamp(-top, top)

    best, best_error = None, None
    for start in (
        x.square().mean(-1, keepdim=True).sqrt() * _GAUSSIAN_STEP[bits],
        x.abs().amax(-1, keepdim=True) / top,
    ):
        scale = start.clamp(min=1e-7)
        for _ in range(2):
            c = codes(scale)
            scale = ((x * c).sum(-1, keepdim=True) / c.square().sum(-1, keepdim=True)).clamp(
                min=1e-7
            )
        scale = _half(scale).clamp(min=2.0**-24)
        decoded = codes(scale) * scale
        error = (decoded - x).square().sum(-1, keepdim=True)
        best = decoded if best is None else torch.where(error < best_error, decoded, best)
        best_error = error if best_error is None else torch.minimum(error, best_error)
    return best


def ggml_block(x, bits):
    """llama.cpp's q8_0 and q4_0: blocks of 32 of the last dim with one fp16 scale (ggml-quants.c's
    reference rows)."""
    blocks = x.reshape(*x.shape[:-1], -1, 32)
    largest = blocks.gather(-1, blocks.abs().argmax(-1, keepdim=True))
    if bits == 8:
        scale = largest.abs() / 127
        inverse = torch.where(scale > 0, 1 / scale, 0)
        codes = (blocks * inverse).abs().add(0.5).floor() * blocks.sign()
    else:
        scale = largest / -8
        inverse = torch.where(scale != 0, 1 / scale, 0)
        codes = (blocks * inverse + 8.5).floor().clamp(max=15) - 8
    return (codes * _half(scale)).reshape(x.shape)


def nearest_level(x, levels):
    """Each value's nearest of the sorted `levels`."""
    index = torch.bucketize(x.contiguous(), (levels[1:] + levels[:-1]) / 2)
    return levels[index]


def weighted_levels(values, weights, count, bins=4096, steps=200):
    """`count` levels for values in [-1, 1]: weighted k-means (Lloyd on a histogram of `bins`,
    started at weighted quantiles), sorted."""
    index = ((values + 1) / 2 * bins).long().clamp(0, bins - 1)
    mass = torch.zeros(bins, dtype=torch.float64, device=values.device).index_add_(
        0, index, weights.double()
    )
    first = torch.zeros_like(mass).index_add_(0, index, (weights * values).double())
    mass, first = mass.cpu(), first.cpu()
    centres = torch.where(
        mass > 0, first / mass.clamp(min=1e-300), (torch.arange(bins).double() + 0.5) / bins * 2 - 1
    )
    quantiles = (torch.arange(count).double() + 0.5) / count * mass.sum()
    levels = centres[torch.searchsorted(mass.cumsum(0), quantiles).clamp(max=bins - 1)]
    for _ in range(steps):
        nearest = torch.bucketize(centres, (levels[1:] + levels[:-1]) / 2)
        held = torch.zeros(count, dtype=torch.float64).index_add_(0, nearest, mass)
        sums = torch.zeros(count, dtype=torch.float64).index_add_(0, nearest, first)
        moved = torch.where(held > 0, sums / held.clamp(min=1e-300), levels).sort().values
        if torch.equal(moved, levels):
            break
        levels = moved
    return levels.float().to(values.device)
