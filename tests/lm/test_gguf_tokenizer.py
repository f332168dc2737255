"""Tokenizers inside GGUF files: equal to those that they were made from, and one sentence if damaged."""

import json

import numpy as np
import pytest

from infinicore.io import GGUFFile
from infinicore.lm import Tokenizer, gguf_tokenizer
from infinicore.lm.tokenizer import load_config

gguf = pytest.importorskip("gguf")
tokenizers = pytest.importorskip("tokenizers")

TEXTS = [
    "Once upon a time",
    " leading and  double",
    "Zoë—“日本語” 🙂👩‍👩‍👧!",
    "a\nb\tc\r\n\n  x",
    "I'll pay 12345.67 for it's worth, WON'T you?",
    "naïve café don't <s>stop</s> now",
]
UNKNOWN, CONTROL, USER, BYTE, NORMAL = 2, 3, 4, 6, 1


def write(path, model, tokens, *, types, bos=None, eos=None, pre=None, merges=None, scores=None, **flags):
    """A GGUF file with a tokenizer and one small tensor."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model(model)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    for value, add in ((scores, "scores"), (merges, "merges"), (pre, "pre"), (bos, "bos_id"), (eos, "eos_id")):
        if value is not None:
            names = {"scores": "token_scores", "merges": "token_merges", "pre": "tokenizer_pre"}
            names |= {"bos_id": "bos_token_id", "eos_id": "eos_token_id"}
            getattr(writer, f"add_{names[add]}")(value)
    for key, value in flags.items():
        getattr(writer, f"add_{key}")(value)
    writer.add_tensor("x", np.zeros(4, np.float32))
    for step in ("header_to_file", "kv_data_to_file", "tensors_to_file"):
        getattr(writer, f"write_{step}")()
    writer.close()
    return path


def write_stories(folder, path, **flags):
    """The tokenizer.json of a Llama as a GGUF file; pieces get the ranks of their merges as scores."""
    table = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary = table["model"]["vocab"]
    tokens = sorted(vocabulary, key=vocabulary.get)
    scores = np.full(len(tokens), -1e6, np.float32)
    for rank, pair in enumerate(table["model"]["merges"]):
        index = vocabulary["".join(pair if isinstance(pair, list) else pair.split(" "))]
        scores[index] = max(scores[index], -rank)
    types = [UNKNOWN, CONTROL, CONTROL] + [BYTE if t.startswith("<0x") else NORMAL for t in tokens[3:]]
    return write(path, "llama", tokens, types=types, scores=scores.tolist(), bos=1, eos=2, **flags)


def test_pieces_with_scores_equal_the_tokenizer_they_come_from(stories, test_data, tmp_path):
    theirs = Tokenizer(stories / "tokenizer.json", load_config(stories))
    ours = Tokenizer(write_stories(stories, tmp_path / "a.gguf"))
    lines = (test_data / "data" / "tinyshakespeare.txt").read_text(encoding="utf-8").splitlines()[:2000]
    for text in [*TEXTS, *filter(None, lines)]:
        ids = ours.encode(text)
        assert ids == theirs.encode(text), text
        assert ours.decode(ids) == theirs.decode(ids)
        assert ours.encode(text, add_special_tokens=False) == theirs.encode(text, add_special_tokens=False)
    assert (ours.bos_token_id, ours.eos_token_id, len(ours)) == (1, 2, len(theirs))
    assert ours.decode(ours.encode("Zoë 🙂")) == "Zoë 🙂"


def test_flags_and_template(stories, tmp_path):
    path = write_stories(stories, tmp_path / "a.gguf", add_bos_token=False, add_eos_token=True, chat_template="{{ 1 }}",
                         add_space_prefix=False)  # fmt: skip
    tokenizer = Tokenizer(path)
    ids = tokenizer.encode("Once")
    assert ids[0] != 1 and ids[-1] == 2
    assert tokenizer.decode(ids) == "Once"
    assert load_config(path) == {"bos_token": "<s>", "eos_token": "</s>", "chat_template": "{{ 1 }}"}
    assert tokenizer.special_text("bos_token") == "<s>"


_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
PATTERNS = {"gpt-2": "gpt2", "llama-bpe": _WORDS + r"\p{N}{1,3}" + _REST, "qwen2": _WORDS + r"\p{N}" + _REST}


def trained(pattern):
    """A byte-level BPE trained on a few texts, split by a pattern; (backend, tokens in order, merges)."""
    pre = tokenizers.pre_tokenizers
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    if pattern == "gpt2":
        backend.pre_tokenizer = pre.ByteLevel(add_prefix_space=False)
    else:
        split = pre.Split(tokenizers.Regex(pattern), "isolated")
        backend.pre_tokenizer = pre.Sequence([split, pre.ByteLevel(add_prefix_space=False, use_regex=False)])
    backend.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=pre.ByteLevel.alphabet(),
        special_tokens=["<s>", "</s>"],
        show_progress=False,
    )
    backend.train_from_iterator(TEXTS * 3, trainer)
    table = json.loads(backend.to_str())["model"]
    merges = [" ".join(pair) if isinstance(pair, list) else pair for pair in table["merges"]]
    return backend, sorted(table["vocab"], key=table["vocab"].get), merges


@pytest.mark.parametrize("pre", PATTERNS)
def test_bytes_with_merges_equal_the_tokenizer_they_come_from(pre, tmp_path):
    backend, tokens, merges = trained(PATTERNS[pre])
    types = [CONTROL, CONTROL] + [NORMAL] * (len(tokens) - 2)
    path = write(tmp_path / "b.gguf", "gpt2", tokens, types=types, pre=pre, merges=merges, bos=0, eos=1)
    ours = Tokenizer(path)
    for text in TEXTS:
        wanted = backend.encode(text).ids
        assert ours.encode(text, add_special_tokens=False) == wanted, text
        assert ours.encode(text) == ([0] if pre == "llama-bpe" else []) + wanted
        assert ours.decode(wanted, skip_special_tokens=False) == text
    assert ours.encode("a<s>b", add_special_tokens=False)[1] == 0


def test_damaged_metadata_is_one_sentence(stories, tmp_path):
    tokens, types = ["<unk>", "<s>", "a", "b", "ab"], [UNKNOWN, CONTROL, NORMAL, NORMAL, NORMAL]
    path = tmp_path / "c.gguf"
    for arguments, error, words in [
        ({"model": "llama"}, ValueError, "lacks the metadata `tokenizer.ggml.scores`"),
        ({"model": "llama", "scores": [0.0] * 4}, ValueError, "array of 5 numbers"),
        ({"model": "llama", "scores": [0.0] * 5, "bos": 7}, ValueError, "bos_token_id` is 7"),
        ({"model": "bert"}, NotImplementedError, "'bert' is not supported"),
        ({"model": "gpt2"}, ValueError, "merges` must be an array of texts"),
        ({"model": "gpt2", "merges": ["a b", "b"]}, ValueError, "'b', not two parts"),
        ({"model": "gpt2", "merges": ["a b"], "pre": "new"}, NotImplementedError, "'new' is not supported"),
    ]:
        write(path, tokens=tokens, types=types, **arguments)
        with pytest.raises(error, match=words) as caught:
            Tokenizer(path)
        assert str(path) in str(caught.value) and "\n" not in str(caught.value)
    with GGUFFile(write(path, "none", tokens, types=types)) as file:
        assert not gguf_tokenizer.has_tokenizer(file)
