"""Token windows of a text, without a start token."""

import pathlib

import numpy as np
import torch


class Text:
    """The tokenizer of a Hugging Face folder or a GGUF file."""

    def __init__(self, model):
        model = pathlib.Path(model)
        if (model / "tokenizer.json").exists():
            from tokenizers import Tokenizer

            tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
            self._encode = lambda content: tokenizer.encode(content, add_special_tokens=False).ids
            self._decode = lambda ids: tokenizer.decode(ids, skip_special_tokens=False)
        else:
            from transformers import AutoTokenizer

            tokenizer = AutoTokenizer.from_pretrained(model.parent, gguf_file=model.name)
            self._encode = lambda content: tokenizer(content, add_special_tokens=False)["input_ids"]
            self._decode = lambda ids: tokenizer.decode(ids, clean_up_tokenization_spaces=False)

    def ids(self, path):
        """The ids of a text file [tokens]."""
        return torch.tensor(
            self._encode(pathlib.Path(path).read_bytes().decode("utf-8", "replace"))
        )

    def text(self, ids):
        return self._decode([int(i) for i in ids])


def tokenize(model, path):
    """The ids of a text file [tokens] by the model's tokenizer. A .npy file holds ids already."""
    return (
        torch.from_numpy(np.load(path)).long()
        if str(path).endswith(".npy")
        else Text(model).ids(path)
    )


def starts(length, window, count):
    """Where `count` windows of a text of `length` tokens start: (length - window) * i / (count -
    1), rounded down. ValueError when too short."""
    if length < window:
        raise ValueError(f"a window of {window} tokens does not fit a text of {length}")
    return [(length - window) * i // (count - 1) if count > 1 else 0 for i in range(count)]


def evenly_spaced(ids, window, count):
    """`count` windows [window] of the ids, at `starts`."""
    return [ids[start : start + window] for start in starts(len(ids), window, count)]
