"""Several ranks that compute one model: the first one leads, the others follow its steps.

The leader runs a model as if it were whole: engines, caches and samplers know nothing of other ranks. Before a step it
sends what the step is, 16 numbers, and its index tensors, in one message each; the others, which sit in `follow`, make
the same `Step` over caches of their own and compute their part. While the leader records a graph, the messages are
launches of it, and the others record theirs: from then on the message names a graph, and all replay without Python.

    leader      header  indices | its layers, with collectives | takes the logits      choice of tokens
    followers   header  indices | their layers                 | give their part       wait

On GPUs all but the header travels between these, as collectives that a graph of them can hold (`GpuLinks.records`);
before it replays such a graph the leader sends the header, and the host of nobody waits for a GPU. Where ranks share a
GPU, or GPUs do not reach one another, steps are computed one by one.
"""

import atexit
import functools
import itertools
import signal
import sys
import weakref

import numpy as np

import infinicore

from ..autograd import no_grad
from ..core import launch as core_launch
from ..core.graph import unrecorded
from ..device import CPU
from ..dispatch import copy_into, empty
from ..distributed import collectives as c
from ..distributed import world
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
        self.places = self.steps.comm.allgather((world.host(), model.device.backend.identity))
        self.caches, self.graphs = weakref.WeakKeyDictionary(), {}
        self.device = model.device
        self.on_host = self.device.backend.shares_memory
        self.records = self.on_host or self._graphs_hold()
        self._numbers = itertools.count(1)
        self._led = None  # what tells the others of the graph that is being recorded
        self._gone = []  # what the leader no longer has: (kind, number)
        self._inside = self._stopped = self._leaving = False
        if self.world.rank == 0:
            atexit.register(self.stop)

    def _graphs_hold(self):
        """Whether graphs of the device hold the collectives of a step, on all ranks."""
        groups = [group for group in (self.world, self.mesh.tp, self.mesh.pp) if group.size > 1]
        return all(self.steps.comm.allgather(all([group.links_on(self.device).records() for group in groups])))

    @functools.cached_property
    def sharing(self):
        """How many of the ranks share the memory of this one: of its machine, or of its GPU."""
        return self.places.count(self.places[self.world.rank])

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
        if self.on_host:
            self._send(header, indices, *tables)
        else:
            self._send_unrecorded(header)
            self._spread(indices, *tables)
            self._led = header, array
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

    def recorded(self, graph):
        """A graph that was recorded around a step, as one that the others replay too."""
        led, self._led = self._led, None
        return graph if self.on_host else _Led(graph, self._send, *led)

    @staticmethod
    def one_by_one(compute):
        """In place of a graph where none holds a step: `compute()` gives the logits, each time in the same place."""
        return _Unrecorded(compute)

    def _announce(self, cache):
        """Tell the others of a cache that they have not seen, and of what is gone."""
        if cache in self.caches and not self._gone:
            return
        with unrecorded():
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

    def _send_numbers(self, kind, *numbers):
        header, array = _header(kind)
        array[1 : 1 + len(numbers)] = numbers
        self._send(header)

    def _send(self, *tensors):
        peers = range(1, self.world.size)
        c.batch([c.P2P("send", x, peer) for peer in peers for x in tensors], self.steps)

    def _send_unrecorded(self, header):
        with unrecorded():
            self._send(header)

    def _spread(self, *tensors):
        """Tensors of the leader to all ranks, on their GPUs."""
        for x in tensors:
            c.broadcast(x, 0, self.world)

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
        infinicore.start_graph_recording(CPU)
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
            infinicore.start_graph_recording(self.device)
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
        indices = empty((sum(sizes),), infinicore.int64, None, self.device)
        rotary, tables = self.model.rotary, []
        if length == -2:
            shape = tokens, self.model.config.head_dim // 2
            tables = [empty(shape, rotary.dtype, None, self.device) for _ in range(2)]
        if self.on_host:
            c.batch([c.P2P("recv", x, 0) for x in (indices, *tables)], self.steps)
        else:
            self._spread(indices, *tables)
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
            return ScratchCache(blocks, size, config.num_key_value_heads, config.head_dim, dtype, self.device)
        options = {"blocks": blocks, "block_size": size, "max_length": size, "device": self.device}
        return BlockCache(config, dtype, sequences=1, **options)

    # ---- a step, on every rank ----

    def _compute(self, step, head):
        """This rank's part of a step; on the first rank, the result."""
        decoder, stage, state, result = self.model.decoder, self.mesh.pp, None, None
        layers = getattr(decoder, decoder.pieces[1])
        for number in range(stage.size):
            if number == stage.rank:
                state = decoder.begin(step) if number == 0 else state
                first, stop = decoder.span or (0, len(layers))
                for at in range(first, stop):
                    state = layers[at](*state, step)
            if number < stage.size - 1:
                shape = step.token_ids.shape[0], self.model.config.hidden_size
                state = self._hand_on(state, [shape] * decoder.carried, number, number + 1)
        last = stage.size - 1
        if stage.rank == last:
            result = self._head(decoder.end(state, step)) if head else decoder.end(state, step)
        if last and self.mesh.tp.rank == 0:
            config, rows = self.model.config, step.token_ids if step.rows is None else step.rows
            shape = rows.shape[0], config.vocab_size if head else config.hidden_size
            result = self._hand_on([result], [shape], last, 0)[0]
        return result if self.world.rank == 0 else None

    def _head(self, hidden):
        """Logits of hidden states, on the first rank of `tp` at least."""
        group, head = self.mesh.tp, self.model.lm_head
        if group.size == 1:
            return head(hidden)
        return gather_last(head.part(hidden), head.shares["weight"], group, 0 if self.on_host else None)

    def _hand_on(self, tensors, shapes, source, to):
        """What stage `source` has computed, [..., shapes], on stage `to`; on GPUs, all stages get it."""
        stage = self.mesh.pp
        if stage.rank != source and (stage.rank == to or not self.on_host):
            tensors = [empty(shape, self.model.dtype, None, self.device) for shape in shapes]
        if not self.on_host:
            for x in tensors:
                c.broadcast(x, source, stage)
        elif stage.rank in (source, to):
            kind, peer = ("send", to) if stage.rank == source else ("recv", source)
            c.batch([c.P2P(kind, x, peer) for x in tensors], stage)
        return tensors


class _Led:
    """A graph of a GPU that the others have as well: `run()` tells them, and replays it."""

    def __init__(self, graph, send, header, array):
        self._graph, self._send, self._header, self._array, self._tell = graph, send, header, array, None
        self.nbytes = graph.nbytes

    def run(self):
        """Replay it on all ranks."""
        if self._tell is None:
            infinicore.start_graph_recording(CPU)
            try:
                self._send(self._header)
            finally:
                self._tell = infinicore.stop_graph_recording()
        else:
            self._tell.run()
        self._graph.run()


class _Unrecorded:
    """What computes a step again, in place of a graph that holds it."""

    def __init__(self, compute):
        self._compute, self.logits, self.nbytes = compute, None, 0

    def run(self):
        """Compute it."""
        logits = self._compute()
        if self.logits is None:
            self.logits, self.nbytes = logits, logits.nbytes
        else:
            copy_into(self.logits, logits)


def _header(kind):
    """(a message, the array of its numbers)."""
    array = np.zeros(HEADER, np.int64)
    array[KIND] = kind
    return infinicore.from_numpy(array), array
