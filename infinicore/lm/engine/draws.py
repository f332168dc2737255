"""How the tokens of one answer are chosen: its random numbers, and what happens to its logits before."""

import os

import numpy as np

_GOLDEN = 0x9E3779B97F4A7C15
_BITS = (1 << 64) - 1


def seed_of(params, index):
    """The 64-bit seed of answer `index`: nearby seeds and answers have nothing in common."""
    seed = int.from_bytes(os.urandom(8), "little") if params.seed is None else params.seed
    return int(mix(np.array([(seed + index * _GOLDEN) & _BITS], np.uint64))[0])


def mix(z):
    """The output function of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014) of uint64s."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def uniforms(seeds, counts):
    """Numbers in [0, 1), the `counts`-th of the generators with these seeds (uint64): they depend on nothing else."""
    return (mix(seeds + (counts + np.uint64(1)) * np.uint64(_GOLDEN)) >> np.uint64(11)) * 2.0**-53


class Seen:
    """Which tokens an answer's text has, in arrays for NumPy, and by how much each is made less likely.

    The repetition penalty (Keskar et al., arXiv 1909.05858) counts for prompt and answer, those of OpenAI's API for the
    answer alone: `presence` once, `frequency` each time.
    """

    def __init__(self, prompt, own, params):
        self._params = params
        self._ids = np.unique(np.asarray(prompt, np.int64))
        self._less = np.zeros(len(self._ids), np.float32)
        self._places = {token: place for place, token in enumerate(self._ids.tolist())}
        self._own, self._last = set(), None  # place of the last token, if that has changed something
        for token in own:
            self.note(token)

    def note(self, token):
        fresh, frequency = token not in self._own, self._params.frequency_penalty
        self._last = None
        if not fresh and not frequency:
            return
        place = self._last = self._places.setdefault(token, len(self._places))
        if place == len(self._ids):
            self._ids = np.concatenate([self._ids, np.full(max(64, place), token)])
            self._less = np.concatenate([self._less, np.zeros(max(64, place), np.float32)])
        self._ids[place] = token
        self._less[place] += frequency
        if fresh:
            self._own.add(token)
            self._less[place] += self._params.presence_penalty

    def write(self, history, bias):
        """Write all into a row of what `sample_tokens` takes by these names."""
        count = len(self._places)
        history[:count] = self._ids[:count]
        bias[:count] = -self._less[:count]

    def write_last(self, history, bias):
        """Write what the last token has changed since, into memoryviews of such rows."""
        if self._last is not None:
            history[self._last], bias[self._last] = int(self._ids[self._last]), -float(self._less[self._last])

    def penalize(self, row):
        """Change the logits of these tokens."""
        count, penalty = len(self._places), self._params.repetition_penalty
        ids = self._ids[:count]
        values = row[ids]
        if penalty != 1:
            values = np.where(values > 0, values / penalty, values * penalty)
        row[ids] = values - self._less[:count]


class Draws:
    """What the sampler keeps of one answer. `changes` says whether its logits are changed before the choice, and
    `edits`, whether by more than penalties, which `sample_tokens` knows.

    `stop_ids` may not come before `min_tokens`; `bad_words` are token ids of each word. `stuck` is set where no token
    may come.
    """

    def __init__(self, params, index, vocab_size, stop_ids, bad_words, matcher):
        self.params, self.seed, self.matcher, self.bad_words = params, seed_of(params, index), matcher, bad_words
        self.stuck, self.seen, self.bias, self.barred = False, None, None, None
        if params.allowed_token_ids is not None:
            self.barred = np.ones(vocab_size, bool)
            self.barred[list(params.allowed_token_ids)] = False
        if params.logit_bias:
            values = np.array(list(params.logit_bias.values()), np.float32)
            self.bias = np.array(list(params.logit_bias), np.int64), values
        self.stop_ids = np.array(sorted(stop_ids), np.int64)
        self.mask = np.zeros(-(-vocab_size // 32), np.uint32) if matcher is not None else None
        penalties = (params.repetition_penalty - 1, params.presence_penalty, params.frequency_penalty)
        self.penalized = any(penalties)
        told = bool(bad_words) or matcher is not None or params.min_tokens > 0
        self.follows = self.penalized or told
        fixed = self.bias is not None or self.barred is not None
        self.edits = told or fixed or (params.typical_p < 1 and not params.greedy)
        self.changes = self.penalized or self.edits
        self.wants_logprobs = params.logprobs is not None or (params.best_of or params.n) > params.n

    def change(self, row, sequence):
        """Change the logits float32 [vocabulary] of the next token, in the order of `SamplingParams`."""
        params = self.params
        if self.matcher is not None:
            self.mask[:] = 0
            self.matcher.fill_mask(self.mask)
            allowed = np.unpackbits(self.mask.view(np.uint8), bitorder="little")[: len(row)]
            if not allowed.any():
                self.stuck = True
                return
            row[allowed == 0] = -np.inf
        if self.barred is not None:
            row[self.barred] = -np.inf
        if self.bias is not None:
            row[self.bias[0]] += self.bias[1]
        for word in self.bad_words:
            before = len(word) - 1
            if before == 0 or (sequence.num_new >= before and sequence.token_ids[-before:] == word[:-1]):
                row[word[-1]] = -np.inf
        if sequence.num_new < params.min_tokens:
            row[self.stop_ids] = -np.inf
        if self.penalized:
            self.seen_by(sequence).penalize(row)
        if params.typical_p < 1 and not params.greedy:
            _typical(row, params.typical_p, params.temperature)
        if self.barred is not None and not np.isfinite(row).any():  # what is allowed, something else forbids
            self.stuck = True

    def seen_by(self, sequence):
        """The `Seen` of the answer, made now if there is none yet."""
        if self.seen is None:
            split = sequence.num_prompt
            self.seen = Seen(sequence.token_ids[:split], sequence.token_ids[split:], self.params)
        return self.seen

    def note(self, token):
        if self.seen is not None:
            self.seen.note(token)


def log_softmax(rows):
    """Of the last dim, float32, summed up in float64."""
    shifted = rows - rows.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True, dtype=np.float64)).astype(np.float32)


def _typical(row, mass, temperature):
    """Keep the tokens whose surprise is closest to the expected one (Meister et al., arXiv 2202.00666)."""
    logs = log_softmax(row / np.float32(temperature))
    shares = np.exp(logs)
    entropy = -(shares * np.where(shares > 0, logs, 0)).sum()
    order = np.argsort(np.abs(-logs - entropy), kind="stable")
    kept = int(np.searchsorted(np.cumsum(shares[order]), mass)) + 1
    row[order[kept:]] = -np.inf
