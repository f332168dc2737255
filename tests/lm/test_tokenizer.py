"""Tokenizers, and decoding while tokens arrive."""

import json
import random

import pytest

from infinicore import data
from infinicore.lm import StreamDecoder, Tokenizer

tokenizers = pytest.importorskip("tokenizers")

TEXTS = ["Once upon a time", " leading and  double", "Zoë—“日本語” 🙂👩‍👩‍👧!", "a\nb\tc", "naïve café"]


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory):
    """A tokenizer of single bytes with a few merges, as in Llama 3 and Qwen."""
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    vocabulary = {character: i for i, character in enumerate(sorted(alphabet))}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, []))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_special_tokens(["<|end|>"])
    path = tmp_path_factory.mktemp("bytes") / "tokenizer.json"
    backend.save(str(path))
    return Tokenizer(path)


def stream(tokenizer, ids, prompt=()):
    decoder = StreamDecoder(tokenizer, prompt)
    pieces = [decoder.push(i) for i in ids]
    return [*pieces, decoder.flush()]


@pytest.mark.parametrize("text", TEXTS)
def test_bytes(byte_level, text):
    ids = byte_level.encode(text)
    pieces = stream(byte_level, ids)
    assert "".join(pieces) == text == byte_level.decode(ids)
    assert not any("\ufffd" in piece for piece in pieces)


def test_incomplete_at_the_end(byte_level):
    ids = byte_level.encode("a🙂")[:-1]
    pieces = stream(byte_level, ids)
    assert pieces[0] == "a" and pieces[1:-1] == ["", "", ""]
    assert "".join(pieces) == byte_level.decode(ids)


def test_bytes_that_never_become_text_do_not_stall(byte_level):
    first = byte_level.encode("é")[0]
    pieces = stream(byte_level, [first] * 40 + byte_level.encode(" x"))
    assert any(pieces[:30]) and pieces[-2].endswith("x")


def test_special_tokens_are_skipped(byte_level):
    ids = [*byte_level.encode("a"), 256, *byte_level.encode(" b")]
    assert "".join(stream(byte_level, ids)) == "a b"


@pytest.mark.parametrize("text", TEXTS)
def test_sentencepiece(stories, text):
    tokenizer = Tokenizer(stories / "tokenizer.json", json.loads((stories / "tokenizer_config.json").read_text()))
    ids = tokenizer.encode(text)
    assert ids[0] == tokenizer.bos_token_id == 1 and tokenizer.eos_token_id == 2
    for cut in range(1, len(ids)):
        before = tokenizer.decode(ids[:cut])
        if not before.endswith("\ufffd"):  # not inside a character
            assert before + "".join(stream(tokenizer, ids[cut:], ids[:cut])) == tokenizer.decode(ids)
    assert "".join(stream(tokenizer, ids[1:], ids[:1])) == tokenizer.decode(ids)


@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece"])
def test_pieces_that_are_known_change_nothing(stories, byte_level, kind):
    """Random tokens, halves of characters and special ones among them, after pieces of other texts were kept."""
    draw, tokenizer = random.Random(3), byte_level if kind == "byte_level" else Tokenizer(stories / "tokenizer.json")
    known = tokenizer.encode("".join(TEXTS), add_special_tokens=False)
    for _ in range(60):
        ids = [draw.choice((draw.randrange(len(tokenizer)), *draw.choices(known, k=3))) for _ in range(30)]
        cut, pieces = draw.randrange(5), tokenizer.pieces(True)
        kept = dict(pieces)
        after = stream(tokenizer, ids[cut:], ids[:cut])
        pieces.clear()
        fresh = stream(tokenizer, ids[cut:], ids[:cut])
        assert after == fresh
        pieces.update(kept)
    assert pieces


def test_where_a_token_depends_on_its_neighbours_nothing_is_kept(tmp_path):
    backend = tokenizers.Tokenizer(
        tokenizers.models.WordPiece({"a": 0, "##b": 1, "!": 2, "[UNK]": 3}, unk_token="[UNK]")
    )
    backend.decoder = tokenizers.decoders.WordPiece()
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer(tmp_path / "tokenizer.json")
    assert tokenizer.pieces(True) is None and "".join(stream(tokenizer, [0, 1, 0, 2])) == tokenizer.decode([0, 1, 0, 2])


def test_bos_follows_the_config(stories):
    path = stories / "tokenizer.json"
    names = {"bos_token": {"content": "<s>"}, "eos_token": "</s>"}
    assert Tokenizer(path, names).encode("a")[0] == 1
    without = Tokenizer(path, {**names, "add_bos_token": False})
    assert without.encode("a") == Tokenizer(path, names).encode("a")[1:]
    assert without.special_text("bos_token") == "<s>"
    assert Tokenizer(path, names).encode("a", add_special_tokens=False)[0] != 1


def test_errors(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"tokenizer\.json"):
        Tokenizer(tmp_path / "tokenizer.json")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match=r"tokenizer\.json"):
        Tokenizer(tmp_path / "tokenizer.json")


TEMPLATE = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [],
    "special_tokens": {},
}
PANICS = {
    "template": {"post_processor": TEMPLATE},
    "sequence": {"post_processor": {"type": "Sequence", "processors": [TEMPLATE]}},
    "loading": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},
    "encoding": {"pre_tokenizer": {"type": "FixedLength", "length": 0}},
    "no panic": {"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "<unk>"}},
}


@pytest.mark.parametrize("name", PANICS)
def test_panics_of_the_package_are_sentences(name, byte_level, tmp_path, capfd):
    content = json.loads(byte_level.path.read_text()) | PANICS[name]
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"tokenizer\.json is no tokenizer that can be used: ") as raised:
        Tokenizer(path).encode("Hello")
    assert "\n" not in str(raised.value)
    if name in ("template", "sequence"):
        assert "`post_processor` adds '<s>'" in str(raised.value) and not capfd.readouterr().err
    with pytest.raises(ValueError, match="is no tokenizer that can be used: "):
        data.tokenize(["Hello"], tmp_path, tmp_path / "x.tokens")


def test_half_a_surrogate_pair(byte_level, tmp_path):
    with pytest.raises(ValueError, match="`text` has half of a surrogate pair, '\\\\ud800' at place 1"):
        byte_level.encode("a\ud800")
    with pytest.raises(TypeError, match=r"`text` must be a text \(str\), got int"):
        byte_level.encode(5)
    for call in (
        lambda: data.tokenize(["a\ud800"], byte_level.path, tmp_path / "x.tokens"),
        lambda: data.train_tokenizer(["a\ud800"], 300, tmp_path / "new"),
    ):
        with pytest.raises(ValueError, match="`sources` has half of a surrogate pair"):
            call()
    assert not (tmp_path / "new").exists()
    with pytest.raises(ValueError, match=r"`pattern` '\(' is no regular expression"):
        data.train_tokenizer(["a"], 300, tmp_path / "new", pattern="(")
