"""Files of token ids, memory-mapped: a format of our own and llm.c's; batches of sequences from them.

Our format: the 8 bytes `ICTOKENS`; the length of the header as a little-endian uint64; the header, a JSON object
padded with spaces, with `version` (1), `dtype` ("uint16" or "uint32"), `count`, and if known `vocab_size`,
`tokenizer_sha256` (of the tokenizer.json) and `metadata` (texts); then `count` little-endian ids, from a multiple of
64 bytes on. llm.c's: 256 int32 (20240520 for uint16 or 20240801 for uint32, version 1, count), then the ids.
"""

import hashlib
import json
import operator
import os
from pathlib import Path

import numpy as np

from .. import dispatch
from ..dtype import int64
from ..interop.numpy import to_numpy
from ..tensor.tensor import Tensor
from .dataset import Dataset
from .sampler import checked_generator

_MAGIC = b"ICTOKENS"
_VERSION = 1
_ALIGN = 64
_HEADER_LIMIT = 1 << 20  # bytes
_LLMC = {20240520: "uint16", 20240801: "uint32"}
_LLMC_HEADER = 1024  # bytes
FORMATS = ("infinicore", "llm.c")


def tokenizer_sha256(tokenizer):
    """The SHA-256 of a tokenizer's file, in hex; `tokenizer` is its path or an object with `path`, else None comes."""
    path = getattr(tokenizer, "path", tokenizer)
    if not isinstance(path, (str, os.PathLike)):
        return None
    path = Path(path)
    path = path / "tokenizer.json" if path.is_dir() else path
    if not path.is_file():
        raise FileNotFoundError(f"there is no tokenizer {path}")
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _ids(tokens):
    """Token ids as an integer array of one dim."""
    array = to_numpy(tokens) if isinstance(tokens, Tensor) else np.asarray(tokens)
    if array.size == 0:
        return np.empty(0, np.uint16)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise TypeError(f"`tokens` must be integers of one dim, got {array.dtype} of shape {array.shape}")
    return array


def _own_header(path, file, size):
    length = int.from_bytes(file.read(8), "little")
    if length > min(_HEADER_LIMIT, size - 16):
        raise ValueError(f"{path} is truncated or damaged: its header claims {length} bytes")
    try:
        header = json.loads(file.read(length))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: its header is no JSON ({str(error)[:100]})") from None
    if not isinstance(header, dict) or header.get("version") != _VERSION:
        found = header.get("version") if isinstance(header, dict) else type(header).__name__
        raise ValueError(f"{path} has version {found} of the token format, and {_VERSION} can be read")
    count, vocab_size = header.get("count"), header.get("vocab_size")
    if header.get("dtype") not in ("uint16", "uint32") or type(count) is not int or count < 0:
        raise ValueError(f"{path} is damaged: its header has dtype {header.get('dtype')!r} and count {count!r}")
    if vocab_size is not None and (type(vocab_size) is not int or vocab_size < 1):
        raise ValueError(f"{path} is damaged: its header has vocab_size {vocab_size!r}")
    return header, 16 + length


def _llmc_header(path, file):
    words = np.frombuffer(file.read(_LLMC_HEADER), "<i4")
    if len(words) < 256:
        raise ValueError(f"{path} is truncated: the header of llm.c's format takes {_LLMC_HEADER} bytes")
    magic, version, count = (int(word) for word in words[:3])
    if version != 1 or count < 0:
        raise ValueError(f"{path} has version {version} and {count} tokens; llm.c's version 1 can be read")
    return {"dtype": _LLMC[magic], "count": count}, _LLMC_HEADER


