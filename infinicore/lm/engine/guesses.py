"""How much of a guess is taken: what is written has the probabilities that single steps would give it.

A token that was guessed outright is taken where the engine's own draw at that place gives the same one; so greedy and
seeded texts are, token for token, those of single steps. A token that a draft model drew at random, for a request
without a seed, is taken by rejection sampling (Leviathan et al., arXiv 2211.17192): as often as can be, since whoever
asks for no seed cannot tell.
"""

import functools

import numpy as np

import infinicore


@functools.cache
def _random():
    """Made when it is wanted: importing numpy.random takes 4 ms."""
    return np.random.default_rng()


def to_host(logits):
    """Logits as a float32 array."""
    return logits.to("cpu", infinicore.float32).numpy()


def is_free(draws):
    """Whether nobody asked for certain draws of this answer, and its logits are taken as they are."""
    return draws.params.seed is None and not draws.params.greedy and not draws.changes


def shares(logits, params):
    """Probabilities float32 [vocabulary] of the next token, as `sample_tokens` draws it, from float32 logits."""
    weights = np.exp((logits - logits.max()) / np.float32(params.temperature))
    size = len(weights)
    if 0 < params.top_k < size:
        weights[logits < np.partition(logits, -params.top_k)[-params.top_k]] = 0
    if params.top_p < 1:
        total = weights.sum(dtype=np.float64)
        likely = np.flatnonzero(weights >= (1 - params.top_p) * total / size)  # the others are too few to matter
        order = likely[np.argsort(-logits[likely], kind="stable")]
        before = np.cumsum(weights[order], dtype=np.float64) - weights[order]
        kept = order[: max(1, int((before < params.top_p * total).sum()))]
        chosen = np.zeros_like(weights)
        chosen[kept] = weights[kept]
        weights = chosen
    weights[weights < params.min_p] = 0
    return weights / weights.sum(dtype=np.float64)


def draw(weights):
    """A token by weights [vocabulary]."""
    sums = np.cumsum(weights, dtype=np.float64)
    return int(np.searchsorted(sums, _random().random() * sums[-1], side="right").clip(max=len(sums) - 1))


def next_length(length, checked, accepted, most):
    """How many tokens to guess next time, at most `most`, after `length` where `accepted` of `checked` were taken.

    Two more where all were right, else one less, as transformers' `num_assistant_tokens_schedule="heuristic"` does: so
    what cannot be guessed costs a row a step, and what can is guessed in full again after two steps.
    """
    return min(most, length + 2) if accepted == checked else max(1, length - 1)


def taken(sequence, ids, logits):
    """The tokens that follow a sequence: as many of its draft as are taken, and one more.

    Row i of `logits` float32 [R, vocabulary] comes after i tokens of the draft, and `ids[i]` is what the engine drew
    from it.
    """
    draft, count = sequence.draft, 0
    if sequence.draft_shares is None:
        while count < len(ids) - 1 and draft[count] == ids[count]:
            count += 1
        return ids[: count + 1]
    for count, (token, guessed) in enumerate(zip(draft[: len(ids) - 1], sequence.draft_shares)):
        wanted = shares(logits[count], sequence.draws.params)
        if _random().random() * guessed[token] >= wanted[token]:
            left = np.maximum(wanted - guessed, 0)
            return [*draft[:count], draw(left if left.any() else wanted)]  # none is left by rounding alone
    return [*draft[: len(ids) - 1], ids[-1]]
