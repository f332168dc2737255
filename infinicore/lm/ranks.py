"""Several ranks that compute one model: the first one leads, the others follow its steps.

The leader runs a model as if it were whole: engines, caches and samplers know nothing of other ranks. Before a step it
sends what the step is, 16 numbers, and its index tensors, in one message each; the others, which sit in `follow`, make
the same `Step` over caches of their own and compute their part. While the leader records a graph, the messages are
launches of it, and the others record theirs: from then on the message names a graph, and all replay without Python.

    leader      header  indices | its layers, with collectives | takes the logits      choice of tokens
    followers   header  indices | their layers                 | give their part       wait
"""

import atexit
import itertools
import signal
import sys
import weakref

import numpy as np

import infinicore

from ..autograd import no_grad
from ..core import launch as core_launch
from ..distributed import collectives as c
from ..distributed.group import Group
from ..distributed.tensor_parallel import gather_last
from .kvcache import BlockCache, ScratchCache
from .step import Step

STOP, STEP, CACHE, COPY, DROP_CACHE, DROP_GRAPH = range(6)
# Places of a header. Of a step: its graph (0: none), cache, counts of tokens, sequences, blocks of a table, rows
# (-1: all), the longest lengths, whether logits are wanted, and rows of the rotary tables (-1: none, -2: they follow).
KIND, GRAPH, CACHE_ID, TOKENS, SEQUENCES, WIDTH, ROWS, QUERY, TOTAL, HEAD, TABLES = range(11)
HEADER = 16
_ENDLESS_S = 1e9  # followers of an idle server wait for days


