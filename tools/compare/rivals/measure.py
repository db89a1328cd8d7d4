#!/usr/bin/env python3
"""Measures rival caches on windows of a text: one JSON line per rival and window, appended to
--out; what is there is skipped.

    python3 measure.py --model DIR|M.gguf --text wiki.test.raw \
        --calibration wiki.utf8 c4.utf8 code.utf8 --out lines.jsonl

Every token but a window's first is predicted and counted. KL is in nats, of the uncompressed model
to the rival, both fp32. Attention is causal, and the query at position n sees what the rival's
cache would hold when token n is decoded.
"""

import argparse
import json
import math
import pathlib
import sys
import time

import torch

import caches
import calibration
import decoder
import windows

CHUNK = 256  # rows whose distributions are compared at once


def rivals(model):
    """id -> (what it needs: "", "moments" or "gradients"; how to make it from the calibration)."""
    table = {"full": ("", lambda c: caches.Uncompressed(model))}
    for bits in (8, 4, 3, 2):
        table[f"int{bits}"] = ("", lambda c, b=bits: caches.Rotated(model, b))
        if model.has_bias:
            table[f"int{bits}-bias-in"] = (
                "",
                lambda c, b=bits: caches.Rotated(model, b, bias_out=False),
            )
        table[f"int{bits}-mean-out-sinks"] = (
            "moments",
            lambda c, b=bits: caches.Rotated(model, b, calibration=c, sinks=calibration.SINKS),
        )
        table[f"int{bits}-per-head-sinks"] = (
            "",
            lambda c, b=bits: caches.Rotated(model, b, sinks=calibration.SINKS, per_head=True),
        )
    for keep in (70, 50):
        for allocation, needs in (("uniform", "moments"), ("fisher-rms", "gradients")):
            table[f"palu-{keep}-4-{allocation}"] = (
                needs,
                lambda c, k=keep, a=allocation: caches.Palu(model, c, k / 100, 4, a),
            )
    table["palu-50-2-uniform"] = ("moments", lambda c: caches.Palu(model, c, 0.5, 2, "uniform"))
    for bits in (4, 2):
        for residual in (128, 32):
            table[f"kivi-{bits}-r{residual}"] = (
                "",
                lambda c, b=bits, r=residual: caches.Kivi(model, b, r),
            )
    for bits in (4, 3, 2):
        for outliers in (0.01, 0):
            name = f"kvquant-{bits}" + ("-outliers" if outliers else "")
            table[name] = ("moments", lambda c, b=bits, o=outliers: caches.KvQuant(model, c, b, o))
    for bits in (8, 4):
        table[f"llama-q{bits}_0"] = ("", lambda c, b=bits: caches.LlamaCpp(model, b))
    table["llama-q4_0-not-rotated"] = ("", lambda c: caches.LlamaCpp(model, 4, rotated=False))
    return table


def compare(model, ids, full, hidden, largest):
    """Sums over a window's predicted tokens; `second_half` counts as llama-perplexity does."""
    targets = ids[1:, None].to(model.device)
    kl, nll, top = [], [], []
    for row in range(0, len(targets), CHUNK):
        p, q = full[row : row + CHUNK], model.log_probs(hidden[row : row + CHUNK])
        kl.append((p.exp() * (p - q)).sum(-1).double())
        nll.append(-q.gather(1, targets[row : row + CHUNK])[:, 0].double())
        top.append(p.argmax(-1) == q.argmax(-1))
    kl, nll, top = torch.cat(kl), torch.cat(nll), torch.cat(top)
    half = len(ids) // 2
    return {
        "tokens": len(kl),
        "nll": nll.sum().item(),
        "kl": kl.sum().item(),
        "top1": top.sum().item(),
        "second_half": {
            "tokens": len(kl) - half,
            "nll": nll[half:].sum().item(),
            "kl": kl[half:].sum().item(),
            "top1": top[half:].sum().item(),
        },
        "kl_largest": [
            float(f"{value:.5g}") for value in kl.sort(descending=True).values[:largest].tolist()
        ],
    }


def read_lines(path):
    """The JSON lines of a file that may not exist; a last line cut off by a kill is left out."""
    lines = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            lines.append(json.loads(line))
        except json.JSONDecodeError:
            print(f"{path}: a line that is no JSON is left out", file=sys.stderr)
    return lines


def lines_of(path, args):
    """The lines of a file that are of these arguments' model and windows."""
    same = (pathlib.Path(args.model).stem, args.windows, args.window)
    return [
        line
        for line in read_lines(path)
        if (line["model"], line["windows"], line["window"]) == same
    ]


def open_lines(path):
    """The file, to append lines to; a line that a kill cut off is ended."""
    cut = path.exists() and path.stat().st_size > 0 and not path.read_bytes().endswith(b"\n")
    file = open(path, "a")
    if cut:
        file.write("\n")
    return file


