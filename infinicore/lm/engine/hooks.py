"""What others may bring to the engine: constraints on the text, and proposals of tokens to come."""

from typing import Protocol

import numpy as np


class Matcher(Protocol):
    """The state of a constraint along one answer."""

    finished: bool  # the text is complete: it ends here

    def fill_mask(self, row: np.ndarray) -> None:
        """Set the bits of the tokens that may come next in `row`, uint32 [ceil(vocabulary / 32)], lowest bit first."""

    def accept(self, token_id: int) -> bool:
        """Go on past a token; False if it may not come here, which ends the answer."""


class StructuredOutputs(Protocol):
    """A constraint, as `SamplingParams.structured_outputs` holds it: plain data that can be pickled."""

    def matcher(self, tokenizer, vocab_size: int, stop_token_ids: tuple[int, ...]) -> Matcher:
        """A fresh matcher, one for each answer; ValueError in one sentence for a constraint that cannot be.

        `stop_token_ids` may come where the text may end. Called in the thread of the engine when a request is added.
        """


class Proposer(Protocol):
    """Guesses how texts go on. A function of the token ids of one text is made one by `ByText`."""

    def attach(self, model, tokenizer, *, num_seqs, max_model_len, block_size, num_blocks, decode_threads) -> None:
        """Get ready for an engine of this model that asks for `num_seqs` texts at once, with these sizes of its own.

        ValueError if the two do not fit.
        """

    def propose(self, sequences: list) -> list[tuple]:
        """(tokens, shares) for each `Sequence`: what may follow it, [] for no idea. Its lists are not to be changed.

        `shares` are the probabilities float32 [vocabulary] of which each token was drawn, or None if they were not
        drawn, or by the numbers that the engine draws by.
        """


class ByText:
    """A `Proposer` of a function that needs nothing but a text: token ids so far to those that may follow."""

    def __init__(self, guess):
        self._guess = guess

    def attach(self, model, tokenizer, **sizes):
        pass

    def propose(self, sequences):
        return [(self._guess(sequence.token_ids), None) for sequence in sequences]
