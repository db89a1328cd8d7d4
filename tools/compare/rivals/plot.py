#!/usr/bin/env python3
"""Draws quality against bytes: mean KL of each row of summary.py or of `latent-eval divergence
--json`, as an SVG.

    python3 plot.py rivals.jsonl ours.jsonl [--title TEXT] >plot.svg

x: bytes of a token at the window's length, everything counted; y: mean KL; both logarithmic. Rows
of one family (without one: latentd's own) are joined by a line. Rows with a KL of 0 are left out.
"""

import argparse
import html
import math
import pathlib

from measure import read_lines
from summary import bytes_at_window

WIDTH, HEIGHT = 980, 620
LEFT, RIGHT, TOP, BOTTOM = 70, 270, 60, 55
COLOURS = [
    "#1f77b4",
    "#ff7f0e",
    "#2ca02c",
    "#9467bd",
    "#8c564b",
    "#e377c2",
    "#7f7f7f",
    "#bcbd22",
    "#17becf",
    "#4c72b0",
    "#a05d00",
    "#006d5b",
]
OWN = "#d62728"
OWN_FAMILY = "latentd"


def by_family(rows):
    """family -> its rows, the largest cache first; latentd's own last, to be drawn on top."""
    families = {}
    for row in rows:
        if row["kl_mean"] > 0:
            families.setdefault(row.get("family", OWN_FAMILY), []).append(row)
    for members in families.values():
        members.sort(key=bytes_at_window, reverse=True)
    return dict(sorted(families.items(), key=lambda item: item[0].startswith(OWN_FAMILY)))


def axis(low, high, pixels_low, pixels_high):
    """A function from values to pixels, logarithmic."""
    scale = (pixels_high - pixels_low) / (math.log(high) - math.log(low))
    return lambda value: pixels_low + (math.log(value) - math.log(low)) * scale


def marker(shape, x, y, colour, title):
    """One of four shapes at (x, y) that shows `title` when pointed at."""
    s, d = 4.5, 6
    body = {
        0: f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{s}"',
        1: f'<rect x="{x - s:.1f}" y="{y - s:.1f}" width="{2 * s}" height="{2 * s}"',
        2: f'<path d="M{x:.1f} {y - s - 1:.1f} l{s + 1} {2 * s + 1} h{-2 * s - 2} z"',
        3: f'<path d="M{x:.1f} {y - d:.1f} l{d} {d} l{-d} {d} l{-d} {-d} z"',
    }[shape]
    return f'{body} fill="{colour}"><title>{html.escape(title)}</title></{body[1:].split()[0]}>'


def ticks(low, high):
    """1, 2 and 5 times powers of ten in [low, high]."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [
        factor * 10.0**power
        for power in powers
        for factor in (1, 2, 5)
        if low <= factor * 10.0**power <= high
    ]


def draw(rows, title):
    """The SVG of at least one row with a KL above 0."""
    families = by_family(rows)
    shown = [row for members in families.values() for row in members]
    sizes, losses = [bytes_at_window(row) for row in shown], [row["kl_mean"] for row in shown]
    full = shown[0]["full_bytes_per_token"]
    x = axis(min(sizes) * 0.92, max(sizes) * 1.08, LEFT, WIDTH - RIGHT)
    y = axis(min(losses) * 0.7, max(losses) * 1.4, HEIGHT - BOTTOM, TOP)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="22" font-size="15">{html.escape(title)}</text>',
    ]
    for value in ticks(min(losses) * 0.7, max(losses) * 1.4):
        out.append(f'<path d="M{LEFT} {y(value):.1f} H{WIDTH - RIGHT}" stroke="#e4e4e4"/>')
        out.append(
            f'<text x="{LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value:g}</text>'
        )
    for ratio in (1.5, 2, 3, 4, 5.3, 7.7, 10, 14, 20, 30):
        if min(sizes) * 0.92 <= full / ratio <= max(sizes) * 1.08:
            place = x(full / ratio)
            out.append(f'<path d="M{place:.1f} {TOP} V{HEIGHT - BOTTOM}" stroke="#e4e4e4"/>')
            out.append(
                f'<text x="{place:.1f}" y="{HEIGHT - BOTTOM + 17}" text-anchor="middle">'
                f"{full / ratio:,.0f}</text>"
            )
            out.append(
                f'<text x="{place:.1f}" y="{TOP - 6}" text-anchor="middle">{ratio:g}x</text>'
            )
    out.append(
        f'<path d="M{LEFT} {TOP} V{HEIGHT - BOTTOM} H{WIDTH - RIGHT}" stroke="black" fill="none"/>'
    )
    out.append(
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 12}" text-anchor="middle">'
        f'bytes per token at {shown[0]["window"]} '
        "tokens, everything counted (log)</text>"
    )
    middle = (TOP + HEIGHT - BOTTOM) / 2
    out.append(
        f'<text transform="translate(18 {middle}) rotate(-90)" text-anchor="middle">'
        "mean KL to the uncompressed cache, nats per token "
        "(log)</text>"
    )
    rivals = 0
    for number, (family, members) in enumerate(families.items()):
        own = family.startswith(OWN_FAMILY)
        colour = OWN if own else COLOURS[rivals % len(COLOURS)]
        rivals += not own
        points = [(x(bytes_at_window(row)), y(row["kl_mean"])) for row in members]
        path = " L".join(f"{px:.1f} {py:.1f}" for px, py in points)
        out.append(
            f'<path d="M{path}" stroke="{colour}" stroke-width="{2.5 if own else 1}" '
            f'fill="none" opacity="{1 if own else 0.6}"/>'
        )
        for row, (px, py) in zip(members, points):
            out.append(
                marker(
                    number % 4,
                    px,
                    py,
                    colour,
                    f"{row['cache']}: {bytes_at_window(row):,.0f} B, KL {row['kl_mean']:.4f}",
                )
            )
        line = TOP + 12 + 22 * number
        out.append(marker(number % 4, WIDTH - RIGHT + 24, line - 4, colour, family))
        out.append(f'<text x="{WIDTH - RIGHT + 36}" y="{line}">{html.escape(family)}</text>')
    return "\n".join(out + ["</svg>"])


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", nargs="+", type=pathlib.Path)
    parser.add_argument("--title", default="Quality against bytes")
    args = parser.parse_args()
    print(draw([row for path in args.rows for row in read_lines(path)], args.title))


if __name__ == "__main__":
    main()