class TokenFile:
    """A file of token ids: `tokens` (a read-only uint16 or uint32 array on the mapped file), `vocab_size`,
    `tokenizer_sha256` and `metadata` (None, None and {} where the file does not say).

    Raises FileNotFoundError, and ValueError for another format, a truncated or a damaged file.
    """

    def __init__(self, path):
        self.path = Path(path)
        if not self.path.is_file():
            raise FileNotFoundError(f"there is no token file {self.path}")
        size = self.path.stat().st_size
        with open(self.path, "rb") as file:
            start = file.read(8)
            if start == _MAGIC:
                self.format = "infinicore"
                header, offset = _own_header(self.path, file, size)
            elif len(start) == 8 and int.from_bytes(start[:4], "little") in _LLMC:
                self.format = "llm.c"
                file.seek(0)
                header, offset = _llmc_header(self.path, file)
            else:
                raise ValueError(
                    f"{self.path} is no token file: it begins with {start.hex(' ')!r}; write one with `write_tokens`"
                )
        dtype, count = np.dtype(header["dtype"]).newbyteorder("<"), header["count"]
        if offset + count * dtype.itemsize != size:
            raise ValueError(
                f"{self.path} is truncated or damaged: {count} tokens of {dtype.itemsize} bytes end at byte "
                f"{offset + count * dtype.itemsize}, and the file has {size}"
            )
        self.vocab_size, self.tokenizer_sha256 = header.get("vocab_size"), header.get("tokenizer_sha256")
        self.metadata = header.get("metadata") or {}
        if count:
            # A plain array on the map: slices of np.memmap itself cost a microsecond more.
            self.tokens = np.memmap(self.path, dtype, "r", offset, (count,)).view(np.ndarray)
        else:
            self.tokens = np.empty(0, dtype)

    def __len__(self):
        return len(self.tokens)

    def __reduce__(self):  # the path, not the tokens
        return TokenFile, (self.path,)

    def check_tokenizer(self, tokenizer):
        """Raise ValueError if the file says that its ids are those of another tokenizer (a path, or with `path`)."""
        given = tokenizer_sha256(tokenizer)
        if None not in (given, self.tokenizer_sha256) and given != self.tokenizer_sha256:
            raise ValueError(
                f"{self.path} was made with another tokenizer (SHA-256 {self.tokenizer_sha256[:12]}) than `tokenizer` "
                f"({given[:12]}); tokenize the texts again"
            )


