"""The next tokens of a batch, each row by the parameters of its own request, in one launch."""

import numpy as np

import infinicore

from ...dispatch import mirror
from .draws import log_softmax, uniforms

_OPTIONS = (("random_val", "float64"), ("temperature", "float64"), ("top_k", "int64"), ("top_p", "float64"),
            ("min_p", "float64"))  # fmt: skip
_AHEAD = 128  # steps whose random numbers are made together: 50 us for them, as for those of a single step


class Sampler:
    """Chooses tokens for up to `rows` rows of sequences whose `draws` say how.

    `prepare` tells it whose rows they are, and `launch` chooses from logits that nobody changes; a graph may record it.
    `choose` does what the rows need beyond that.
    """

    def __init__(self, device, rows):
        self._mirrors = {name: mirror((rows,), getattr(infinicore, dtype), device) for name, dtype in _OPTIONS}
        self._numbers = memoryview(self._mirrors["random_val"].host)
        self._views = {}  # row count -> the tensors of so many rows
        self._version, self._rows, self.kind = None, 0, "greedy"

    def prepare(self, wanted, count, version=None):
        """Get ready for `count` rows; returns what they need, `kind`: "greedy", "sampled", or "logits" for more.

        `wanted`: [(sequence, its first row, rows)], of which several are for tokens in a row. A `version` equal to
        that of the last call says that these are the same sequences, one token later.
        """
        if version is None or version != self._version or count != self._rows:
            self._place(wanted, count)
        elif not self._greedy:
            self._step += 1
        self._version, self._rows = version, count
        if not self._greedy:
            self._draw(count)
        return self.kind

    def _place(self, wanted, count):
        """Write the parameters of `count` rows; those of no sequence take the most likely token."""
        self._special, self._greedy, self._step, self._random = [], True, 0, ()
        self._seeds, self._counts = np.zeros(count, np.uint64), np.zeros(count, np.uint64)
        temperature = self._mirrors["temperature"].host
        temperature[:count] = 0
        for sequence, first, rows in wanted:
            draws, stop = sequence.draws, first + rows
            params = draws.params
            if draws.changes or draws.wants_logprobs:
                self._special.append((sequence, first, rows))
            if not params.greedy:
                self._greedy = False
                self._seeds[first:stop] = draws.seed
                self._counts[first:stop] = range(sequence.num_new, sequence.num_new + rows)
                temperature[first:stop] = params.temperature
                for name in ("top_k", "top_p", "min_p"):
                    self._mirrors[name].host[first:stop] = getattr(params, name)
        if not self._greedy:
            for one in self._mirrors.values():
                one.flush()
        self.kind = "logits" if self._special else "greedy" if self._greedy else "sampled"

    def _draw(self, count):
        """Write the random numbers of this step."""
        place = self._step % _AHEAD
        if place == 0:
            ahead = np.arange(self._step, self._step + _AHEAD, dtype=np.uint64)[:, None]
            self._random = memoryview(uniforms(self._seeds, self._counts + ahead).ravel())
        self._numbers[:count] = self._random[place * count : place * count + count]
        self._mirrors["random_val"].flush()

    def launch(self, logits, out=None):
        """Token ids [R] for the rows of `logits` [R, vocabulary], also written to `out` if given."""
        if self._greedy:
            return infinicore.sample_tokens(logits, out=out)
        count = logits.shape[0]
        if count not in self._views:
            self._views[count] = {name: one.tensor[:count] for name, one in self._mirrors.items()}
        return infinicore.sample_tokens(logits, **self._views[count], out=out)

    def choose(self, logits, out=None):
        """`launch` for the rows of `prepare`, whose logits are changed first where their parameters say so.

        Returns (ids, log probabilities): a list, and of each sequence that wants them, by identity, float32 [rows,
        vocabulary].
        """
        logprobs = {}
        if self._special:
            logits = logits if logits.dtype is infinicore.float32 else logits.to(infinicore.float32)
            host = logits.cpu().numpy()
            for sequence, first, rows in self._special:
                if sequence.draws.wants_logprobs:
                    logprobs[id(sequence)] = log_softmax(host[first : first + rows])
                if sequence.draws.changes:
                    for row in range(first, first + rows):
                        sequence.draws.change(host[row], sequence)
            if logits.device.type != "cpu":
                logits = infinicore.from_numpy(host, device=logits.device)
        return self.launch(logits, out).tolist(), logprobs