class Ranks:
    """The ranks of `mesh`, which all have loaded their part of `model`; `lead` on the first, `follow` on the others."""

    def __init__(self, model, mesh):
        self.model, self.mesh, self.world = model, mesh, mesh.world
        comm, (_, transport, _) = mesh.world.comm.Dup(), mesh.world.settings
        self.steps = Group(comm, "steps", mesh.world.ranks, _ENDLESS_S, transport, None)
        self.caches, self.graphs = weakref.WeakKeyDictionary(), {}
        self._numbers = itertools.count(1)
        self._gone = []  # what the leader no longer has: (kind, number)
        self._inside = self._stopped = self._leaving = False
        if self.world.rank == 0:
            atexit.register(self.stop)

    @property
    def here(self):
        """How many of the ranks run on this machine."""
        return self.world.hosts.count(self.world.hosts[self.world.rank])

    # ---- the leader ----

    def lead(self, step, head):
        """Logits (with `head`), or hidden states, of a `Step`, computed with the others."""
        if self._stopped:
            raise ValueError("`model` cannot be used: the ranks that share it have been stopped")
        self._inside = True  # until it is done: after an error in between, the others wait for what never comes
        self._announce(step.cache)
        header, array = _header(STEP)
        self._describe(array, step, head)
        tensors = [step.token_ids, step.positions, step.slots, step.query_starts, step.totals, step.block_tables]
        tensors += [] if step.rows is None else [step.rows]
        indices = infinicore.cat([x.reshape(-1) for x in tensors])
        tables = [step.sine, step.cosine] if array[TABLES] == -2 else []
        self._send(header, indices, *tables)
        result = self._compute(step, head)
        self._inside = False
        if self._leaving:
            raise SystemExit(0)
        return result

    def _describe(self, array, step, head):
        sine, rows = step.sine, step.rows
        tables = -1
        if sine is not None:
            own = self.model.rotary._tables[1]
            tables = sine.shape[0] if own is not None and own.address == sine.address else -2
        array[CACHE_ID] = self.caches[step.cache]
        array[TOKENS], array[SEQUENCES] = step.token_ids.shape[0], step.totals.shape[0]
        array[WIDTH], array[ROWS] = step.block_tables.shape[1], -1 if rows is None else rows.shape[0]
        array[QUERY], array[TOTAL], array[HEAD], array[TABLES] = step.longest_query, step.longest_total, head, tables
        if core_launch.recording() is not None:
            number = next(self._numbers)
            array[GRAPH] = number
            weakref.finalize(array, self._gone.append, (DROP_GRAPH, number))  # the graph holds it

    def _announce(self, cache):
        """Tell the others of a cache that they have not seen, and of what is gone."""
        if cache in self.caches and not self._gone:
            return
        records = core_launch.recording()
        if records is not None:
            core_launch.record_into(None)
        try:
            while self._gone:
                self._send_numbers(*self._gone.pop())
            if cache not in self.caches:
                number = self.caches[cache] = next(self._numbers)
                weakref.finalize(cache, self._gone.append, (DROP_CACHE, number))
                keys, paged = cache.keys(0), isinstance(cache, BlockCache)
                blocks, _, size, _ = keys.shape
                self._send_numbers(CACHE, number, blocks, size, paged, keys.dtype is infinicore.int8)
                if paged:
                    cache.watch_copy = lambda block, copy: self._send_numbers(COPY, number, block, copy)
        finally:
            if records is not None:
                core_launch.record_into(records)

    def _send_numbers(self, kind, *numbers):
        header, array = _header(kind)
        array[1 : 1 + len(numbers)] = numbers
        self._send(header)

    def _send(self, *tensors):
        peers = range(1, self.world.size)
        c.batch([c.P2P("send", x, peer) for peer in peers for x in tensors], self.steps)

    def leave_when_terminated(self):
        """End this process at SIGTERM as at the end of a program: after the step that runs, and with the others."""

        def leave(*_):
            self._leaving = True
            if not self._inside:
                raise SystemExit(0)

        signal.signal(signal.SIGTERM, leave)

    def stop(self):
        """Let the others go; the model cannot be used any more. Called at the end of the process."""
        if self._stopped or self.world.rank != 0:
            return
        self._stopped = True
        if self._inside:  # they wait within a step
            sys.stdout.flush()
            sys.stderr.flush()
            self.world.comm.Abort(1)
        self._send_numbers(STOP)

    # ---- the others ----

    @no_grad()
    def follow(self):
        """Compute this rank's part of the leader's steps until it stops."""
        if self.world.rank == 0:
            raise ValueError("`follow` is for the ranks behind the first, which leads")
        header, array = _header(STOP)
        caches = {}
        infinicore.start_graph_recording()
        c.recv(header, 0, self.steps)
        receive = infinicore.stop_graph_recording()
        while array[KIND] != STOP:
            kind, number, *rest = array[: TABLES + 1].tolist()
            if kind == STEP and number in self.graphs:
                self.graphs[number].run()
            elif kind == STEP:
                self._follow_step(number, array.copy(), caches)
            elif kind == CACHE:
                caches[number] = self._cache(*rest[:4])
            elif kind == COPY:
                caches[number].copy_block(*rest[:2])
            else:
                (caches if kind == DROP_CACHE else self.graphs).pop(number, None)
            receive.run()
        self._stopped = True

    def _follow_step(self, number, header, caches):
        if number:
            infinicore.start_graph_recording()
        try:
            step = self._receive_step(header, caches[int(header[CACHE_ID])])
            self._compute(step, bool(header[HEAD]))
        finally:
            if number:
                self.graphs[number] = infinicore.stop_graph_recording()

    def _receive_step(self, header, cache):
        """The `Step` whose numbers the leader sends."""
        _, _, _, tokens, sequences, width, rows, query, total, _, length = header[: TABLES + 1].tolist()
        sizes = [tokens, tokens, tokens, sequences + 1, sequences, sequences * width, max(0, rows)]
        indices = infinicore.empty((sum(sizes),), dtype=infinicore.int64)
        rotary, tables = self.model.rotary, []
        if length == -2:
            shape = tokens, self.model.config.head_dim // 2
            tables = [infinicore.empty(shape, dtype=rotary.dtype) for _ in range(2)]
        c.batch([c.P2P("recv", x, 0) for x in (indices, *tables)], self.steps)
        parts = [indices.narrow(0, stop - size, size) for size, stop in zip(sizes, itertools.accumulate(sizes))]
        sine, cosine = tables or rotary.ensure(max(0, length))
        return Step(
            token_ids=parts[0], positions=parts[1], slots=parts[2], query_starts=parts[3], totals=parts[4],
            block_tables=parts[5].view(sequences, width), rows=None if rows < 0 else parts[6], sine=sine, cosine=cosine,
            cache=cache, longest_query=query, longest_total=total,
        )  # fmt: skip

    def _cache(self, blocks, size, paged, is_int8):
        config, dtype = self.model.config, infinicore.int8 if is_int8 else self.model.dtype
        if not paged:
            return ScratchCache(blocks, size, config.num_key_value_heads, config.head_dim, dtype)
        return BlockCache(config, dtype, sequences=1, blocks=blocks, block_size=size, max_length=size)

    # ---- a step, on every rank ----

    def _compute(self, step, head):
        """This rank's part of a step; on the first rank, the result."""
        decoder, stage = self.model.decoder, self.mesh.pp
        layers = getattr(decoder, decoder.pieces[1])
        if stage.rank == 0:
            state = decoder.begin(step)
        else:
            state = self._receive_state(step.token_ids.shape[0], stage)
        first, stop = decoder.span or (0, len(layers))
        for number in range(first, stop):
            state = layers[number](*state, step)
        if stage.rank < stage.size - 1:
            c.batch([c.P2P("send", x, stage.rank + 1) for x in state], stage)
            return self._take_result(step, head) if self.world.rank == 0 else None
        hidden = decoder.end(state, step)
        if not head:
            result = hidden
        elif self.mesh.tp.size == 1:
            result = self.model.lm_head(hidden)
        else:
            result = gather_last(self.model.lm_head.part(hidden), self.model.lm_head.shares["weight"], self.mesh.tp, 0)
        if stage.size > 1 and self.mesh.tp.rank == 0:
            c.send(result, 0, stage)
        return result

    def _receive_state(self, tokens, stage):
        """What the stage before has computed."""
        shape = tokens, self.model.config.hidden_size
        state = [infinicore.empty(shape, dtype=self.model.dtype) for _ in range(self.model.decoder.carried)]
        c.batch([c.P2P("recv", x, stage.rank - 1) for x in state], stage)
        return state

    def _take_result(self, step, head):
        config = self.model.config
        rows = step.token_ids.shape[0] if step.rows is None else step.rows.shape[0]
        shape = rows, config.vocab_size if head else config.hidden_size
        result = infinicore.empty(shape, dtype=self.model.dtype)
        return c.recv(result, self.mesh.pp.size - 1, self.mesh.pp)


def _header(kind):
    """(a message, the array of its numbers)."""
    array = np.zeros(HEADER, np.int64)
    array[KIND] = kind
    return infinicore.from_numpy(array), array
