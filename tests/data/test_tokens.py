"""Token files, datasets of sequences, tokenizer training and the IDX format."""

import gzip
import json
import os
import pickle
import struct
import subprocess
import sys

import numpy as np
import pytest

import infinicore
from infinicore.data import (
    CharTokenizer,
    DataLoader,
    TokenDataset,
    TokenFile,
    TokenWriter,
    character_datasets,
    mnist,
    random_split,
    read_idx,
    tokenize,
    train_tokenizer,
    write_tokens,
)
from infinicore.lm import Tokenizer

# ---- token files ----


@pytest.mark.parametrize("format", ["infinicore", "llm.c"])
@pytest.mark.parametrize(("dtype", "largest"), [("uint16", 65535), ("uint32", 4294967295)])
def test_written_tokens_are_read(tmp_path, rng, format, dtype, largest):
    tokens = rng.integers(0, largest, 1000, endpoint=True)
    tokens[7] = largest
    file = write_tokens(tmp_path / "a.bin", tokens, format=format)
    assert file.tokens.dtype == dtype and np.array_equal(file.tokens, tokens) and len(file) == 1000
    assert file.format == format and file.vocab_size is None
    assert os.listdir(tmp_path) == ["a.bin"]
    again = pickle.loads(pickle.dumps(file))
    assert np.array_equal(again.tokens, tokens)


def test_the_bytes_of_both_formats(tmp_path):
    write_tokens(tmp_path / "llmc", [1, 2, 515], format="llm.c")
    header = struct.pack("<3i", 20240520, 1, 3) + bytes(1012)
    assert (tmp_path / "llmc").read_bytes() == header + bytes([1, 0, 2, 0, 3, 2])
    write_tokens(tmp_path / "wide", [70000], format="llm.c")
    assert (tmp_path / "wide").read_bytes()[:12] == struct.pack("<3i", 20240801, 1, 1)
    write_tokens(tmp_path / "own", [1, 2, 515], vocab_size=600, metadata={"source": "é"})
    data = (tmp_path / "own").read_bytes()
    length = int.from_bytes(data[8:16], "little")
    assert data[:8] == b"ICTOKENS" and (16 + length) % 64 == 0 and data[16 + length :] == bytes([1, 0, 2, 0, 3, 2])
    assert json.loads(data[16 : 16 + length]) == {
        "version": 1,
        "dtype": "uint16",
        "count": 3,
        "vocab_size": 600,
        "metadata": {"source": "é"},
    }


def test_writing_in_pieces(tmp_path):
    with TokenWriter(tmp_path / "a", vocab_size=100000) as writer:
        for ids in ([1, 2], np.array([], np.int64), infinicore.tensor([99999]), []):
            writer.write(ids)
    assert TokenFile(tmp_path / "a").tokens.tolist() == [1, 2, 99999]
    assert len(write_tokens(tmp_path / "empty", [])) == 0


def test_what_cannot_be_written(tmp_path):
    path = tmp_path / "a"
    write_tokens(path, [5])
    for tokens, options in (([600], {"vocab_size": 600}), ([-1], {}), ([65536], {"dtype": "uint16"})):
        with pytest.raises(ValueError, match="`tokens` must be from 0 to"):
            write_tokens(path, tokens, **options)
    for tokens in ([1.5], [[1, 2]]):
        with pytest.raises(TypeError, match="integers of one dim"):
            write_tokens(path, tokens)
    with pytest.raises(ValueError, match="`format` must be"):
        write_tokens(path, [1], format="npy")
    assert TokenFile(path).tokens.tolist() == [5] and os.listdir(tmp_path) == ["a"]  # the old file is untouched