def calibrated(args, model, needs):
    """The calibration for what is needed, from --calibration-cache when that file is there (and is
    of the same model, texts and windows)."""
    if not needs - {""}:
        return None
    of = {
        "model": pathlib.Path(args.model).stem,
        "texts": [str(path) for path in args.calibration],
        "windows": [args.calibration_windows, args.calibration_window],
        "gradients": not args.no_gradients,
    }
    if args.calibration_cache and args.calibration_cache.exists():
        kept = torch.load(args.calibration_cache, weights_only=False, map_location=model.device)
        if getattr(kept, "of", None) != of:
            sys.exit(
                f"{args.calibration_cache} is a calibration of {getattr(kept, 'of', 'unknown')}, "
                f"now {of}"
            )
        return kept
    if not args.calibration:
        sys.exit("the chosen rivals are calibrated: --calibration needs files")
    per_file = [
        args.calibration_windows * (i + 1) // len(args.calibration)
        - args.calibration_windows * i // len(args.calibration)
        for i in range(len(args.calibration))
    ]
    chosen = []
    for path, count in zip(args.calibration, per_file):
        chosen += windows.evenly_spaced(
            windows.tokenize(args.model, path), args.calibration_window, count
        )
    result = calibration.calibrate(model, chosen, gradients=not args.no_gradients)
    result.of = of
    if args.calibration_cache:
        torch.save(result, args.calibration_cache)
    return result


def measure(args, model, number, ids, named, out):
    """Writes a line for each of the caches `named` (id -> cache) on window `number`."""
    largest = math.ceil(0.01 * (args.window - 1) * args.windows) + 1
    hidden = model.hidden(ids)[:-1]
    full = torch.cat(
        [model.log_probs(hidden[row : row + CHUNK]) for row in range(0, len(hidden), CHUNK)]
    )
    for name, cache in named.items():
        begin = time.time()
        cache.begin_window()
        sums = compare(model, ids, full, model.hidden(ids, cache)[:-1], largest)
        line = {
            "model": pathlib.Path(args.model).stem,
            "rival": name,
            "cache": cache.name,
            "family": cache.family,
            "windows": args.windows,
            "number": number,
            "window": args.window,
            "bytes_per_token": cache.bytes_per_token(),
            "bytes_at_window": cache.bytes_at(args.window),
            "full_bytes_per_token": cache.full_bytes,
            **sums,
        }
        out.write(json.dumps(line) + "\n")
        out.flush()
        print(
            f"window {number}, {cache.name}: "
            f"perplexity {math.exp(sums['nll'] / sums['tokens']):.3f}, "
            f"KL {sums['kl'] / sums['tokens']:.5f}, "
            f"{line['bytes_at_window'] / args.window:.0f} B/token, {time.time() - begin:.1f} s",
            file=sys.stderr,
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--model", required=True, help="Hugging Face folder or GGUF file: llama or qwen2"
    )
    parser.add_argument("--text", required=True, help="text, or its ids as .npy")
    parser.add_argument("--out", required=True, type=pathlib.Path, help="JSON lines, appended to")
    parser.add_argument(
        "--calibration",
        nargs="*",
        default=[],
        help="texts, or their ids as .npy, used in equal parts",
    )
    parser.add_argument("--calibration-windows", type=int, default=48)
    parser.add_argument("--calibration-window", type=int, default=1024)
    parser.add_argument(
        "--calibration-cache",
        type=pathlib.Path,
        help="file that keeps the calibration between runs",
    )
    parser.add_argument(
        "--no-gradients",
        action="store_true",
        help="calibrate without a backward pass: no fisher-rms, and k-means without weights",
    )
    parser.add_argument("--window", type=int, default=2048)
    parser.add_argument("--windows", type=int, default=16)
    parser.add_argument(
        "--only", type=int, nargs="*", help="numbers of the windows to run, of --windows"
    )
    parser.add_argument(
        "--rivals", nargs="*", help="ids; without it all; `--rivals list` prints them"
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.backends.cuda.matmul.allow_tf32 = False

    model = decoder.load(args.model, args.device)
    table = rivals(model)
    if args.rivals == ["list"]:
        print(
            "\n".join(f"{name}: {needs or 'no calibration'}" for name, (needs, _) in table.items())
        )
        return
    chosen = args.rivals or [
        name for name, (needs, _) in table.items() if needs != "gradients" or not args.no_gradients
    ]
    unknown = [name for name in chosen if name not in table]
    if unknown:
        sys.exit(f"unknown rivals {unknown}; known are {list(table)}")
    done = {(line["rival"], line["number"]) for line in lines_of(args.out, args)}
    numbers = args.only if args.only is not None else range(args.windows)
    missing = [
        (name, number) for number in numbers for name in chosen if (name, number) not in done
    ]
    learned = calibrated(args, model, {table[name][0] for name, _ in missing})
    made = {}
    for name in chosen:
        if any(name == other for other, _ in missing):
            made[name] = table[name][1](learned)
    del learned

    texts = []
    if missing:
        ids = windows.tokenize(args.model, args.text)
        texts = windows.evenly_spaced(ids, args.window, args.windows)
    with torch.no_grad(), open_lines(args.out) as out:
        for number in numbers:
            names = [name for name, other in missing if other == number]
            if names:
                measure(
                    args, model, number, texts[number], {name: made[name] for name in names}, out
                )


if __name__ == "__main__":
    main()
