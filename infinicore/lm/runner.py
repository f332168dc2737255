"""Runs a model over a cache: prompts in chunks, then one token per sequence and step from a recorded graph."""

import infinicore

from .. import config
from ..autograd import no_grad
from ..context import NumThreads
from ..dispatch import mirror
from .kvcache import PagedCache, StaticCache
from .step import Step, build, indices

CACHES = {"static": StaticCache, "paged": PagedCache}


def make_cache(model, kind, sequences, max_length, dtype=None):
    """A cache for `sequences` of up to `max_length` tokens; `kind` is "static" or "paged", `dtype` None or "int8"."""
    if kind not in CACHES:
        raise ValueError(f"`cache` must be one of {', '.join(map(repr, CACHES))}, got {kind!r}")
    if dtype is not None and dtype not in ("int8", infinicore.int8):
        raise ValueError(f"`kv_cache_dtype` must be 'int8', or None for the dtype of the model, got {dtype!r}")
    dtype = model.dtype if dtype is None else infinicore.int8
    return CACHES[kind](model.config, dtype, sequences=sequences, max_length=max_length)


class Runner:
    """`prefill(prompts)` and then `step()` as often as wanted; each leaves the chosen tokens in `tokens`.

    `sampler` chooses them; it is recorded with the step. `decode_threads` (default: `INFINICORE_DECODE_THREADS`, else
    as many as for prompts) is how many threads a step uses; `kv_cache_dtype` is that of `make_cache`. What the cache
    holds from an earlier prompt and the next one begins with is not computed again.
    """

    def __init__(
        self, model, *, sequences=1, max_length, cache="static", sampler, chunk=512, decode_threads=None,
        kv_cache_dtype=None,
    ):  # fmt: skip
        self.model, self.sampler, self.chunk = model, sampler, chunk
        self.cache = make_cache(model, cache, sequences, max_length, kv_cache_dtype)
        self.held = [[] for _ in range(sequences)]  # the tokens stored, per sequence
        device = self.cache.device
        self._ids, *self._inputs = (mirror((sequences,), infinicore.int64, device) for _ in range(4))
        self.tokens = memoryview(self._ids.host)
        self._views = [memoryview(one.host) for one in self._inputs]  # positions, totals, slots
        self._graph = None
        self._active = 0
        given = config.get("INFINICORE_DECODE_THREADS") if decode_threads is None else decode_threads
        if given is not None and (not isinstance(given, int) or isinstance(given, bool) or given < 1):
            raise ValueError(f"`decode_threads` must be a positive integer, got {given!r}")
        self._decode_threads = NumThreads(given)

    @no_grad()
    def prefill(self, prompts, progress=None):
        """Run the prompts (lists of ids, one per sequence) and choose the first token of each.

        `progress(done, total)` is called with tokens. Returns how many tokens had to be computed.
        """
        self.sampler.begin(prompts)
        for sequence, prompt in enumerate(prompts):
            kept = _common(self.held[sequence], prompt)
            self.cache.truncate(sequence, kept)
            del self.held[sequence][kept:]
        total = sum(len(prompt) - len(held) for prompt, held in zip(prompts, self.held))
        done = 0
        while done < total:
            done += self._prefill_chunk(prompts)
            if progress is not None:
                progress(done, total)
        self._active = 0
        return total

    def _prefill_chunk(self, prompts):
        """Run the next tokens of the prompts, at most `chunk`; choose where a prompt ends."""
        sequences, chunks, ending, room = [], [], [], self.chunk
        for sequence, prompt in enumerate(prompts):
            first = len(self.held[sequence])
            piece = prompt[first : first + room]
            if not piece:
                continue
            if first + len(piece) == len(prompt):
                ending.append(len(sequences))
            sequences.append(sequence)
            chunks.append(piece)
            room -= len(piece)
        lengths = [len(prompts[sequence]) for sequence in sequences]
        step = build(self.cache, self.model.rotary, sequences, chunks, rows=ending, lengths=lengths)
        if ending:
            rows = [sequences[i] for i in ending]
            ids = infinicore.zeros((len(rows),), dtype=infinicore.int64, device=self.cache.device)
            self.sampler.draw(rows)
            self.sampler.choose(self.model.logits(step), rows, ids)
            for sequence, token in zip(rows, ids.tolist()):
                self.tokens[sequence] = token
        else:
            self.model.states(step)
        for sequence, piece in zip(sequences, chunks):
            self.held[sequence] += piece
        return sum(map(len, chunks))

    @no_grad()
    def step(self, sequences):
        """Feed the tokens last chosen for `sequences` and choose the next; the others stand still."""
        if len(sequences) != self._active:
            self._stand_still()
            self._active = len(sequences)
        self.sampler.draw(sequences)
        try:
            for sequence in sequences:
                self._feed(sequence)
            for one in (self._ids, *self._inputs, self.cache.block_tables):
                one.flush()
            with self._decode_threads:
                if self._graph is None:
                    self._record()
                else:
                    self._graph.run()
            self._ids.fetch()
        except BaseException:
            # An interrupt: what may not have been computed must not count as stored.
            for sequence in sequences:
                del self.held[sequence][self.cache.lengths[sequence] - 1 :]
                self.cache.truncate(sequence, len(self.held[sequence]))
            raise

    def _feed(self, sequence):
        """Point the inputs of a step at the last token of a sequence, and count it as stored."""
        cache, token = self.cache, self.tokens[sequence]
        position = len(self.held[sequence])
        cache.grow(sequence, position + 1)
        cache.lengths[sequence] = position + 1
        self.held[sequence].append(token)
        self.sampler.note(sequence, token)
        positions, totals, slots = self._views
        positions[sequence], totals[sequence] = position, position + 1
        slots[sequence] = cache.slot(sequence, position)

    def _stand_still(self):
        """Let a step compute something harmless for every sequence, and store it nowhere."""
        positions, totals, slots = self._views
        for sequence, length in enumerate(self.cache.lengths):
            positions[sequence], totals[sequence] = max(0, length - 1), max(1, length)
            slots[sequence] = -1

    def _record(self):
        """Run one step and record it: every address in it stays the same from now on."""
        count = len(self.held)
        sine, cosine = self.model.rotary.ensure(self.cache.capacity)
        positions, totals, slots = (one.tensor for one in self._inputs)
        step = Step(
            token_ids=self._ids.tensor,
            positions=positions,
            sine=sine,
            cosine=cosine,
            query_starts=indices(range(count + 1)),
            totals=totals,
            block_tables=self.cache.block_tables.tensor,
            slots=slots,
            rows=None,
            cache=self.cache,
            longest_query=1,
            longest_total=self.cache.capacity,
        )
        infinicore.start_graph_recording()
        try:
            self.sampler.choose(self.model.logits(step), range(count), self._ids.tensor)
        finally:
            self._graph = infinicore.stop_graph_recording()


def _common(held, prompt):
    """How many tokens of a prompt are stored already; its last one always runs, for its logits."""
    limit = min(len(held), len(prompt) - 1)
    for i in range(limit):
        if held[i] != prompt[i]:
            return i
    return limit
