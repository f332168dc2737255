"""The tokenizer inside a GGUF file, built as a tokenizer of the package `tokenizers`.

Keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, section `tokenizer.ggml`. Two models are read:
    "llama"  SentencePiece's BPE (Sennrich et al., arXiv 1508.07909): a list of pieces with scores, bytes for what has
             no piece. It joins the neighbours whose piece has the highest score, so merges are ranked by score.
    "gpt2"   byte-level BPE with a list of merges; `tokenizer.ggml.pre` names how text is split first.
"""

from ..interop.tokenizers import Guard
from ..io.gguf import GGUFFile

_NORMAL, _UNKNOWN, _CONTROL, _USER = 1, 2, 3, 4  # of tokenizer.ggml.token_type; 5 is unused, 6 a byte

# Patterns of the models' own tokenizers, by `tokenizer.ggml.pre`.
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_SPLITS = {
    "default": (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"),
    "gpt-2": (_GPT2,),
    "llama-bpe": (_WORDS + r"\p{N}{1,3}" + _REST,),
    "qwen2": (_WORDS + r"\p{N}" + _REST,),
    "smollm": (r"\p{N}", _GPT2),
    "tekken": (
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|"
        r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
}
_SAME = {"llama3": "llama-bpe", "llama-v3": "llama-bpe", "deepseek-r1-qwen": "qwen2"}
_WHOLE_WORDS = ("llama-bpe", "tekken")  # a word that is a token needs no merges


class _Reader:
    """`tokenizer.ggml` of a file, checked."""

    def __init__(self, file):
        self.path, self.metadata = file.path, file.metadata
        self.tokens = self.strings("tokens")
        count = len(self.tokens)
        self.types = self.numbers("token_type", count)
        self.type_of = dict.fromkeys(self.tokens, _NORMAL) | dict(zip(self.tokens, self.types or ()))

    def get(self, key, kind, default=None):
        value = self.metadata.get(f"tokenizer.ggml.{key}", default)
        if value is not default and type(value) is not kind:
            words = {str: "a text", int: "an integer", bool: "true or false"}[kind]
            raise ValueError(f"{self.path}: `tokenizer.ggml.{key}` must be {words}, got {str(value)[:100]!r}")
        return value

    def strings(self, key):
        value = self.metadata.get(f"tokenizer.ggml.{key}")
        if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
            raise ValueError(f"{self.path}: `tokenizer.ggml.{key}` must be an array of texts")
        return value

    def numbers(self, key, count):
        """An array with a number for each token as a list, or None."""
        value = self.metadata.get(f"tokenizer.ggml.{key}")
        if value is not None and (not hasattr(value, "tolist") or len(value) != count):
            raise ValueError(f"{self.path}: `tokenizer.ggml.{key}` must be an array of {count} numbers, one per token")
        return None if value is None else value.tolist()

    def token(self, key):
        """The text of the token that a key names by its id, or None."""
        index = self.get(f"{key}_token_id", int)
        if index is None:
            return None
        if not 0 <= index < len(self.tokens):
            raise ValueError(
                f"{self.path}: `tokenizer.ggml.{key}_token_id` is {index}, and the vocabulary has {len(self.tokens)}"
            )
        return self.tokens[index]

    def vocabulary(self):
        """Text to id; of equal texts the first counts."""
        found = {}
        for index, text in enumerate(self.tokens):
            found.setdefault(text, index)
        return found


def has_tokenizer(file):
    """Whether an open `GGUFFile` has a tokenizer."""
    return "tokenizer.ggml.tokens" in file.metadata and file.metadata.get("tokenizer.ggml.model") != "none"


def build(file):
    """The `tokenizers.Tokenizer` of an open `GGUFFile`.

    Raises ValueError for metadata that is missing or damaged, NotImplementedError for another kind of tokenizer.
    """
    reader = _Reader(file)
    model = reader.get("model", str)
    if model not in ("llama", "gpt2"):
        raise NotImplementedError(
            f"{file.path}: `tokenizer.ggml.model` {model!r} is not supported, only llama and gpt2"
        )
    with Guard(file.path):
        backend = _llama(reader) if model == "llama" else _gpt2(reader)
        _add_special(reader, backend)
    return backend


def config(file):
    """What a tokenizer_config.json would say, of an open `GGUFFile`."""
    if not has_tokenizer(file):
        return {}
    reader = _Reader(file)
    names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    found = {ours: reader.token(theirs) for ours, theirs in names.items()}
    template = file.metadata.get("tokenizer.chat_template")
    if template is not None and not isinstance(template, str):
        raise ValueError(f"{file.path}: `tokenizer.chat_template` must be a text, got {str(template)[:100]!r}")
    found["chat_template"] = template
    return {key: value for key, value in found.items() if value is not None}


def load_config(path):
    """`config` of the file at `path`."""
    with GGUFFile(path) as file:
        return config(file)


# ---- models -----------------------------------------------------------------------------------


def _merges(vocabulary, scores, usable):
    """Pairs of pieces that join to a piece, the highest score first.

    Pieces of equal score keep the order of the vocabulary, and the splits of one piece that of their parts' ids.
    """
    ranked = []
    for text, index in vocabulary.items():
        if len(text) < 2 or not usable(text):
            continue
        splits = [(text[:at], text[at:]) for at in range(1, len(text))]
        splits = [(a, b) for a, b in splits if a in vocabulary and b in vocabulary and usable(a) and usable(b)]
        splits.sort(key=lambda pair: (vocabulary[pair[0]], vocabulary[pair[1]]))
        ranked += [(-scores[index], pair) for pair in splits]
    ranked.sort(key=lambda row: row[0])
    return [pair for _, pair in ranked]


def _llama(reader):
    from tokenizers import Tokenizer, decoders, models, normalizers

    vocabulary = reader.vocabulary()
    scores = reader.numbers("scores", len(reader.tokens))
    if scores is None:
        raise ValueError(f"{reader.path} lacks the metadata `tokenizer.ggml.scores`")
    types = reader.type_of
    merges = _merges(vocabulary, scores, lambda text: types[text] in (_NORMAL, _USER))
    unknown = reader.token("unknown") or next((text for text in vocabulary if types[text] == _UNKNOWN), None)
    backend = Tokenizer(models.BPE(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    prefix = reader.get("add_space_prefix", bool, True)
    spaces = [normalizers.Prepend("▁")] if prefix else []
    backend.normalizer = normalizers.Sequence([*spaces, normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, *([decoders.Strip(" ", 1, 0)] if prefix else [])])
    return backend


def _gpt2(reader):
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    pre = reader.get("pre", str, "default")
    pre = _SAME.get(pre, pre)
    if pre not in _SPLITS:
        raise NotImplementedError(
            f"{reader.path}: `tokenizer.ggml.pre` {pre[:100]!r} is not supported, only {', '.join((*_SPLITS, *_SAME))}"
        )
    vocabulary = reader.vocabulary()
    merges = [tuple(line.split(" ")) for line in reader.strings("merges")]
    wrong = next((pair for pair in merges if len(pair) != 2 or "".join(pair) not in vocabulary), None)
    if wrong is not None:
        raise ValueError(
            f"{reader.path}: `tokenizer.ggml.merges` holds {' '.join(wrong)[:100]!r}, not two parts of a token"
        )
    backend = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=pre in _WHOLE_WORDS))
    if pre == "qwen2":
        backend.normalizer = normalizers.NFC()
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in _SPLITS[pre]]
    bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([*splits, bytes_only])
    backend.decoder = decoders.ByteLevel()
    return backend


def _add_special(reader, backend):
    """Tokens that are never split, and those that are put before and after a text."""
    from tokenizers import AddedToken, processors

    kinds = {text: reader.type_of[text] for text in reader.vocabulary()}
    named = {reader.token(key) for key in ("bos", "eos", "eot")}
    special = [text for text, kind in kinds.items() if text and (kind in (_CONTROL, _UNKNOWN) or text in named)]
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    own = [text for text, kind in kinds.items() if text and kind == _USER and text not in named]
    backend.add_tokens([AddedToken(text, special=False, normalized=False) for text in own])
    model, pre = reader.get("model", str), reader.get("pre", str, "")
    bos, eos = reader.token("bos"), reader.token("eos")
    default = model == "llama" or _SAME.get(pre, pre) in ("llama-bpe", "tekken")  # as llama.cpp assumes
    first = bos if bos and reader.get("add_bos_token", bool, default) else None
    last = eos if eos and reader.get("add_eos_token", bool, False) else None
    if first or last:
        pieces = [f"{first}:0"] * bool(first) + ["$A:0"] + [f"{last}:0"] * bool(last)
        ids = [(text, backend.token_to_id(text)) for text in dict.fromkeys((first, last)) if text]
        backend.post_processor = processors.TemplateProcessing(single=pieces, special_tokens=ids)
