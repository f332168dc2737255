"""What users ask: random prompts, prompts with common prefixes, conversations from a file. The options are vLLM's."""

import json
import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np

NAMES = ("random", "prefix_repetition", "sharegpt")


@dataclass(slots=True, frozen=True)
class Prompt:
    """A text or token ids, how many tokens that is, and how many are to follow."""

    prompt: str | list[int]
    tokens: int
    output: int


class Vocabulary:
    """Random tokens: as texts of a tokenizer, or as ids below `size` where there is no tokenizer."""

    def __init__(self, tokenizer=None, size=None):
        if tokenizer is None and size is None:
            raise ValueError("random prompts need the model's tokenizer: pass `--tokenizer`, or `--vocab-size` for ids")
        self.tokenizer, self._size = tokenizer, size or len(tokenizer)

    def draw(self, rng, count):
        """Token ids; the first few of a vocabulary are special, which no text should have."""
        return rng.integers(min(259, self._size // 2), self._size, count).tolist()

    def prompt(self, ids):
        """(prompt, tokens): the text of the ids, and how many tokens the tokenizer makes of that; or the ids."""
        if self.tokenizer is None:
            return ids, len(ids)
        text, wanted = self.tokenizer.decode(ids), len(ids)
        for _ in range(8):  # a text that is read again has other tokens, rarely as many
            ids = self.tokenizer.encode(text, add_special_tokens=False)
            if len(ids) == wanted:
                break
            text = self.tokenizer.decode((ids * (1 + wanted // max(1, len(ids))))[:wanted])
        return text, len(self.tokenizer.encode(text))


def _around(rng, length, ratio):
    """A length from length * (1 - ratio) to length * (1 + ratio), at least 1."""
    return max(1, int(rng.integers(int(length * (1 - ratio)), int(length * (1 + ratio)) + 1)))


def random_prompts(vocabulary, count, *, input_len, output_len, range_ratio=0.0, prefix_len=0, seed=0):
    """Random tokens after `prefix_len` common ones; lengths differ by `range_ratio`, so by half for 0.5."""
    if not 0 <= range_ratio < 1:
        raise ValueError(f"`--random-range-ratio` must be at least 0 and below 1, got {range_ratio}")
    rng = np.random.default_rng(seed)
    prefix, out = vocabulary.draw(rng, prefix_len), []
    for _ in range(count):
        ids = prefix + vocabulary.draw(rng, _around(rng, input_len, range_ratio))
        out.append(Prompt(*vocabulary.prompt(ids), _around(rng, output_len, range_ratio)))
    return out


def prefix_repetition(vocabulary, count, *, prefix_len, suffix_len, num_prefixes, output_len, seed=0):
    """Users who share `num_prefixes` prompts: each has an equal share of the users, in random order."""
    if not 1 <= num_prefixes <= count:
        raise ValueError(f"`--prefix-repetition-num-prefixes` must be from 1 to {count} prompts, got {num_prefixes}")
    rng = np.random.default_rng(seed)
    prefixes = [vocabulary.draw(rng, prefix_len) for _ in range(num_prefixes)]
    ids = [prefixes[i % num_prefixes] + vocabulary.draw(rng, suffix_len) for i in range(count)]
    rng.shuffle(ids)
    return [Prompt(*vocabulary.prompt(one), output_len) for one in ids]


def sharegpt(tokenizer, count, *, path, output_len=None, seed=0):
    """First turns of the conversations in a ShareGPT file, a JSON list of {"conversations": [{"value": text}, ...]}.

    An answer has as many tokens as the file's, or `output_len`; very short and very long ones are left out as in vLLM.
    """
    if tokenizer is None:
        raise ValueError("`--dataset-name sharegpt` needs the model's tokenizer: pass `--tokenizer`")
    if path is None:
        raise ValueError("`--dataset-name sharegpt` needs a file: pass `--dataset-path`")
    try:
        table = json.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON: {str(error)[:200]}") from None
    if not isinstance(table, list):
        raise ValueError(f"{path} must hold a JSON list of conversations, got a {type(table).__name__}")
    turns = [_turns(entry) for entry in table]
    turns = [pair for pair in turns if pair is not None]
    random.Random(seed).shuffle(turns)
    out = []
    for question, answer in turns:
        if len(out) == count:
            break
        tokens, answered = len(tokenizer.encode(question)), len(tokenizer.encode(answer, add_special_tokens=False))
        if tokens < 4 or tokens > 1024 or (output_len is None and (answered < 4 or tokens + answered > 2048)):
            continue
        out.append(Prompt(question, tokens, output_len or answered))
    if not out:
        raise ValueError(f"{path} has no conversation of two turns with 4 to 1024 tokens")
    return [out[i % len(out)] for i in range(count)]


def _turns(entry):
    """The texts of the first two turns, or None."""
    turns = entry.get("conversations") if isinstance(entry, dict) else None
    texts = [turn.get("value") for turn in turns[:2] if isinstance(turn, dict)] if isinstance(turns, list) else []
    return tuple(texts) if len(texts) == 2 and all(isinstance(text, str) and text for text in texts) else None
