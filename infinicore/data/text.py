"""Texts to tokens: training a byte-level BPE tokenizer, tokens of single characters, and token files of texts."""

import json
import os
import tempfile
from pathlib import Path

import numpy as np

from ..interop.tokenizers import Guard, check_text, read
from .tokens import TokenDataset, TokenFile, TokenWriter

END_OF_TEXT = "<|endoftext|>"
_BATCH = 1 << 20  # characters that are encoded together


def _texts(sources):
    """The texts of `sources`, one after another: a str is a text, a `Path` the name of a UTF-8 file."""
    if isinstance(sources, (str, os.PathLike)):
        sources = [sources]
    for source in sources:
        if isinstance(source, os.PathLike):
            yield Path(source).read_text(encoding="utf-8")
        elif isinstance(source, str):
            if len(source) < 256 and "\n" not in source and os.path.isfile(source):
                raise ValueError(f"`sources` holds the text {source!r}, which names a file; pass Path({source!r})")
            yield source
        else:
            raise TypeError(f"`sources` must be texts (str) or files (Path), got {type(source).__name__}")


def _write(path, text):
    """Write a file so that a reader sees all of it or none."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8", newline="\n") as file:
        try:
            file.write(text)
            file.close()
            os.chmod(file.name, 0o644)
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise


def _save(backend, folder, config):
    """Write tokenizer.json and tokenizer_config.json; returns the folder's path."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / "tokenizer.json", backend.to_str(pretty=True))
    _write(folder / "tokenizer_config.json", json.dumps(config, indent=2, ensure_ascii=False) + "\n")
    return folder


class _FolderTokenizer:
    """The tokenizer of a Hugging Face folder, as far as `tokenize` needs it."""

    def __init__(self, folder):
        folder = Path(folder)
        self.path = folder / "tokenizer.json" if folder.is_dir() else folder
        if not self.path.is_file():
            raise FileNotFoundError(f"there is no tokenizer {self.path}; make one with `train_tokenizer`")
        self._backend, self._guard = read(self.path), Guard(self.path)
        self._backend.no_truncation()
        config = self.path.with_name("tokenizer_config.json")
        config = json.loads(config.read_text(encoding="utf-8")) if config.is_file() else {}
        token = config.get("eos_token")
        token = token.get("content") if isinstance(token, dict) else token
        self.eos_token_id = self._backend.token_to_id(token) if token else None

    def __len__(self):
        return self._backend.get_vocab_size()

    def encode(self, text, add_special_tokens=True):
        with self._guard:
            return self._backend.encode(check_text(text, "text"), add_special_tokens=add_special_tokens).ids

    def encode_batch(self, texts):
        texts = [check_text(text, "sources") for text in texts]
        with self._guard:
            return [found.ids for found in self._backend.encode_batch(texts, add_special_tokens=False)]


def _encoded(texts, tokenizer):
    """The ids of each text, in order."""
    path = getattr(tokenizer, "path", None)
    if isinstance(tokenizer, _FolderTokenizer) or (path is not None and Path(path).name == "tokenizer.json"):
        # Together, texts are encoded by all cores; a token takes some 100 bytes until it is written.
        backend, batch, size = _FolderTokenizer(path), [], 0
        for text in texts:
            batch.append(text)
            size += len(text)
            if size >= _BATCH:
                yield from backend.encode_batch(batch)
                batch, size = [], 0
        yield from backend.encode_batch(batch)
    elif hasattr(tokenizer, "encode_array"):
        yield from map(tokenizer.encode_array, texts)
    else:
        yield from (tokenizer.encode(text, add_special_tokens=False) for text in texts)


def train_tokenizer(sources, vocab_size, folder, special_tokens=(END_OF_TEXT,), *, pattern=None, min_frequency=2):
    """Train a byte-level BPE tokenizer and save it as a Hugging Face folder; returns the folder's path.

    `sources` are texts (str) and files (`Path`). The vocabulary has the special tokens first, then the 256 bytes, then
    merges of pairs that occur `min_frequency` times or more, up to `vocab_size` in all (fewer if the texts have no
    more). `special_tokens` is a list, whose first is the end-of-text token (bos and eos, as GPT-2's), or a dict as
    {"bos_token": ..., "eos_token": ..., "pad_token": ...} that says what each is for. `pattern` is a regular
    expression that cuts texts into words (default: GPT-2's). The same texts give the same file.

    Raises ValueError for a `vocab_size` that does not hold the bytes and special tokens. Algorithm: Sennrich et al.,
    arXiv 1508.07909, on bytes.
    """
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, processors, trainers

    if isinstance(special_tokens, dict):
        roles, special = dict(special_tokens), list(dict.fromkeys(special_tokens.values()))
    else:
        special = list(special_tokens)
        roles = {"bos_token": special[0], "eos_token": special[0]} if special else {}
    if vocab_size < 256 + len(special):
        raise ValueError(f"`vocab_size` {vocab_size} must be {256 + len(special)} or more: bytes and special tokens")
    backend = tokenizers.Tokenizer(models.BPE())
    bytes_of_words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None)
    if pattern is None:
        backend.pre_tokenizer = bytes_of_words
    else:
        try:
            words = pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated")
        except Exception as error:  # the package raises plain Exception
            raise ValueError(f"`pattern` {pattern!r} is no regular expression: {error}") from None
        backend.pre_tokenizer = pre_tokenizers.Sequence([words, bytes_of_words])
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        special_tokens=special,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator((check_text(text, "sources") for text in _texts(sources)), trainer)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "add_prefix_space": False,
        **roles,
    }
    return _save(backend, folder, config)


