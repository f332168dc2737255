"""Beam search: the likeliest texts, not one drawn token by token. No tensors, and no engine: it is asked in rounds.

Every round, whoever runs a `BeamSearch` finds the most likely next tokens of each of its `texts`, by requests for one
token, and hands them to `grow`. What the texts have in common lies in the cache of the engine.
"""

from dataclasses import dataclass

from .engine.outputs import CompletionOutput, Logprob
from .engine.params import SamplingParams
from .engine.writer import Writer


@dataclass(slots=True, frozen=True)
class BeamSearchParams:
    """vLLM's parameters of a beam search; a ValueError in one sentence for values out of range.

    `beam_width` texts are kept and returned, of up to `max_tokens` tokens (None: when the context is full), or up to
    an end-of-text token unless `ignore_eos`, which the text shows with `include_stop_str_in_output`. They are ranked
    by the sum of the natural logarithms of their tokens' probabilities, divided by the number of these tokens to the
    power `length_penalty` (as in transformers; vLLM counts the prompt's tokens, too): above 0, longer texts gain.
    `temperature` changes nothing: the probabilities are those of the model.
    """

    beam_width: int
    max_tokens: int | None = 16
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True

    def __post_init__(self):
        if type(self.beam_width) is not int or not 1 <= self.beam_width <= 128:
            raise ValueError(f"`beam_width` must be an integer from 1 to 128, got {self.beam_width!r}")
        penalty = self.length_penalty
        if isinstance(penalty, bool) or not isinstance(penalty, (int, float)) or not -10 <= penalty <= 10:
            raise ValueError(f"`length_penalty` must be a number from -10 to 10, got {penalty!r}")
        self.writing()  # says what is wrong with the others

    def writing(self):
        """The `SamplingParams` by which texts are written from tokens."""
        names = ("max_tokens", "ignore_eos", "temperature", "include_stop_str_in_output", "skip_special_tokens")
        return SamplingParams(**{name: getattr(self, name) for name in names})

    def round(self, vocab_size):
        """The `SamplingParams` of a round's requests: the two most likely continuations for each beam, and no text.

        If one of a beam's continuations ends it, another one for each beam is left.
        """
        count = min(2 * self.beam_width, vocab_size)
        return SamplingParams(
            temperature=0.0, max_tokens=1, logprobs=count, ignore_eos=True, detokenize=False, output_kind="final_only"
        )


@dataclass(slots=True)
class Beam:
    """A text that begins with the prompt, and the `Logprob`s from which each of its own tokens was taken."""

    token_ids: list[int]
    logprobs: list[dict[int, Logprob]]
    total: float = 0.0
    finish_reason: str | None = None

    def followed_by(self, token, row):
        return Beam([*self.token_ids, token], [*self.logprobs, row], self.total + row[token].logprob)


class BeamSearch:
    """The search from one prompt. `eos_ids` end a text; prompt and answer have at most `max_model_len` tokens.

    `live` are the beams that go on: none when the search is over.
    """

    def __init__(self, prompt_ids, params, eos_ids, max_model_len):
        room = max_model_len - len(prompt_ids)
        if room < 1 or (params.max_tokens or 1) > room:
            raise ValueError(
                f"`prompt` has {len(prompt_ids)} tokens and `max_tokens` is {params.max_tokens}, but prompt and answer "
                f"have at most {max_model_len}: shorten it, or ask for fewer"
            )
        self.prompt_ids, self._params = list(prompt_ids), params
        self._ends = () if params.ignore_eos else frozenset(eos_ids)
        self._most = params.max_tokens or room
        self.live, self._done = [Beam(self.prompt_ids, [])], []

    @property
    def texts(self):
        """The token ids of the beams whose next tokens are wanted."""
        return [beam.token_ids for beam in self.live]

    def grow(self, rows):
        """Go on by a token: `rows` has, for each of `texts`, the `Logprob`s of what may follow, by token id."""
        width, grown = self._params.beam_width, []
        for beam, row in zip(self.live, rows):
            for token in row:
                following = beam.followed_by(token, row)
                if token in self._ends:
                    following.finish_reason = "stop"
                    self._done.append(following)
                else:
                    grown.append(following)
        grown.sort(key=lambda beam: -beam.total)
        self.live = grown[:width]
        self._done = self.best()
        if not self.live:
            return
        if len(self.live[0].logprobs) >= self._most:
            for beam in self.live:
                beam.finish_reason = "length"
            self._done, self.live = self._done + self.live, []
        elif len(self._done) == width and self._bound() <= self._score(self._done[-1]):
            self.live = []

    def best(self):
        """The finished beams that are returned, the best first."""
        return sorted(self._done, key=self._score, reverse=True)[: self._params.beam_width]

    def _score(self, beam):
        return beam.total / len(beam.logprobs) ** self._params.length_penalty

    def _bound(self):
        """What no beam that goes on can exceed: its sum only falls, and its length is what the penalty likes best."""
        length = len(self.live[0].logprobs) + 1 if self._params.length_penalty <= 0 else self._most
        return self.live[0].total / length**self._params.length_penalty

    def answers(self, tokenizer, logprobs=None):
        """`CompletionOutput`s of `best`: texts by `tokenizer` (None: ""), with the `logprobs` likeliest tokens of each
        place (None: without).
        """
        return [self._answer(index, beam, tokenizer, logprobs) for index, beam in enumerate(self.best())]

    def sequences(self, tokenizer):
        """`BeamSearchSequence`s of `best`, with the texts of `tokenizer` (None: no texts)."""
        begun = None if tokenizer is None else tokenizer.decode(self.prompt_ids)
        texts = [None if begun is None else begun + answer.text for answer in self.answers(tokenizer)]
        return [
            BeamSearchSequence(beam.token_ids, beam.logprobs, beam.total, text, beam.finish_reason)
            for beam, text in zip(self.best(), texts)
        ]

    def _answer(self, index, beam, tokenizer, logprobs):
        own, text = beam.token_ids[len(self.prompt_ids) :], ""
        if tokenizer is not None:
            writer = Writer(tokenizer, self.prompt_ids, self._params.writing())
            hidden = beam.finish_reason == "stop" and not self._params.include_stop_str_in_output
            writer.push(*(own[:-1] if hidden else own))
            writer.finish()
            text = writer.text
        rows = None
        if logprobs is not None:
            rows = [_few(row, token, logprobs) for row, token in zip(beam.logprobs, own)]
        return CompletionOutput(index, text, own, beam.total, rows, beam.finish_reason)


def _few(row, token, count):
    """Of a row, the `count` most likely tokens and the one that was taken."""
    best = sorted(row, key=lambda one: -row[one].logprob)[:count]
    return {one: row[one] for one in dict.fromkeys((token, *best))}


@dataclass(slots=True)
class BeamSearchSequence:
    """One text that a beam search has found, as vLLM writes it: `tokens` and `text` begin with the prompt's."""

    tokens: list[int]
    logprobs: list[dict[int, Logprob]]
    cum_logprob: float
    text: str | None
    finish_reason: str
    stop_reason: int | str | None = None


@dataclass(slots=True)
class BeamSearchOutput:
    """What a beam search has found from one prompt, the best first."""

    sequences: list[BeamSearchSequence]