def _damages():
    own = lambda header: b"ICTOKENS" + len(header).to_bytes(8, "little") + header
    yield b"", "no token file"
    yield b"ICTOKENS", "truncated|damaged"
    yield b"ICTOKENS" + (1 << 40).to_bytes(8, "little"), "claims"
    yield own(b"{"), "no JSON"
    yield own(b"[1]"), "version list"
    yield own(b'{"version": 2}'), "version 2"
    yield own(b'{"version": 1, "dtype": "float32", "count": 0}'), "dtype 'float32'"
    yield own(b'{"version": 1, "dtype": "uint16", "count": -1}'), "count -1"
    yield own(b'{"version": 1, "dtype": "uint16", "count": 2, "vocab_size": "x"}') + bytes(4), "vocab_size"
    yield own(b'{"version": 1, "dtype": "uint16", "count": 2}') + bytes(3), "truncated or damaged"
    yield own(b'{"version": 1, "dtype": "uint16", "count": 2}') + bytes(5), "truncated or damaged"
    yield struct.pack("<3i", 20240520, 1, 4), "truncated"
    yield struct.pack("<3i", 20240520, 1, 4) + bytes(1012 + 7), "truncated or damaged"
    yield struct.pack("<3i", 20240520, 2, 0) + bytes(1012), "version 2"
    yield struct.pack("<3i", 20240520, 1, -1) + bytes(1012), "-1 tokens"
    yield b"\x93NUMPY\x01\x00", "no token file"


@pytest.mark.parametrize(("data", "words"), list(_damages()))
def test_damaged_files(tmp_path, data, words):
    (tmp_path / "a").write_bytes(data)
    with pytest.raises(ValueError, match=words):
        TokenFile(tmp_path / "a")
    with pytest.raises(FileNotFoundError, match="no token file"):
        TokenFile(tmp_path / "b")


# ---- sequences ----


@pytest.mark.parametrize("count", [9, 10, 16, 17])
@pytest.mark.parametrize("stride", [None, 1, 3])
def test_sequences(tmp_path, count, stride):
    tokens = np.arange(100, 100 + count)
    for source in (tokens, infinicore.from_numpy(tokens), str(write_tokens(tmp_path / "a", tokens).path)):
        data = TokenDataset(source, 8, stride)
        starts = [s for s in range(0, count, stride or 8) if s + 8 < count]
        assert len(data) == len(starts)
        for i, start in enumerate(starts):
            x, y = data[i]
            assert (
                x.tolist() == tokens[start : start + 8].tolist()
                and y.tolist() == tokens[start + 1 : start + 9].tolist()
            )
            assert x.dtype == y.dtype == infinicore.int64
        x, y = data.get_batch([-1, 0])
        assert x.tolist() == [data[-1][0].tolist(), data[0][0].tolist()] and (y.numpy() == x.numpy() + 1).all()
        for wrong in ([len(data)], [-len(data) - 1]):
            with pytest.raises(IndexError):
                data.get_batch(wrong)
    with pytest.raises(IndexError):
        data[len(data)]


def test_parts_and_random_batches():
    tokens = np.arange(50)
    assert TokenDataset(tokens, 4, start=10, stop=20)[1][0].tolist() == [14, 15, 16, 17]
    data = TokenDataset(tokens, 4, start=40)
    x, y = data.random_batch(500, infinicore.Generator(0))
    assert x.shape == (500, 4) and set(x[:, 0].tolist()) == set(range(40, 46))  # the last one reaches token 49
    assert (y.numpy() == x.numpy() + 1).all()
    with pytest.raises(ValueError, match="has 4 tokens"):
        TokenDataset(tokens[:4], 4)
    with pytest.raises(ValueError, match="must be 1 or more"):
        TokenDataset(tokens, 0)


def test_sequences_in_workers(tmp_path):
    data = TokenDataset(write_tokens(tmp_path / "a", np.arange(5000)).path, 128)
    assert "tokens" not in data.__getstate__()
    assert pickle.loads(pickle.dumps(data))[3][1].tolist() == list(range(385, 513))
    batches = [
        [
            [x.tolist(), y.tolist()]
            for x, y in DataLoader(data, 16, shuffle=True, num_workers=n, generator=infinicore.Generator(1))
        ]
        for n in (0, 2)
    ]
    assert batches[0] == batches[1] and len(batches[0]) == 3
    train, rest = random_split(data, [0.9, 0.1])
    assert train.get_batch([0, 1])[0].shape == (2, 128) and len(rest) == 3


# ---- tokenizers ----

TEXTS = [
    "def add(a, b):\n    return a + b\n\n\ndef subtract(a, b):\n    return a - b\n" * 3,
    "for i in range(10):\n    print(add(i, i))\n",
    "naïve façade 漢字 🙂\t\r\n",
]
TRAIN = """
import sys
from infinicore.data import train_tokenizer
train_tokenizer(sys.argv[2:], 300, sys.argv[1])
"""


