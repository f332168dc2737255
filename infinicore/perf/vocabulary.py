"""Vocabularies of GGUF files: a server needs one, whatever the weights. SentencePiece's kind, bytes included.

Keys and types: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, section `tokenizer.ggml`.
"""

import json
import struct
from pathlib import Path

_UNKNOWN, _CONTROL, _BYTE, _NORMAL = 2, 3, 6, 1
_UINT32, _INT32, _FLOAT32, _STRING, _ARRAY = 4, 5, 6, 8, 9
_SPECIAL = ["<unk>", "<s>", "</s>"]


def made_up(count):
    """`count` pieces: three special ones, the bytes, and words that nothing can be joined to."""
    if count < 300:
        raise ValueError(f"a vocabulary needs at least 300 pieces, got {count}")
    tokens = [*_SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256))]
    letters = "abcdefghijklmnopqrstuvwxyz"
    for index in range(count - len(tokens)):
        word = ""
        for _ in range(4):
            index, letter = divmod(index, 26)
            word = letters[letter] + word
        tokens.append(f"▁{word}")
    return tokens, [float(-index) for index in range(count)]


def of_tokenizer(path):
    """(pieces, scores) of a Llama's tokenizer.json: a piece's score is the rank of the merge that makes it."""
    model = json.loads(Path(path).read_text(encoding="utf-8"))["model"]
    ranks = {}
    for rank, pair in enumerate(model["merges"]):
        ranks.setdefault("".join(pair if isinstance(pair, list) else pair.split(" ")), -float(rank))
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    return tokens, [ranks.get(token, -1e6) for token in tokens]


def _type(token):
    if token in _SPECIAL:
        return _UNKNOWN if token == "<unk>" else _CONTROL
    return _BYTE if len(token) == 6 and token.startswith("<0x") else _NORMAL


def metadata(tokens, scores):
    """(number of keys, their bytes) of the section `tokenizer.ggml`."""

    def text(value):
        raw = value.encode()
        return struct.pack("<Q", len(raw)) + raw

    def array(key, kind, values, raw):
        return text(f"tokenizer.ggml.{key}") + struct.pack("<IIQ", _ARRAY, kind, len(values)) + raw

    count, types = len(tokens), [_type(token) for token in tokens]
    out = [
        text("tokenizer.ggml.model") + struct.pack("<I", _STRING) + text("llama"),
        array("tokens", _STRING, tokens, b"".join(map(text, tokens))),
        array("scores", _FLOAT32, scores, struct.pack(f"<{count}f", *scores)),
        array("token_type", _INT32, types, struct.pack(f"<{count}i", *types)),
    ]
    for key, index in (("unknown_token_id", 0), ("bos_token_id", 1), ("eos_token_id", 2)):
        out.append(text(f"tokenizer.ggml.{key}") + struct.pack("<II", _UINT32, index))
    return len(out), b"".join(out)
