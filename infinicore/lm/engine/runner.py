"""Runs a model over the paged cache: steps that only write replay a recorded graph, others are packed each time."""

import numpy as np

import infinicore

from ...autograd import no_grad
from ...context import NumThreads
from ...dispatch import mirror
from ..kvcache import BlockCache
from ..step import Step, indices

GRAPHS = 16  # that are kept: logits of 64 rows of 150,000 tokens take 19 MB each


class Runner:
    """`run(batch)` returns logits [R, vocabulary], and whose they are.

    A step in which each of B sequences gets one token replays a graph, recorded for the next larger of some sizes and
    for lengths up to a power of 4, on which it depends what is worth several threads. Its inputs are updated in place;
    what is missing to the size stands still: such rows have no key, and store nothing.
    """

    def __init__(self, model, *, num_blocks, block_size, max_num_seqs, max_model_len, kv_cache_dtype, decode_threads):
        self.model, self.block_size = model, block_size
        self.sizes = graph_sizes(max_num_seqs)
        rows = self.sizes[-1]
        self.cache = BlockCache(
            model.config, kv_cache_dtype, sequences=rows, blocks=num_blocks, block_size=block_size,
            max_length=max_model_len,
        )  # fmt: skip
        device = self.cache.device
        # Tokens (the sampler writes the next ones where they are needed), positions, totals, slots.
        self._mirrors = [mirror((rows,), infinicore.int64, device) for _ in range(4)]
        self._tokens, self._positions, self._totals, self._slots = (one.host for one in self._mirrors)
        self._graphs = {}  # (size, longest) -> (graph, logits, ids)
        self._threads = NumThreads(decode_threads)
        self._held = None  # version of the batch that the inputs are of

    @no_grad()
    def run(self, batch):
        """(logits, [(sequence, row of its first logits, rows)], where the next tokens go): one row for the last token
        that is known of a sequence, and one for each proposed to follow.

        `logits` is None where no sequence gets that far; graphs give some rows more than there are sequences. The
        place is a tensor for as many ids, or None: then they are not needed.
        """
        for block, copy in batch.copies:
            self.cache.copy_block(block, copy)
        if all(count == 1 for _, count in batch.entries) and all(one.left == 1 for one, _ in batch.entries):
            return self._replay(batch)
        return self._pack(batch)

    # ---- one token for each ----

    def _replay(self, batch):
        count = len(batch.entries)
        size = next(size for size in self.sizes if size >= count)
        held, self._held = self._held, None  # until it is done
        if held == batch.version:
            self._advance(batch.entries, count)
        else:
            self._place(batch.entries, count, size)
        for one in self._mirrors:
            one.flush()
        self.cache.block_tables.flush()
        key = size, longest_of(int(self._totals[:count].max()), self.cache.capacity)
        recorded = self._graphs.pop(key, None)
        with self._threads:
            if recorded is None:
                recorded = self._record(*key)
            else:
                recorded[0].run()
        self._graphs[key] = recorded  # the one used last comes last
        if len(self._graphs) > GRAPHS:
            del self._graphs[next(iter(self._graphs))]
        self._held = batch.version
        _, logits, ids = recorded
        return logits, [(sequence, row, 1) for row, (sequence, _) in enumerate(batch.entries)], ids

    def _place(self, entries, count, size):
        """Write the inputs of sequences that were not in the last step, or in other rows."""
        tables = self.cache.tables
        for row, (sequence, _) in enumerate(entries):
            position = sequence.num_computed
            self._tokens[row], self._positions[row] = sequence.token_ids[position], position
            tables[row, : len(sequence.blocks)] = sequence.blocks
        self._totals[:count] = self._positions[:count] + 1
        places, offsets = np.divmod(self._positions[:count], self.block_size)
        self._slots[:count] = tables[np.arange(count), places] * self.block_size + offsets
        self._tokens[count:size] = self._positions[count:size] = self._totals[count:size] = 0
        self._slots[count:size] = -1

    def _advance(self, entries, count):
        """The same sequences, one token later; the tokens are there already."""
        for one in (self._positions, self._totals, self._slots):
            one[:count] += 1
        for row in np.flatnonzero(self._positions[:count] % self.block_size == 0).tolist():
            place = int(self._positions[row]) // self.block_size
            block = entries[row][0].blocks[place]
            self.cache.tables[row, place] = block
            self._slots[row] = block * self.block_size

    def _record(self, size, longest):
        """Run the step of one token for each of `size` rows, of up to `longest` with those before, and record it."""
        sine, cosine = self.model.rotary.ensure(self.cache.capacity)
        tokens, positions, totals, slots = (one.tensor[:size] for one in self._mirrors)
        step = Step(
            token_ids=tokens,
            positions=positions,
            sine=sine,
            cosine=cosine,
            query_starts=indices(range(size + 1)),
            totals=totals,
            block_tables=self.cache.block_tables.tensor[:size],
            slots=slots,
            rows=None,
            cache=self.cache,
            longest_query=1,
            longest_total=longest,
        )
        infinicore.start_graph_recording()
        try:
            logits = self.model.logits(step)
        finally:
            graph = infinicore.stop_graph_recording()
        return graph, logits, tokens

    # ---- prompts, and several tokens of a sequence ----

    def _pack(self, batch):
        self._held = None
        size, entries = self.block_size, batch.entries
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
            token_ids=indices(tokens),
            positions=indices(table_rows),
            sine=sine,
            cosine=cosine,
            query_starts=indices(starts),
            totals=indices(totals),
            block_tables=indices(tables),
            slots=indices(np.concatenate(slots)),
            rows=indices(rows) if rows else None,
            cache=self.cache,
            longest_query=max(counts),
            longest_total=max(totals),
        )
        if rows:
            return self.model.logits(step), wanted, None
        self.model.states(step)
        return None, wanted, None


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


def longest_of(length, most):
    """The power of 4, from 64 on, that `length` is below, or `most`."""
    longest = 64
    while longest < length:
        longest *= 4
    return min(longest, most)
