"""The next tokens of a batch, each row by the parameters of its own request, in one launch."""

import numpy as np

import infinicore

from ...dispatch import mirror
from .draws import log_softmax, uniforms

_OPTIONS = (("random_val", "float64"), ("temperature", "float64"), ("top_k", "int64"), ("top_p", "float64"),
            ("min_p", "float64"))  # fmt: skip


class Sampler:
    """`choose(logits, wanted)` for rows of sequences whose `draws` say how."""

    def __init__(self, device):
        self._device, self._version, self._rows = device, None, 0
        self._grow(64)

    def _grow(self, rows):
        self._mirrors = {
            name: mirror((rows,), getattr(infinicore, dtype), self._device) for name, dtype in _OPTIONS
        }  # fmt: skip
        self._capacity, self._views = rows, {}

    def _place(self, count, wanted):
        """Write the parameters of `count` rows; those of no sequence take the most likely token."""
        if count > self._capacity:
            self._grow(2 * count)
        self._special, self._greedy = [], True
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
        for one in self._mirrors.values():
            one.flush()

    def choose(self, logits, wanted, out=None, version=None):
        """Token ids, a list for the rows of `logits` [R, vocabulary], also written to `out` if given.

        `wanted`: [(sequence, its first row, rows)], of which several are for tokens in a row. A `version` equal to
        that of the last call says that these are the same sequences, one token later. Returns (ids, log
        probabilities): of each sequence that wants them, by identity, float32 [rows, vocabulary].
        """
        count = logits.shape[0]
        if version is None or version != self._version or count != self._rows:
            self._place(count, wanted)
        else:
            self._counts += np.uint64(1)
        self._version, self._rows = version, count
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
        options = {}
        if not self._greedy:
            random = self._mirrors["random_val"]
            random.host[:count] = uniforms(self._seeds, self._counts)
            random.flush()
            if count not in self._views:
                self._views[count] = {name: one.tensor[:count] for name, one in self._mirrors.items()}
            options = self._views[count]
        ids = infinicore.sample_tokens(logits, **options, out=out)
        return ids.tolist(), logprobs
