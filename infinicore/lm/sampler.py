"""How the next token is chosen in a batch with common parameters."""

import random

import infinicore

from ..dispatch import mirror


class Sampler:
    """Chooses tokens for a batch with common `SamplingParams`; its state lies in tensors that a graph can read.

    `begin(prompts)` starts over, `note` adds a token to what the repetition penalty looks at, `draw` provides the
    random numbers of the next choice, and `choose` turns logits into ids. Sequence i draws from a generator of its
    own, seeded with `seed + i`: what it draws does not depend on the others.
    """

    def __init__(self, params, sequences, max_length, device=None):
        self.params = params
        self._options = {}
        if not params.greedy or params.repetition_penalty != 1:
            values = {name: getattr(params, name) for name in ("temperature", "top_k", "top_p", "min_p")}
            values |= {"repetition_penalty": params.repetition_penalty}
            for name, value in values.items():
                dtype = infinicore.int64 if name == "top_k" else infinicore.float64
                self._options[name] = infinicore.full((sequences,), value, dtype=dtype, device=device)
            self._uniforms = mirror((sequences,), infinicore.float64, device)
            self._options["random_val"] = self._uniforms.tensor
        if params.repetition_penalty != 1:
            self._seen = mirror((sequences, max_length), infinicore.int64, device)
            self._options["history"] = self._seen.tensor
            self._lengths = [0] * sequences
        seeds = [None if params.seed is None else params.seed + index for index in range(sequences)]
        self._generators = [random.Random(seed) for seed in seeds]

    def begin(self, prompts):
        """Start over with prompts (lists of ids, one per sequence)."""
        if "history" in self._options:
            self._seen.host[:] = -1
            self._lengths = [0] * len(prompts)
            for sequence, prompt in enumerate(prompts):
                for token in dict.fromkeys(prompt):
                    self.note(sequence, token)

    def note(self, sequence, token):
        """A token that the sequence holds from now on."""
        if "history" in self._options:
            self._seen.host[sequence, self._lengths[sequence]] = token
            self._lengths[sequence] += 1

    def draw(self, sequences):
        """Bring what the next choice of these sequences needs to the device, with new random numbers."""
        if not self.params.greedy:
            for sequence in sequences:
                self._uniforms.host[sequence] = self._generators[sequence].random()
            self._uniforms.flush()
        if "history" in self._options:
            self._seen.flush()

    def choose(self, logits, sequences, out):
        """Write token ids [R] (int64) into `out`, for logits [R, vocabulary] of these sequences."""
        options = self._options
        if options and len(sequences) != len(self._generators):
            rows = infinicore.tensor(list(sequences), device=logits.device)
            options = {name: infinicore.embedding(rows, _matrix(tensor)) for name, tensor in options.items()}
            options = {name: t if name == "history" else t.view(-1) for name, t in options.items()}
        infinicore.sample_tokens(logits, **options, out=out)


def _matrix(tensor):
    return tensor if tensor.ndim == 2 else tensor.unsqueeze(1)
