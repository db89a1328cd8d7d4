"""Token windows of a text, without a start token."""

import pathlib

import numpy as np
import torch


def tokenize(model, text):
    """The ids of a text file [tokens], by the tokenizer of a Hugging Face folder or GGUF file. A .npy file holds ids already."""
    text, model = pathlib.Path(text), pathlib.Path(model)
    if text.suffix == ".npy":
        return torch.from_numpy(np.load(text)).long()
    content = text.read_bytes().decode("utf-8", "replace")
    if (model / "tokenizer.json").exists():
        from tokenizers import Tokenizer

        ids = Tokenizer.from_file(str(model / "tokenizer.json")).encode(content, add_special_tokens=False).ids
    else:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(model.parent, gguf_file=model.name)
        ids = tokenizer(content, add_special_tokens=False)["input_ids"]
    return torch.tensor(ids)


def evenly_spaced(ids, window, count):
    """`count` windows [window] whose starts are (length - window) * i / (count - 1), rounded down. ValueError when too short."""
    if len(ids) < window:
        raise ValueError(f"a window of {window} tokens does not fit a text of {len(ids)}")
    room = len(ids) - window
    starts = [room * i // (count - 1) if count > 1 else 0 for i in range(count)]
    return [ids[start : start + window] for start in starts]
