"""Runs a model over the paged cache: steps that only write replay recorded graphs, others are packed each time."""

from typing import NamedTuple

import numpy as np

import infinicore

from ...autograd import no_grad
from ...context import NumThreads
from ...core import memory
from ...dispatch import mirror
from ..kvcache import BlockCache
from ..step import Step, indices
from .adapters import Adapters

GRAPH_BYTES = 1 << 27  # of graphs that are kept: logits of 64 rows of 150,000 tokens take 19 MB, most far less
CHECKED_ROWS = 64  # at most, of a recorded step that checks guesses: 4 answers with 15 guesses each
FEW_ROWS = 4  # whose numbers Python counts in 0.3 us a row, and NumPy, whose code is not in the cache then, in 1.5


class Recorded(NamedTuple):
    """A graph for `size` sequences of up to `longest` tokens, with `width` rows each; its `kind` is that of
    `Sampler.prepare`.

    `adapted`: some rows may use adapters.
    """

    size: int
    width: int
    kind: str | None
    adapted: bool
    longest: int
    graph: object
    logits: object
    ids: object


class Runner:
    """`run(batch)` computes a step.

    A step in which each of B sequences gets one token replays a graph, recorded for the next larger of some sizes, for
    texts up to some length, on which it depends what is worth several threads, and with the choice of the tokens
    where that needs no more than `sampler.launch`. Its inputs are updated in place; what is missing to the size stands
    still: such rows have no key, and store nothing. A step that checks guesses is such a graph, too, with several
    rows for each sequence (6 of the small model of the tests: 0.22 ms, packed 0.66). `adapters` is {name: folder}.
    """

    def __init__(
        self, model, sampler, *, num_blocks, block_size, max_num_seqs, max_model_len, kv_cache_dtype, decode_threads,
        adapters=None,
    ):  # fmt: skip
        self.model, self.block_size, self._sampler = model, block_size, sampler
        self.sizes = graph_sizes(max_num_seqs)
        self.cache = BlockCache(
            model.config, kv_cache_dtype, sequences=self.sizes[-1], blocks=num_blocks, block_size=block_size,
            max_length=max_model_len, device=model.device,
        )  # fmt: skip
        device = self.cache.device
        rows = self._rows = max(self.sizes[-1], min(CHECKED_ROWS, sampler.rows))
        self.adapters, self._adapted = Adapters(model, adapters, rows, device), False
        # The choice of a step writes the tokens of the next one where they are needed.
        self._chosen, self._inputs = (mirror(shape, infinicore.int64, device) for shape in ((rows,), (3, rows)))
        self._tokens, (self._positions, self._totals, self._slots) = self._chosen.host, self._inputs.host
        self._numbers = list(map(memoryview, self._inputs.host))
        self._graphs = {}  # all, the one used last at the end
        self._recorded = Recorded(0, 0, None, False, 0, None, None, None)  # that one
        self._threads = NumThreads(decode_threads)
        self._held, self._wanted = None, ()  # version of the batch that the inputs are of, and its rows
        self._longest = self._until = 0  # of the totals; steps before a row needs its next block
        self._goes_ahead = not device.backend.reports_at_once and (model.ranks is None or model.ranks.records)
        self._ahead = False  # whether the step after the last one is under way

    @property
    def nbytes(self):
        """Bytes of keys, values, and of what recorded steps compute."""
        return self.cache.nbytes + sum(one.graph.nbytes for one in self._graphs.values())

    def run(self, batch):
        """(logits, wanted, ids, place) of a step.

        `wanted` is [(sequence, row of its first logits, rows)]: one row for the last token that is known of a
        sequence, and one for each proposed to follow. `logits` [R, vocabulary] are None where no sequence gets that
        far; graphs give some rows more than there are sequences. `ids`, the chosen tokens, are a list by row, or None
        if `sampler.choose` has yet to choose them; then they belong into the tensor `place`, unless that is None.
        """
        for block, copy in batch.copies:
            self.cache.copy_block(block, copy)
        width = 1 if batch.single else 0 if batch.num_prompts else self._width(batch.entries)
        if self._ahead and not (width == 1 and batch.version == self._held):
            self._give_up()
        return self._replay(batch, width) if width else self._pack(batch)

    # ---- one token for each, or some to check ----

    def _replay(self, batch, width):
        """A step of `width` rows for each sequence, from a graph."""
        held, self._held = self._held, None  # until it is done
        version = batch.version if width == 1 else None
        ahead, self._ahead = self._ahead, False
        if ahead:
            return self._taken(version)
        if width > 1:
            self._place_checks(batch.entries, width)
        elif held == version:  # the same sequences, one token later; the tokens are there already
            self._move(len(batch.entries))
            self._longest += 1
            self._until -= 1
            if self._until < 0:
                self._next_blocks(batch.entries)
        else:
            self._place(batch.entries)
        self._inputs.flush()
        kind = self._sampler.prepare(self._wanted, self._size * width, version)
        if self._longest > self._recorded.longest or (self._size, width, kind, self._adapted) != self._recorded[:4]:
            self._find(width, kind)
        elif self._threads.count is None:
            self._recorded.graph.run()
        else:
            with self._threads:
                self._recorded.graph.run()
        if kind == "logits":
            self._held = version
            return self._recorded.logits, self._wanted, None, self._recorded.ids
        return self._taken(version)

    def _taken(self, version):
        """What the step that runs chooses. The next one is put behind it before, if it can begin without the host."""
        if self._goes_ahead:
            self._chosen.note()
            if version is not None and self._may_go_ahead():
                self._move(self._count)
                self._longest += 1
                self._until -= 1
                self._inputs.flush()
                self._sampler.prepare(self._wanted, self._size, version)
                self._recorded.graph.run()
                self._ahead = True
            ids = self._chosen.noted()
        else:
            self._chosen.fetch()
            ids = self._tokens
        self._held = version
        return self._recorded.logits, self._wanted, ids[: self._count].tolist(), None

    def _may_go_ahead(self):
        """Whether the next step is known but for its tokens, and nobody has said that this one is the last."""
        return (
            self._recorded.kind in ("greedy", "sampled") and self._threads.count is None and self._until > 0
            and len(self._wanted) <= FEW_ROWS
            and self._longest < self._recorded.longest
            and all(len(sequence.token_ids) + 1 < sequence.limit for sequence, *_ in self._wanted)
        )  # fmt: skip

    def _give_up(self):
        """Wait for the step that has begun, of which nothing is taken: its inputs may change then."""
        self._chosen.fetch()
        self._ahead, self._held = False, None
        self._sampler.start_over()

    def _move(self, count):
        """Let the first `count` rows stand for the next tokens of their sequences."""
        if count > FEW_ROWS:
            moving = self._moving
            moving += 1
            return
        for numbers in self._numbers:
            for row in range(count):
                numbers[row] += 1

    def _find(self, width, kind):
        """Run the graph of these inputs, recorded now if there is none yet."""
        size = self._size
        key = size, width, kind, self._adapted, longest_of(self._longest, self.cache.capacity, size * width)
        recorded = self._graphs.pop(key, None)
        with self._threads:
            if recorded is None:
                recorded = self._record(*key)
            else:
                recorded.graph.run()
        self._graphs[key] = self._recorded = recorded  # the one used last comes last
        while len(self._graphs) > 1 and sum(one.graph.nbytes for one in self._graphs.values()) > GRAPH_BYTES:
            del self._graphs[next(iter(self._graphs))]

    def _place(self, entries):
        """Write the inputs of sequences that were not in the last step, or in other rows."""
        count, tables = len(entries), self.cache.tables
        size = self._size = next(size for size in self.sizes if size >= count)
        for row, (sequence, _) in enumerate(entries):
            position = sequence.num_computed
            self._tokens[row], self._positions[row] = sequence.token_ids[position], position
            tables[row, : len(sequence.blocks)] = sequence.blocks
        offsets = self._place_in_cache(entries, 1)
        self._tokens[count:size] = self._positions[count:size] = self._totals[count:size] = 0
        self._slots[count:size] = -1
        self._chosen.flush()
        self._moving, self._count = self._inputs.host[:, :count], count
        self._until = self.block_size - 1 - int(offsets.max())
        self._wanted = [(sequence, row, 1) for row, (sequence, _) in enumerate(entries)]

    def _place_in_cache(self, entries, width):
        """Write what follows from the positions of `width` rows for each sequence; returns those within blocks."""
        count, rows, tables = len(entries), len(entries) * width, self.cache.tables
        self.cache.block_tables.flush()
        places, offsets = np.divmod(self._positions[:rows], self.block_size)
        of = 0 if count == 1 else np.arange(count).repeat(width)
        self._slots[:rows] = tables[of, places] * self.block_size + offsets
        self._totals[:count] = self._positions[width - 1 : rows : width] + 1
        self._longest = int(self._totals[:count].max())
        adapters = [sequence.adapter for sequence, _ in entries]
        adapters = [number for number in adapters for _ in range(width)] if width > 1 else adapters
        self._adapted = self.adapters.place(adapters, self._size * width)
        return offsets

    def _width(self, entries):
        """How many rows a sequence has in a recorded step that checks guesses of these, or 0 for another step.

        (The text of a draft model gets up to two known tokens in place of guesses.)
        """
        width = max(count for _, count in entries)
        fits = len(entries) * width <= self._rows and len(entries) <= self.sizes[-1]
        known = all(one.left <= min(count, 2) and one.num_computed + count >= width for one, count in entries)
        return width if fits and known else 0

    def _place_checks(self, entries, width):
        """Write the inputs of sequences that have up to `width` tokens each.

        Who has fewer gets rows before them that store nothing, and whose results nobody takes.
        """
        rows, tables, wanted = len(entries) * width, self.cache.tables, []
        self._size, self._wanted, self._count = len(entries), wanted, rows
        self._tokens[:rows] = 0
        for row, (sequence, count) in enumerate(entries):
            first, known, stop = sequence.num_computed, sequence.left, (row + 1) * width
            tables[row, : len(sequence.blocks)] = sequence.blocks
            self._tokens[stop - count : stop] = [*sequence.token_ids[first:], *sequence.draft[: count - known]]
            self._positions[stop - width : stop] = np.arange(first + count - width, first + count)
            wanted.append((sequence, stop - count + known - 1, count - known + 1))
        self._chosen.flush()
        self._place_in_cache(entries, width)
        for row, (_, count) in enumerate(entries):
            if count < width:
                self._slots[row * width : (row + 1) * width - count] = -1

    def _next_blocks(self, entries):
        """Go on in the next block where one is full."""
        offsets = self._moving[0] % self.block_size
        for row in np.flatnonzero(offsets == 0).tolist():
            place = int(self._positions[row]) // self.block_size
            block = entries[row][0].blocks[place]
            self.cache.tables[row, place] = block
            self._slots[row] = block * self.block_size
        self.cache.block_tables.flush()
        self._until = self.block_size - 1 - int(offsets.max())

    @no_grad()
    def _record(self, size, width, kind, adapted, longest):
        """Run the step of `width` tokens of each of `size` sequences, of up to `longest` with those before, and record
        it.
        """
        sine, cosine, rows = *self.model.rotary.ensure(self.cache.capacity), size * width
        tokens = self._chosen.tensor[:rows]
        positions, totals, slots = (self._inputs.tensor[row, :rows] for row in range(3))
        step = Step(
            token_ids=tokens,
            positions=positions,
            sine=sine,
            cosine=cosine,
            query_starts=indices(range(0, rows + 1, width), self.cache.device),
            totals=totals[:size],
            block_tables=self.cache.block_tables.tensor[:size],
            slots=slots,
            rows=None,
            cache=self.cache,
            longest_query=width,
            longest_total=longest,
        )
        memory.trim()  # of what prompts have left: the graph takes new memory (58 MB less with 16 users of TinyLlama)
        ranks, used = self.model.ranks, self.adapters.recorded(rows) if adapted else None

        @no_grad()
        def compute():
            with self.adapters.used(used):
                logits = self.model.logits(step)
            if kind != "logits":
                self._sampler.launch(logits, tokens, longest)
            return logits

        if ranks is not None and not ranks.records:
            graph = ranks.one_by_one(compute)
            graph.run()
            return Recorded(size, width, kind, adapted, longest, graph, graph.logits, tokens)
        infinicore.start_graph_recording(self.cache.device)
        try:
            logits = compute()
        finally:
            graph = infinicore.stop_graph_recording()
        graph = graph if ranks is None else ranks.recorded(graph)
        return Recorded(size, width, kind, adapted, longest, graph, logits, tokens)

    # ---- prompts, and several tokens of a sequence ----

    @no_grad()
    def _pack(self, batch):
        self._held = None
        size, entries, device = self.block_size, batch.entries, self.cache.device
        counts = [count for _, count in entries]
        starts = np.concatenate([[0], np.cumsum(counts)])
        tokens, positions, slots, lengths, rows, wanted = [], [], [], [], [], []
        tables = np.zeros((len(entries), max(len(sequence.blocks) for sequence, _ in entries)), np.int64)
        for row, (sequence, count) in enumerate(entries):
            first, known = sequence.num_computed, sequence.left
            stop = first + count
            tables[row, : len(sequence.blocks)] = sequence.blocks
            tokens += sequence.token_ids[first:stop]
            tokens += sequence.draft[: max(0, count - known)]
            places = np.arange(first, stop)
            positions.append(places)
            slots.append(tables[row, places // size] * size + places % size)
            lengths.append(max(stop, len(sequence.token_ids)))
            needed = count if all_logits(sequence) else count - known + 1  # from the last known token on
            if needed > 0:
                wanted.append((sequence, len(rows), needed))
                rows.extend(range(starts[row] + count - needed, starts[row] + count))
        positions = np.concatenate(positions)
        table_rows, sine, cosine = self.model.rotary.for_positions(positions, counts, lengths)
        totals = [sequence.num_computed + count for sequence, count in entries]
        step = Step(
            token_ids=indices(tokens, device),
            positions=indices(table_rows, device),
            sine=sine,
            cosine=cosine,
            query_starts=indices(starts, device),
            totals=indices(totals, device),
            block_tables=indices(tables, device),
            slots=indices(np.concatenate(slots), device),
            rows=indices(rows, device) if rows else None,
            cache=self.cache,
            longest_query=max(counts),
            longest_total=max(totals),
        )
        numbers = [sequence.adapter for sequence, _ in entries]
        numbers, logits = indices(np.repeat(numbers, counts), device) if any(numbers) else None, None
        with self.adapters.used(numbers, step.rows):
            if rows:
                logits = self.model.logits(step)
            else:
                self.model.states(step)
        return logits, wanted, None, None


def all_logits(sequence):
    """Whether log probabilities of the prompt are asked for, and still to come."""
    params = sequence.request.params if sequence.request is not None else None
    return params is not None and params.prompt_logprobs is not None and not sequence.num_new and not sequence.index


def graph_sizes(most):
    """The batch sizes that have a graph: all up to 8, then in steps of an eighth to a quarter."""
    sizes, step = list(range(1, 9)), 2
    while sizes[-1] < most:
        step = max(2, 1 << (sizes[-1].bit_length() - 3))
        sizes.append(sizes[-1] + step)
    return [size for size in sizes if size < most] + [most]


def longest_of(length, most, rows):
    """The power of 4 that `length` is below, or `most`.

    From 64 on: at 512, attention of 32 short texts of the smallest models is divided among threads, and a step takes
    1.3 times as long. Few rows are never that much, and are recorded less often: from 1024 on.
    """
    longest = 64 if rows > 4 else 1024
    while longest < length:
        longest *= 4
    return min(longest, most)