class TokenWriter:
    """Writes a token file piece by piece: `with TokenWriter(path, vocab_size=V) as writer: writer.write(ids)`.

    Ids are kept in 2 bytes up to a `vocab_size` of 65,536, else in 4; `dtype` ("uint16" or "uint32") overrides.
    `tokenizer` (a path, or an object with `path` and `len()`) gives the hash, and `vocab_size` if that is None. The
    file appears under `path` when the block ends, and not at all if it fails. llm.c's `format` keeps neither
    vocabulary nor hash. Raises ValueError for an id that does not fit.
    """

    def __init__(self, path, *, vocab_size=None, dtype=None, tokenizer=None, metadata=None, format="infinicore"):
        if format not in FORMATS:
            raise ValueError(f"`format` must be one of {', '.join(FORMATS)}, got {format!r}")
        if dtype not in (None, "uint16", "uint32"):
            raise ValueError(f"`dtype` must be 'uint16' or 'uint32', got {dtype!r}")
        if vocab_size is None and hasattr(tokenizer, "__len__") and not isinstance(tokenizer, str):
            vocab_size = len(tokenizer)
        if dtype is None:
            dtype = "uint32" if vocab_size is not None and vocab_size > 65536 else "uint16"
        self.path, self.format, self.count = Path(path), format, 0
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._limit = min(vocab_size or 1 << 32, 1 << 8 * self._dtype.itemsize)
        self._header = {"version": _VERSION, "dtype": dtype, "count": 1 << 62}
        if vocab_size is not None:
            self._header["vocab_size"] = operator.index(vocab_size)
        if tokenizer is not None and (digest := tokenizer_sha256(tokenizer)) is not None:
            self._header["tokenizer_sha256"] = digest
        if metadata:
            self._header["metadata"] = {str(key): str(value) for key, value in metadata.items()}
        # The count comes last, and takes no more digits than the one that stands here.
        self._reserved = -(-(16 + len(json.dumps(self._header))) // _ALIGN) * _ALIGN
        self._temporary, self._file = Path(f"{path}.{os.getpid()}.tmp"), None

    def _header_bytes(self):
        if self.format == "llm.c":
            if self.count >= 1 << 31:
                raise ValueError(f"{self.path}: llm.c's format holds fewer than 2**31 tokens, got {self.count}")
            words = np.zeros(256, "<i4")
            magic = next(magic for magic, dtype in _LLMC.items() if dtype == self._header["dtype"])
            words[:3] = magic, 1, self.count
            return words.tobytes()
        text = json.dumps({**self._header, "count": self.count}).encode().ljust(self._reserved - 16)
        return _MAGIC + len(text).to_bytes(8, "little") + text

    def __enter__(self):
        self._file = open(self._temporary, "wb")
        self._file.write(bytes(self._reserved if self.format == "infinicore" else _LLMC_HEADER))
        return self

    def write(self, tokens):
        """Append ids: a tensor, an array or a list of integers of one dim."""
        array = _ids(tokens)
        if array.size and (int(array.min()) < 0 or int(array.max()) >= self._limit):
            wrong = int(array.min()) if int(array.min()) < 0 else int(array.max())
            raise ValueError(
                f"`tokens` must be from 0 to {self._limit - 1} in {self.path}, got {wrong}; give the right `vocab_size`"
            )
        self._file.write(array.astype(self._dtype, copy=False).tobytes())
        self.count += array.size

    def __exit__(self, kind, *_):
        try:
            if kind is None:
                self._file.seek(0)
                self._file.write(self._header_bytes())
            self._file.close()
            if kind is None:
                os.replace(self._temporary, self.path)
        finally:
            self._file.close()
            self._temporary.unlink(missing_ok=True)


def write_tokens(path, tokens, **options):
    """Write token ids (a tensor, an array or a list) to a file; returns its `TokenFile`. Options: see `TokenWriter`."""
    array = _ids(tokens)
    if options.get("dtype") is None and options.get("vocab_size") is None and options.get("tokenizer") is None:
        options["dtype"] = "uint32" if array.size and int(array.max()) > 65535 else "uint16"
    with TokenWriter(path, **options) as writer:
        writer.write(array)
    return TokenFile(path)


class TokenDataset(Dataset):
    """Pairs of `sequence_length` ids and the same shifted by one (input, target), int64, from a sequence of tokens.

    `source` is a token file (its path or `TokenFile`), or ids in memory (a tensor, an array or a list); `start` and
    `stop` choose a part of it. Sample i begins at token i * `stride` (default: `sequence_length`, so that samples do
    not overlap; 1: every position). Raises ValueError if there is not one whole sample.
    """

    deterministic = True

    def __init__(self, source, sequence_length, stride=None, start=0, stop=None):
        if isinstance(source, (str, os.PathLike)):
            source = TokenFile(source)
        self.file = source if isinstance(source, TokenFile) else None
        self.sequence_length = operator.index(sequence_length)
        self.stride = self.sequence_length if stride is None else operator.index(stride)
        if self.sequence_length < 1 or self.stride < 1:
            raise ValueError(
                f"`sequence_length` and `stride` must be 1 or more, got {self.sequence_length} and {self.stride}"
            )
        self._part = slice(start, stop)
        self.tokens = (_ids(source) if self.file is None else self.file.tokens)[self._part]
        if len(self.tokens) <= self.sequence_length:
            raise ValueError(
                f"`source` has {len(self.tokens)} tokens, and a sample of `sequence_length` {self.sequence_length} "
                f"takes {self.sequence_length + 1}"
            )

    def __getstate__(self):
        state = dict(self.__dict__)
        if self.file is not None:  # a worker maps the file itself
            del state["tokens"]
        return state

    def __setstate__(self, state):
        self.__dict__.update(state)
        if self.file is not None:
            self.tokens = self.file.tokens[self._part]

    def __len__(self):
        return (len(self.tokens) - 1 - self.sequence_length) // self.stride + 1

    def _sequences(self, offsets):
        length, count = self.sequence_length, len(offsets)
        batch = [dispatch.empty((count, length), int64) for _ in range(2)]
        inputs, targets = map(to_numpy, batch)
        for row, offset in enumerate(offsets):
            inputs[row] = self.tokens[offset : offset + length]
            targets[row, -1] = self.tokens[offset + length]
        targets[:, :-1] = inputs[:, 1:]
        return batch

    def __getitem__(self, index):
        size = len(self)
        if not -size <= index < size:
            raise IndexError(f"`index` {index} is out of range for a dataset of {size} sequences")
        return tuple(tensor[0] for tensor in self._sequences([(index + size if index < 0 else index) * self.stride]))

    def get_batch(self, indices):
        """Inputs and targets [len(indices), sequence_length] of the samples `indices`, as a list."""
        size = len(self)
        rows = np.asarray(indices, np.int64)
        if rows.size and not (rows.min() >= -size and rows.max() < size):
            raise IndexError(f"`indices` must be below {size}, the number of sequences, got {rows.max()}")
        return self._sequences((np.where(rows < 0, rows + size, rows) * self.stride).tolist())

    def random_batch(self, batch_size, generator=None):
        """Inputs and targets [batch_size, sequence_length] from random positions (`stride` does not count)."""
        last = len(self.tokens) - self.sequence_length
        return self._sequences(checked_generator(generator).integers(0, last, batch_size).tolist())
