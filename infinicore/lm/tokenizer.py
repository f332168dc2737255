"""Text to token ids and back: a tokenizer.json or the tokenizer of a GGUF file, and decoding while tokens arrive."""

import functools
import json
import threading
from pathlib import Path

from .. import io, lm
from ..interop.tokenizers import Guard, check_text, read
from ..io.json import read_json
from ..io.kinds import is_gguf

_REPLACEMENT = "\ufffd"  # what a decoder writes for bytes that are not (yet) UTF-8
# Steps of decoders that look at one token at a time, but for the first and for bytes of one character.
_APART = ("ByteLevel", "Metaspace", "Replace", "ByteFallback", "Fuse", "Strip")


class Tokenizer:
    """A tokenizer.json or a GGUF file, read by the package `tokenizers`, with the settings beside it.

    `config` is the tokenizer_config.json as a dict; a GGUF file has its own. Raises FileNotFoundError or ValueError
    for a missing or damaged file.
    """

    def __init__(self, path, config=None):
        path = Path(path)
        if not path.is_file():
            raise FileNotFoundError(f"there is no tokenizer {path}, so prompts can only be token ids")
        if is_gguf(path):
            with io.GGUFFile(path) as file:
                self._backend, config = lm.gguf_tokenizer.build(file), config or lm.gguf_tokenizer.config(file)
        else:
            self._backend = read(path)
        self._guard = Guard(path)
        self._backend.no_truncation()
        self._backend.no_padding()
        self.path, self.config = path, config or {}
        self.bos_token_id = self._special("bos_token")
        self.eos_token_id = self._special("eos_token")

    def _special(self, key):
        text = self.special_text(key)
        return None if text is None else self._backend.token_to_id(text)

    def special_text(self, key):
        """The text of a special token that tokenizer_config.json names ("bos_token", "eos_token", ...), or None."""
        value = self.config.get(key)
        if isinstance(value, dict):
            value = value.get("content")
        return value if isinstance(value, str) else None

    def __len__(self):
        return self._backend.get_vocab_size()

    def vocabulary(self):
        """{text of a token: id}, those included that were added to the vocabulary."""
        return self._backend.get_vocab(with_added_tokens=True)

    def encode(self, text, add_special_tokens=True):
        """Token ids of a text. Special tokens are added where the tokenizer says; not wanted after a chat template."""
        with self._guard:
            ids = self._backend.encode(check_text(text, "text"), add_special_tokens=add_special_tokens).ids
        wanted = self.config.get("add_bos_token")
        if add_special_tokens and wanted is not None and self.bos_token_id is not None:
            # tokenizer_config.json has the last word over the template inside tokenizer.json.
            if wanted and ids[:1] != [self.bos_token_id]:
                ids.insert(0, self.bos_token_id)
            elif not wanted and ids[:1] == [self.bos_token_id] and not text.startswith(self.special_text("bos_token")):
                del ids[0]
        return ids

    def decode(self, ids, skip_special_tokens=True):
        """The text of token ids."""
        try:  # not `with`, which takes 0.2 us of the 1 us for each token
            return self._backend.decode(ids, skip_special_tokens=skip_special_tokens)
        except BaseException as error:
            self._guard.translate(error)
            raise

    @functools.cached_property
    def _spells_alone(self):
        """Whether tokens spell alone what they spell within a text; SentencePiece drops the space before the first."""
        ids = self.encode("a a", add_special_tokens=False)
        return "".join(self.decode([token]) for token in ids) == self.decode(ids)

    def token_text(self, token_id):
        """What a token adds to a text that it does not begin; special ones have their names."""
        alone = self.decode([token_id], skip_special_tokens=False)
        if self._spells_alone:
            return alone
        return self.decode([token_id, token_id], skip_special_tokens=False)[len(alone) :]

    @functools.cached_property
    def _spells_apart(self):
        """Whether what a token spells depends on those before it only in the first token and inside a character."""
        steps = json.loads(self._backend.decoder.__getstate__()) if self._backend.decoder is not None else {}
        steps = steps["decoders"] if steps.get("type") == "Sequence" else [steps]
        return all(
            step.get("type") in _APART
            and not step.get("stop")  # of Strip: at the end of a text
            and len(step.get("pattern", {}).get("String", " ")) == 1  # of Replace: more could span tokens
            and "Regex" not in step.get("pattern", {})
            for step in steps
        )

    @functools.cached_property
    def _pieces(self):
        return {}, {}

    def pieces(self, skip_special_tokens):
        """{id: text} that a `StreamDecoder` fills with what tokens spell in any text; None where that depends."""
        return self._pieces[skip_special_tokens] if self._spells_apart else None

    def to_json(self):
        """The tokenizer as the text of a tokenizer.json, also that of a GGUF file."""
        with self._guard:
            return self._backend.to_str()