def test_train_tokenizer(tmp_path):
    folder = train_tokenizer(TEXTS, 280, tmp_path / "t", ["<|endoftext|>", "<|user|>"])
    config = json.loads((folder / "tokenizer_config.json").read_text())
    tokenizer = Tokenizer(folder / "tokenizer.json", config)
    assert len(tokenizer) == 280 and tokenizer.eos_token_id == tokenizer.bos_token_id == 0
    for text in [*TEXTS, "".join(map(chr, range(256))), "\0\u2028 中 \U0001f9ea"]:
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.encode("<|user|>a<|endoftext|>")[::2] == [1, 0]
    assert len(tokenizer.encode(TEXTS[0])) < len(TEXTS[0]) / 2
    with pytest.raises(ValueError, match="`vocab_size` 257 must be 258"):
        train_tokenizer(TEXTS, 257, tmp_path / "t", ["a", "b"])


def test_training_is_deterministic(tmp_path):
    """Other processes with other hash seeds and thread counts write the same bytes."""
    expected = train_tokenizer(TEXTS, 300, tmp_path / "here") / "tokenizer.json"
    path = os.pathsep.join([str(infinicore.__path__[0]) + "/..", os.environ.get("PYTHONPATH", "")])
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": seed, "RAYON_NUM_THREADS": seed}
        command = [sys.executable, "-c", TRAIN, str(tmp_path / seed), *TEXTS]
        subprocess.run(command, env={**environment, "TOKENIZERS_PARALLELISM": "true"}, check=True)
        assert (tmp_path / seed / "tokenizer.json").read_bytes() == expected.read_bytes()


def test_roles_pattern_and_transformers(tmp_path):
    roles = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>"}
    folder = train_tokenizer(TEXTS, 280, tmp_path, roles, pattern=r"\s+|\w+|[^\w\s]+")
    text = "def add(x):\n    return x</s>"
    ours = Tokenizer(folder / "tokenizer.json", json.loads((folder / "tokenizer_config.json").read_text()))
    assert (ours.bos_token_id, ours.eos_token_id) == (0, 1) and ours.encode(text)[-1] == 1
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    assert theirs.encode(text) == ours.encode(text) and theirs.pad_token_id == 1
    assert theirs.decode(theirs.encode(text)) == text


def test_files_and_texts(tmp_path):
    file = tmp_path / "text.txt"
    file.write_text("one two\n", encoding="utf-8")
    folder = train_tokenizer([file, *TEXTS], 270, tmp_path / "t")
    with pytest.raises(ValueError, match="names a file"):
        train_tokenizer([str(file)], 270, tmp_path / "u")
    with pytest.raises(TypeError, match="got int"):
        train_tokenizer([3], 270, tmp_path / "u")

    tokenizer = Tokenizer(folder / "tokenizer.json", json.loads((folder / "tokenizer_config.json").read_text()))
    expected = [*tokenizer.encode("one two\n"), 0, *tokenizer.encode("three"), 0]
    for given in (folder, tokenizer, folder / "tokenizer.json"):
        tokens = tokenize([file, "three"], given, tmp_path / "tokens", metadata={"texts": 2})
        assert tokens.tokens.tolist() == expected and tokens.vocab_size == 270 and tokens.metadata == {"texts": "2"}
    tokens.check_tokenizer(tokenizer)
    other = train_tokenizer(TEXTS, 260, tmp_path / "other")
    with pytest.raises(ValueError, match="another tokenizer"):
        tokens.check_tokenizer(other)
    assert tokenize("a", folder, tmp_path / "x", end_of_text=7).tokens.tolist()[-1] == 7
    with pytest.raises(ValueError, match="must be one token"):
        tokenize("a", folder, tmp_path / "x", end_of_text="some words")
    with pytest.raises(FileNotFoundError, match="no tokenizer"):
        tokenize("a", tmp_path / "nowhere", tmp_path / "x")


