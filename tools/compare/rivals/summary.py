#!/usr/bin/env python3
"""Adds up the lines of measure.py: one JSON line per rival, with latent-eval's keys, or a Markdown
table of such lines.

    python3 summary.py rows lines.jsonl >rivals.jsonl
    python3 summary.py table rivals.jsonl [ours.jsonl ...]

`table` takes lines of `latent-eval divergence --json` as well, and sorts by the bytes that a token
takes at the window's length.
"""

import json
import math
import pathlib
import sys

from measure import read_lines


def rows(lines):
    """One row per rival of the window lines, in the order of their first lines. ValueError when
    windows are missing or doubled."""
    by_rival = {}
    for line in lines:
        by_rival.setdefault(
            (line["model"], line["rival"], line["window"], line["windows"]), []
        ).append(line)
    result = []
    for (model, rival, window, windows), group in by_rival.items():
        numbers = sorted(line["number"] for line in group)
        if numbers != list(range(windows)):
            raise ValueError(f"{model}, {rival}: windows {numbers} are there, of {windows}")
        tokens = sum(line["tokens"] for line in group)
        full = group[0]["full_bytes_per_token"]
        per_token, at_window = (
            sum(line[key] for line in group) / windows
            for key in ("bytes_per_token", "bytes_at_window")
        )
        largest = sorted((kl for line in group for kl in line["kl_largest"]), reverse=True)
        result.append(
            {
                "model": model,
                "rival": rival,
                "cache": group[0]["cache"],
                "family": group[0]["family"],
                "perplexity": math.exp(sum(line["nll"] for line in group) / tokens),
                "kl_mean": sum(line["kl"] for line in group) / tokens,
                # Nearest rank: 99 % of the tokens have at most this.
                "kl_p99": largest[tokens - math.ceil(0.99 * tokens)],
                "top1": sum(line["top1"] for line in group) / tokens,
                "tokens": tokens,
                "windows": windows,
                "window": window,
                "bytes_per_token": per_token,
                "bytes_per_sequence": at_window - window * per_token,
                "full_bytes_per_token": full,
                "ratio": full / per_token,
                "ratio_at_window": window * full / at_window,
            }
        )
    return result


def bytes_at_window(row):
    """Bytes of a token at the window's length, everything counted."""
    return row["full_bytes_per_token"] / row["ratio_at_window"]


def table(entries):
    """Markdown lines of rows."""
    lines = [
        "| cache | bytes per token at the window's length | ratio there | ratio of a long sequence "
        "| perplexity | mean KL | 99 % below | top-1 |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in sorted(entries, key=bytes_at_window, reverse=True):
        lines.append(
            f"| {row['cache']} | {bytes_at_window(row):,.0f} | {row['ratio_at_window']:.2f} "
            f"| {row['ratio']:.2f} | {row['perplexity']:.2f} | {row['kl_mean']:.4f} "
            f"| {row['kl_p99']:.3f} | {row['top1']:.3f} |"
        )
    return lines


def main():
    if len(sys.argv) < 3 or sys.argv[1] not in ("rows", "table"):
        sys.exit(__doc__)
    lines = [line for path in sys.argv[2:] for line in read_lines(pathlib.Path(path))]
    print(
        "\n".join(map(json.dumps, rows(lines)))
        if sys.argv[1] == "rows"
        else "\n".join(table(lines))
    )


if __name__ == "__main__":
    main()