class CharTokenizer:
    """One token for each character of a text, in the order of their code points; with the methods of `lm.Tokenizer`."""

    bos_token_id = eos_token_id = None

    def __init__(self, text):
        self.characters = "".join(sorted(set(text)))
        if not self.characters:
            raise ValueError("`text` of CharTokenizer must have at least one character")
        self._points = self._codes(self.characters)

    @staticmethod
    def _codes(text):
        return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")

    def __len__(self):
        return len(self.characters)

    def encode_array(self, text):
        """Token ids of a text as an int64 array; ValueError for a character that the vocabulary has not."""
        codes = self._codes(text)
        found = np.searchsorted(self._points, codes).clip(max=len(self._points) - 1)
        wrong = self._points[found] != codes
        if wrong.any():
            raise ValueError(f"`text` has the character {chr(codes[wrong][0])!r}, which the vocabulary has not")
        return found

    def encode(self, text, add_special_tokens=True):
        """Token ids of a text as a list; there are no special tokens to add."""
        return self.encode_array(text).tolist()

    def decode(self, ids, skip_special_tokens=True):
        """The text of token ids."""
        return "".join(self.characters[i] for i in ids)

    def save(self, folder):
        """Write tokenizer.json and tokenizer_config.json, as a Hugging Face folder; returns its path."""
        import tokenizers
        from tokenizers import decoders, models, pre_tokenizers

        vocabulary = {character: i for i, character in enumerate(self.characters)}
        backend = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token=None))
        backend.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex(r"[\s\S]"), "isolated")
        backend.decoder = decoders.Fuse()
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
        return _save(backend, folder, config)


def character_datasets(source, sequence_length, validation=0.1, stride=1):
    """A text (str, or `Path` of a file) for a character model: (training set, validation set, `CharTokenizer`).

    The sets are `TokenDataset`s of the text's beginning and of its last part, whose share `validation` is.
    """
    if not 0 < validation < 1:
        raise ValueError(f"`validation` must be between 0 and 1, got {validation}")
    text = "".join(_texts(source))
    tokenizer = CharTokenizer(text)
    ids = tokenizer.encode_array(text).astype(np.uint32)
    border = int(len(ids) * (1 - validation))
    parts = [TokenDataset(part, sequence_length, stride) for part in (ids[:border], ids[border:])]
    return *parts, tokenizer


def tokenize(sources, tokenizer, path, *, end_of_text=None, format="infinicore", metadata=None):
    """Write the tokens of texts to a token file; returns its `TokenFile`.

    `sources` are texts (str) and files (`Path`); each is a document, followed by the token `end_of_text` (a text or
    an id; default: the tokenizer's eos token, none if it has none). `tokenizer` is an `lm.Tokenizer`, a
    `CharTokenizer`, or the path of a Hugging Face folder. The file holds the tokenizer's hash and vocabulary size.
    """
    if isinstance(tokenizer, (str, os.PathLike)):
        tokenizer = _FolderTokenizer(tokenizer)
    if end_of_text is None:
        end_of_text = tokenizer.eos_token_id
    elif isinstance(end_of_text, str):
        ids = tokenizer.encode(end_of_text, add_special_tokens=False)
        if len(ids) != 1:
            raise ValueError(
                f"`end_of_text` {end_of_text!r} must be one token, and the tokenizer makes {len(ids)} of it"
            )
        end_of_text = ids[0]
    with TokenWriter(path, vocab_size=len(tokenizer), tokenizer=tokenizer, format=format, metadata=metadata) as writer:
        for ids in _encoded(_texts(sources), tokenizer):
            writer.write(ids)
            if end_of_text is not None:
                writer.write([end_of_text])
    return TokenFile(path)
