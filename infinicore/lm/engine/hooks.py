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
    """Guesses how a text goes on."""

    def __call__(self, token_ids: list[int]) -> list[int]:
        """Some tokens that may follow these, prompt included; [] for no idea. `token_ids` is not to be changed."""
