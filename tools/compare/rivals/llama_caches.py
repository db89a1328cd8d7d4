#!/usr/bin/env python3
"""Checks the simulated llama.cpp caches against llama-perplexity itself, on the same windows.

    python3 llama_caches.py --llama DIR --model M.gguf --text wiki.test.raw --out llama.jsonl \
        [--lines lines.jsonl] [--only 0 5 ...]

llama-perplexity counts the second half of a window, so that half is compared, KL against its own
f16 cache. Its tokens are read from its base file: `different_tokens` says how many of the window's
it saw otherwise. With --lines, the same half of measure.py's lines is printed beside it.
"""

import argparse
import json
import os
import pathlib
import re
import struct
import subprocess
import sys
import tempfile

import numpy as np

import windows
from measure import lines_of, open_lines

CACHES = {
    "llama-q8_0": ("q8_0", {}),
    "llama-q4_0": ("q4_0", {}),
    "llama-q4_0-not-rotated": ("q4_0", {"LLAMA_ATTN_ROT_DISABLE": "1"}),
}


def base_tokens(path):
    """The ids in a base file of llama-perplexity: "_logits_", n_ctx, n_vocab, n_chunk (int32 each),
    n_ctx * n_chunk ids."""
    with open(path, "rb") as file:
        magic, context, _, chunks = struct.unpack("<8s3i", file.read(20))
        if magic != b"_logits_":
            raise ValueError(f"{path} begins with {magic}, not _logits_")
        return np.frombuffer(file.read(4 * context * chunks), "<i4")


def figures(text):
    """Perplexity, mean KL, its 99th percentile and top-1 from llama-perplexity's output."""
    patterns = {
        "perplexity": r"Mean PPL\(Q\) +: +([\d.]+)",
        "kl_mean": r"Mean +KLD: +([-\d.]+)",
        "kl_p99": r"99\.0% +KLD: +([-\d.]+)",
        "top1": r"Same top p: +([\d.]+)",
    }
    found = {key: float(re.search(pattern, text)[1]) for key, pattern in patterns.items()}
    return {**found, "top1": found["top1"] / 100}


def run(args, arguments, variables):
    command = [
        f"{args.llama}/llama-perplexity",
        "-m",
        args.model,
        "-c",
        str(args.window),
        "-b",
        str(args.window),
        "-t",
        str(args.threads),
        "-fa",
        "on",
        *arguments,
    ]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **variables})
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\nexited with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout + done.stderr


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--llama", required=True, help="folder of llama-perplexity")
    parser.add_argument("--model", required=True, help="GGUF file")
    parser.add_argument(
        "--tokenizer", help="Hugging Face folder with the tokenizer; without it the GGUF file's"
    )
    parser.add_argument("--text", required=True)
    parser.add_argument(
        "--out",
        required=True,
        type=pathlib.Path,
        help="JSON lines, appended to; what is there is skipped",
    )
    parser.add_argument("--lines", type=pathlib.Path, help="measure.py's lines")
    parser.add_argument("--window", type=int, default=2048)
    parser.add_argument("--windows", type=int, default=16)
    parser.add_argument("--only", type=int, nargs="*")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    tokenizer = windows.Text(args.tokenizer or args.model)
    ids = tokenizer.ids(args.text)
    starts = windows.starts(len(ids), args.window, args.windows)
    done = {(line["rival"], line["number"]) for line in lines_of(args.out, args)}
    for number in args.only if args.only is not None else range(args.windows):
        missing = [rival for rival in CACHES if (rival, number) not in done]
        if not missing:
            continue
        with tempfile.TemporaryDirectory() as folder, open_lines(args.out) as out:
            start = starts[number]
            # It wants two windows of text and evaluates the first; a text's end is followed by its
            # beginning.
            ids_there = np.concatenate([ids[start:], ids])[: 2 * args.window + 64]
            pathlib.Path(folder, "text").write_text(tokenizer.text(ids_there))
            base = f"{folder}/base"
            run(args, ["-f", f"{folder}/text", "--chunks", "1", "--kl-divergence-base", base], {})
            different = int(
                (base_tokens(base) != np.asarray(ids[start : start + args.window])).sum()
            )
            for rival in missing:
                cache, variables = CACHES[rival]
                text = run(
                    args,
                    ["--kl-divergence", "--kl-divergence-base", base, "-ctk", cache, "-ctv", cache],
                    variables,
                )
                line = {
                    "model": pathlib.Path(args.model).stem,
                    "rival": rival,
                    "windows": args.windows,
                    "number": number,
                    "window": args.window,
                    "different_tokens": different,
                    **figures(text),
                }
                out.write(json.dumps(line) + "\n")
                out.flush()
    simulated = {
        (line["rival"], line["number"]): line["second_half"]
        for line in (lines_of(args.lines, args) if args.lines else [])
    }
    for line in lines_of(args.out, args):
        half = simulated.get((line["rival"], line["number"]))
        beside = (
            f"; simulated KL {half['kl'] / half['tokens']:.5f}, "
            f"top-1 {half['top1'] / half['tokens']:.4f}"
            if half
            else ""
        )
        print(
            f"window {line['number']}, {line['rival']}: {line['different_tokens']} other tokens; "
            f"KL {line['kl_mean']:.5f}, "
            f"top-1 {line['top1']:.4f}{beside}"
        )


if __name__ == "__main__":
    main()
