"""The next tokens of a batch, each row by the parameters of its own request, in one launch."""

import numpy as np

import infinicore

from ...dispatch import mirror
from .draws import log_softmax, uniforms

_OPTIONS = (("random_val", "float64"), ("temperature", "float64"), ("top_k", "int64"), ("top_p", "float64"),
            ("min_p", "float64"), ("repetition_penalty", "float64"))  # fmt: skip
_AHEAD = 128  # steps whose random numbers are made together: 50 us for them, as for those of a single step


class Sampler:
    """Chooses tokens for up to `rows` rows of sequences whose `draws` say how.

    `prepare` tells it whose rows they are, and `launch` chooses from logits that nobody changes; a graph may record it.
    `choose` does what the rows need beyond that. `history` (None: no recorded step has penalties) is how many rows of a
    recorded step may have penalties, and how many different tokens a text can have.
    """

    def __init__(self, device, rows, history=None):
        self.rows, self._device, self._history_shape, self._history = rows, device, history, None
        self._mirrors = {name: mirror((rows,), getattr(infinicore, dtype), device) for name, dtype in _OPTIONS}
        self._numbers = memoryview(self._mirrors["random_val"].host)
        self._views = {}  # row count -> the tensors of so many rows
        self._version, self._count, self.kind = None, 0, "greedy"
        self._penalized, self._written = (), []  # [(`Seen`, its rows)]; rows whose history is not empty

    def prepare(self, wanted, count, version=None):
        """Get ready for `count` rows; returns what they need, `kind`: "greedy", "sampled", "penalized" (in steps of one
        token for each, which have a `version`), or "logits" for more.

        `wanted`: [(sequence, its first row, rows)], of which several are for tokens in a row. A `version` equal to
        that of the last call says that these are the same sequences, one token later.
        """
        if version is None or version != self._version or count != self._count:
            self._place(wanted, count, version is not None)
        else:
            self._step += 1
            for seen, history, bias in self._penalized:
                seen.write_last(history, bias)
        self._version, self._count = version, count
        if not self._greedy:
            self._draw()
        if self._penalized:
            for one in self._history:
                one.flush()
        return self.kind

    def start_over(self):
        """The next step is not the one after that of the last call."""
        self._version = None

    def _place(self, wanted, count, recorded):
        """Write the parameters of `count` rows; those of no sequence take the most likely token."""
        self._greedy, self._step, self._random, self._penalized = True, 0, (), ()
        self._now = self._numbers[:count]
        self._seeds, self._counts = np.zeros(count, np.uint64), np.zeros(count, np.uint64)
        temperature = self._mirrors["temperature"].host
        temperature[:count] = 0
        for sequence, first, rows in wanted:
            draws, stop = sequence.draws, first + rows
            params = draws.params
            if not params.greedy:
                self._greedy = False
                self._seeds[first:stop] = draws.seed
                self._counts[first:stop] = range(sequence.num_new, sequence.num_new + rows)
                temperature[first:stop] = params.temperature
                for name in ("top_k", "top_p", "min_p"):
                    self._mirrors[name].host[first:stop] = getattr(params, name)
        self.kind = "greedy" if self._greedy else "sampled"
        self._special = [one for one in wanted if one[0].draws.changes or one[0].draws.wants_logprobs]
        if self._special and (not recorded or any(one.draws.edits or one.draws.wants_logprobs for one, *_ in wanted)):
            self.kind = "logits"
        elif self._special:
            self.kind, self._special = "penalized", []
            self._place_seen(wanted, count)
        if self.kind == "penalized" or not self._greedy:
            for one in self._mirrors.values():
                one.flush()

    def _place_seen(self, wanted, count):
        """Write which tokens each row's text has; rows without penalties have none."""
        if self._history is None:
            dtypes = infinicore.int64, infinicore.float32
            self._history = [mirror(self._history_shape, dtype, self._device) for dtype in dtypes]
            self._history[0].host[:] = -1
        history, bias = (one.host for one in self._history)
        history[self._written] = -1
        penalty = self._mirrors["repetition_penalty"].host
        penalty[:count], self._penalized, self._written = 1, [], []
        for sequence, row, _ in wanted:
            if sequence.draws.penalized:
                seen = sequence.draws.seen_by(sequence)
                penalty[row] = sequence.draws.params.repetition_penalty
                seen.write(history[row], bias[row])
                self._written.append(row)
                self._penalized.append((seen, memoryview(history[row]), memoryview(bias[row])))

    def _draw(self):
        """Write the random numbers of this step."""
        place = self._step % _AHEAD
        if place == 0:
            ahead = np.arange(self._step, self._step + _AHEAD, dtype=np.uint64)[:, None]
            self._random = list(map(memoryview, uniforms(self._seeds, self._counts + ahead)))
        self._now[:] = self._random[place]
        self._mirrors["random_val"].flush()

    def launch(self, logits, out=None, longest=None):
        """Token ids [R] for the rows of `logits` [R, vocabulary], also written to `out` if given.

        In recorded steps, no text has more than `longest` tokens.
        """
        if self.kind == "penalized":
            count, length = logits.shape[0], min(longest, self._history_shape[1])
            history, bias = (one.tensor[:count, :length] for one in self._history)
            options = {name: one.tensor[:count] for name, one in self._mirrors.items()}
            return infinicore.sample_tokens(logits, **options, history=history, history_bias=bias, out=out)
        if self._greedy:
            return infinicore.sample_tokens(logits, out=out)
        count = logits.shape[0]
        if count not in self._views:
            names = ("random_val", "temperature", "top_k", "top_p", "min_p")
            self._views[count] = {name: self._mirrors[name].tensor[:count] for name in names}
        return infinicore.sample_tokens(logits, **self._views[count], out=out)

    def choose(self, logits, out=None):
        """`launch` for the rows of `prepare`, whose logits are changed first where their parameters say so.

        Returns (ids, log probabilities): a list, and of each sequence that wants them, by identity, float32 [rows,
        vocabulary].
        """
        logprobs = {}
        if self._special:
            logits = logits if logits.dtype is infinicore.float32 else logits.to(infinicore.float32)
            host, changed = logits.cpu().numpy(), False
            for sequence, first, rows in self._special:
                if sequence.draws.wants_logprobs:
                    logprobs[id(sequence)] = log_softmax(host[first : first + rows])
                if sequence.draws.changes:
                    changed = True
                    for row in range(first, first + rows):
                        sequence.draws.change(host[row], sequence)
            if changed and not logits.storage.backend.shares_memory:
                logits = infinicore.from_numpy(host, device=logits.device)
        return self.launch(logits, out).tolist(), logprobs