def test_characters(tmp_path):
    text = "To be, or not to be:\n 漢🙂"
    tokenizer = CharTokenizer(text)
    assert tokenizer.characters == "".join(sorted(set(text))) and len(tokenizer) == len(set(text))
    assert tokenizer.decode(tokenizer.encode(text)) == text and tokenizer.encode("") == []
    assert tokenizer.encode("b") == [tokenizer.characters.index("b")]
    with pytest.raises(ValueError, match="'z'"):
        tokenizer.encode("to z")
    folder = tokenizer.save(tmp_path)
    saved = Tokenizer(folder / "tokenizer.json")
    assert saved.encode(text) == tokenizer.encode(text) and saved.decode(saved.encode(text)) == text
    assert tokenize(["To", "be"], tokenizer, tmp_path / "a").tokens.tolist() == tokenizer.encode("Tobe")


def test_tinyshakespeare(test_data):
    path = test_data / "data" / "tinyshakespeare.txt"
    if not path.is_file():
        pytest.skip(f"{path} does not exist")
    train, validation, tokenizer = character_datasets(path, 64)
    assert len(tokenizer) == 65 and (len(train.tokens), len(validation.tokens)) == (1003854, 111540)
    x, y = train.random_batch(12, infinicore.Generator(0))
    assert x.shape == y.shape == (12, 64)
    text = path.read_text(encoding="utf-8")
    assert tokenizer.decode(x[3].tolist()) in text and tokenizer.decode(train[5][1].tolist()) == text[6:70]


# ---- IDX ----


def idx(array):
    types = {"uint8": 8, "int8": 9, "int16": 11, "int32": 12, "float32": 13, "float64": 14}
    header = bytes([0, 0, types[array.dtype.name], array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(array.dtype.newbyteorder(">")).tobytes()


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "int32", "float32", "float64"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_idx(tmp_path, rng, dtype, pack):
    for shape in ((5,), (2, 3, 4), (0, 3)):
        array = (rng.standard_normal(shape) * 100).astype(dtype)
        (tmp_path / "a").write_bytes(pack(idx(array)))
        found = read_idx(tmp_path / "a")
        assert found.dtype.name == dtype and found.shape == shape and np.array_equal(found.numpy(), array)


def _broken_idx():
    good = idx(np.arange(12, dtype=np.uint8).reshape(3, 4))
    yield b"", "no IDX file"
    yield b"\x89PNG" + bytes(20), "no IDX file"
    yield bytes([0, 0, 7, 1]) + bytes(8), "no IDX file"
    yield good[:9], "inside of the 2 sizes"
    yield good[:-1], "truncated"
    yield good + b"x", "behind its end"
    yield bytes([0, 0, 14, 4]) + b"\xff" * 16, "truncated"


@pytest.mark.parametrize(("data", "words"), list(_broken_idx()))
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_broken_idx(tmp_path, data, words, pack):
    (tmp_path / "a").write_bytes(pack(data))
    with pytest.raises(ValueError, match=words):
        read_idx(tmp_path / "a")


def test_broken_gzip(tmp_path):
    data = gzip.compress(idx(np.arange(256, dtype=np.int32)))
    for wrong in (data[:-20], data[:40] + b"\0" * 40 + data[80:]):
        (tmp_path / "a").write_bytes(wrong)
        with pytest.raises(ValueError, match=r"damaged gzip|truncated"):
            read_idx(tmp_path / "a")
    with pytest.raises(FileNotFoundError, match="no IDX file"):
        read_idx(tmp_path / "b")


def test_mnist(tmp_path, rng):
    images = rng.integers(0, 256, (7, 28, 28)).astype(np.uint8)
    labels = rng.integers(0, 10, 7).astype(np.uint8)
    (tmp_path / "train-images-idx3-ubyte").write_bytes(idx(images))
    (tmp_path / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(labels)))
    x, y = mnist(tmp_path).tensors
    assert x.shape == (7, 1, 28, 28) and np.array_equal(x.numpy()[:, 0], images.astype(np.float32) / 255)
    assert y.dtype == infinicore.int64 and y.tolist() == labels.tolist()
    with pytest.raises(FileNotFoundError, match="t10k-images"):
        mnist(tmp_path, train=False)
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx(labels[:5]))
    with pytest.raises(ValueError, match="do not match"):
        mnist(tmp_path)