class StreamDecoder:
    """Decodes ids as they come: `push(id)` returns the new text, which never ends inside a character.

    What one token spells depends on those before it (spaces, bytes of one character), so the last few tokens
    are decoded together and the text known before is cut off the front. A token that comes within a text, after a
    whole character, and is one itself, spells the same each time: it is decoded once for all texts, where the decoder
    is known for that (0.5 instead of 5 us a token).
    """

    _LONGEST = 16  # bytes that never become a character must not be collected for ever
    _CONTEXT = 8  # tokens from which on the older ones are dropped, which takes a second decoding

    def __init__(self, tokenizer, prompt_ids=(), skip_special_tokens=True):
        self._decode, self._pieces = tokenizer.decode, tokenizer.pieces(skip_special_tokens)
        if not skip_special_tokens:
            self._decode = functools.partial(tokenizer.decode, skip_special_tokens=False)
        self._ids, self._known = [], ""
        for size in (5, 9, 17, 33):  # the context that says whether a space precedes the first token
            self._ids = list(prompt_ids[-size:])
            self._known = self._decode(self._ids) if self._ids else ""
            if not self._known.startswith(_REPLACEMENT):  # else it begins inside a character
                break
        self._fresh = 0

    def push(self, *token_ids):
        """The text that these tokens complete; "" while a character is incomplete."""
        within = self._known is None or (self._known and not self._known.endswith(_REPLACEMENT))
        alone = self._pieces is not None and len(token_ids) == 1 and not self._fresh and within
        if alone and (new := self._pieces.get(token_ids[0])) is not None:
            self._ids, self._known = [*token_ids], None
            return new
        if self._known is None:
            self._known = self._decode(self._ids)
        self._ids += token_ids
        self._fresh += len(token_ids)
        text = self._decode(self._ids)
        if text.endswith(_REPLACEMENT) and self._fresh < self._LONGEST:
            return ""
        new = self._take(text)
        if alone and new and _REPLACEMENT not in new:
            self._pieces[token_ids[0]] = new
        return new

    def flush(self):
        """What is left at the end: an incomplete character is shown as U+FFFD, as the tokenizer decodes it."""
        return self._take(self._decode(self._ids)) if self._fresh else ""  # `_known` is a text then

    def _take(self, text):
        new = text[len(self._known) :]
        if len(self._ids) < self._CONTEXT:
            self._known, self._fresh = text, 0
            return new
        # The tokens of this piece are the context of the next, unless they spell nothing (special tokens).
        ids = self._ids[-max(self._fresh, 1) :]
        known = self._decode(ids)
        if not known and len(self._ids) <= self._LONGEST:
            ids, known = self._ids, text
        self._ids, self._known, self._fresh = ids, known, 0
        return new


def tokenizer_of(model):
    """The tokenizer of a model from `from_pretrained`, read once; None if its folder or GGUF file has none."""
    if "_tokenizer" not in model.__dict__:
        ahead = _ahead.pop(str(model.path), None)
        if ahead is not None:
            model._tokenizer = ahead.result()
        else:
            model._tokenizer = None if model.path is None else tokenizer_at(model.path)
    return model._tokenizer


_ahead = {}  # path -> the `_Reading` of a tokenizer whose model is being loaded


def read_ahead(path):
    """Begin to read the tokenizer at `path` beside the weights, which takes the time of 32,000 tokens: 0.12 s."""
    reading = _ahead[str(path)] = _Reading(path)
    reading.start()


class _Reading(threading.Thread):
    """Reads the tokenizer at `path`; `result` waits for it, and raises what was wrong."""

    def __init__(self, path):
        super().__init__(daemon=True)
        self._path, self._found, self._error = path, None, None

    def run(self):
        try:
            self._found = tokenizer_at(self._path)
        except Exception as error:
            self._error = error

    def result(self):
        self.join()
        if self._error is not None:
            raise self._error
        return self._found


def tokenizer_at(path):
    """The tokenizer of a checkpoint folder or GGUF file; None if it has none."""
    path = Path(path)
    if is_gguf(path):
        with io.GGUFFile(path) as file:
            found = lm.gguf_tokenizer.has_tokenizer(file)
        return Tokenizer(path) if found else None
    return Tokenizer(path / "tokenizer.json", load_config(path)) if (path / "tokenizer.json").is_file() else None


def load_config(path):
    """The tokenizer_config.json of a folder; {} if there is none. Of a GGUF file: what its metadata says of it."""
    path = Path(path)
    if is_gguf(path):
        return lm.gguf_tokenizer.load_config(path)
    path = path / "tokenizer_config.json"
    return read_json(path, "tokenizer config") if path.is_file() else {}
