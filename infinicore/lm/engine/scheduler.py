"""Who is computed in a step, and how much of it. No tensors and no time: tokens, blocks and order alone."""

import bisect
import copy


class Batch:
    """What a step computes: `entries` of (sequence, tokens), those that are being written first.

    `num_prompts` of the entries are chunks of prompts, of `prompt_tokens` in all. `copies` of blocks come before. As
    long as `version` stays the same, so do the sequences and their old blocks. `single`: each gets one token, which is
    known.
    """

    __slots__ = ("copies", "entries", "num_prompts", "prompt_tokens", "single", "version")

    def __init__(self):
        self.entries, self.copies, self.single = [], [], True
        self.version = self.num_prompts = self.prompt_tokens = 0

    def without_copies(self):
        """The same where a step has made them."""
        if not self.copies:
            return self
        batch = copy.copy(self)
        batch.copies = []
        return batch


class Scheduler:
    """At most `max_num_seqs` sequences run, and a step computes at most `max_num_batched_tokens` tokens.

    Sequences go by `order`, (priority, arrival, index): the smaller one first. Those that are being written get a
    token each; what is left of the budget goes to prompts, in chunks. A sequence is admitted when the cache has room
    for all its tokens and some more, never before one that comes earlier, so nobody waits for ever behind others of its
    priority. When the cache is full, the last in order gives up its blocks and is computed again later, which the
    blocks it published make short; so does one whose place a more urgent one needs.
    """

    def __init__(self, blocks, max_num_seqs, max_num_batched_tokens):
        if max_num_batched_tokens < max_num_seqs:
            raise ValueError(
                f"`max_num_batched_tokens` ({max_num_batched_tokens}) must be at least `max_num_seqs` ({max_num_seqs})"
            )
        self.blocks, self.max_num_seqs, self.max_num_batched_tokens = blocks, max_num_seqs, max_num_batched_tokens
        self.waiting, self.running = [], []  # both in order
        self.num_preemptions = self.num_queries = self.num_hits = self._version = 0
        self._spare = max(1, blocks.num_blocks // 100)  # so that a newcomer does not drive out others at once
        self._promised = 0  # blocks that those who run may come to hold
        self._last, self._again = None, 0  # a batch, and how many more steps it is that of

    def add(self, sequence):
        """Queue a sequence. ValueError if the cache can never hold it."""
        needed = self.blocks.blocks_for(sequence.limit)
        if needed > self.blocks.num_blocks:
            raise ValueError(
                f"a request of up to {sequence.limit} tokens needs {needed} blocks, and the cache has "
                f"{self.blocks.num_blocks}: lower `max_tokens` or raise `kv_cache_memory`"
            )
        sequence.queued = True
        bisect.insort(self.waiting, sequence, key=_order)

    def remove(self, sequence):
        """Forget a sequence, wherever it is, and free its blocks."""
        self._version += 1
        self._again = 0
        queue = self.running if sequence.running else self.waiting
        del queue[_place(queue, sequence)]
        self._promised -= self.blocks.blocks_for(sequence.limit) if sequence.running else 0
        sequence.running = sequence.queued = False
        self.blocks.free(sequence)

    def schedule(self, prompt_tokens=None, drafted=False):
        """The `Batch` of the next step.

        `prompt_tokens(writing, waiting)` is how many tokens prompts get beside so many sequences that are being
        written; `waiting` could be written and have yet to begin. As long as the same sequences are written and none
        needs another block, it is the batch of the step before, unless there are drafts (`drafted`).
        """
        if self._again and not self.waiting and not drafted:
            self._again -= 1
            return self._last
        batch = self._last = self._schedule(prompt_tokens)
        self._again = 0
        if batch.single and batch.entries and len(batch.entries) == len(self.running):
            size = self.blocks.block_size
            self._again = min(size - 1 - sequence.num_computed % size for sequence, _ in batch.entries)
            self._last = batch.without_copies()
        return batch

    def _schedule(self, prompt_tokens):
        self._make_way()
        batch, budget = Batch(), self.max_num_batched_tokens
        for sequence in [one for one in self.running if one.left == 1]:
            if sequence.running:  # else it has made room for one before it
                budget -= self._write(batch, sequence, budget)
        writing = len(batch.entries)
        others = min(self.max_num_seqs, len(self.running) + len(self.waiting)) - writing  # who has no seat waits anyway
        if writing and others and prompt_tokens is not None:
            budget = min(budget, prompt_tokens(writing, others))
        for sequence in self.running:
            if sequence.left > 1 and budget > 0:
                budget -= self._chunk(batch, sequence, budget)
        while self.waiting and budget > 0 and len(self.running) < self.max_num_seqs and self._admit(self.waiting[0]):
            budget -= self._enter(batch, self.waiting.pop(0), budget)
        if not batch.num_prompts:  # who has just come in to write has its row where the next step will have it
            batch.entries.sort(key=lambda entry: entry[0].order)
        batch.version = self._version
        return batch

    def _write(self, batch, sequence, budget):
        """The next token of a sequence, with those proposed to follow; returns how many tokens that makes."""
        count = 1
        if sequence.draft:
            budget -= len(self.running) - len(batch.entries) - 1  # the others come first
            count = max(1, min(1 + len(sequence.draft), budget, sequence.limit - len(sequence.token_ids)))
        while (copies := self.blocks.reserve(sequence, sequence.num_computed + count)) is None:
            if count > 1:
                count = 1  # proposals are worth nobody's blocks
                continue
            last = self.running[-1]
            self._preempt(last)
            if last is sequence:
                return 0
        if copies:
            self._version += 1
            batch.copies += copies
        batch.entries.append((sequence, count))
        batch.single = batch.single and count == 1
        return count

    def _chunk(self, batch, sequence, budget):
        count = min(sequence.left, budget)
        batch.entries.append((sequence, count))
        batch.num_prompts += 1
        batch.single = False
        batch.prompt_tokens += count
        return count

    def _admit(self, sequence):
        """Give a waiting sequence its blocks, if there are enough."""
        parent = sequence.parent
        if parent is not None and not (parent.running and parent.num_computed >= sequence.num_prompt):
            parent = None
        if sequence.num_new:
            parent = None
        if parent is None and sequence.reuse and self._is_computed_now(sequence):
            return False
        safe = self._promised + self.blocks.blocks_for(sequence.limit) <= self.blocks.num_blocks
        spare = 0 if safe or not self.running else self._spare
        return self.blocks.start(sequence, spare, parent, sequence.reuse)

    def _is_computed_now(self, sequence):
        """Whether a prompt that runs is about to publish what this one would compute next: then it is worth waiting."""
        blocks, ids = self.blocks, sequence.token_ids
        stop = (len(blocks.find(ids, sequence.adapter)[0]) + 1) * blocks.block_size
        if stop >= len(ids) or not blocks.enable_prefix_caching:
            return False
        return any(
            one.left > 1 and one.num_computed < stop <= len(one.token_ids) and one.token_ids[:stop] == ids[:stop]
            for one in self.running
            if one.adapter == sequence.adapter
        )

    def _enter(self, batch, sequence, budget):
        """Let a sequence with blocks run."""
        self._version += 1
        bisect.insort(self.running, sequence, key=_order)
        sequence.running = True
        self._promised += self.blocks.blocks_for(sequence.limit)
        if sequence.first_cached is None:
            sequence.first_cached = sequence.num_computed
            self.num_queries += sequence.num_prompt
            self.num_hits += sequence.num_computed
        return self._write(batch, sequence, budget) if sequence.left == 1 else self._chunk(batch, sequence, budget)

    def _preempt(self, sequence):
        self.num_preemptions += 1
        self.remove(sequence)
        sequence.queued, sequence.draft = True, ()
        bisect.insort(self.waiting, sequence, key=_order)

    def start_over(self):
        """Take the blocks of all that run, which are then computed again; what was published stays."""
        while self.running:
            self._preempt(self.running[-1])

    def _make_way(self):
        """Preempt who is less urgent than the first in the queue, where that has no place otherwise."""
        while self.waiting and self.running and self.waiting[0].order[0] < self.running[-1].order[0]:
            first = self.waiting[0]
            if len(self.running) < self.max_num_seqs and self._fits(first):
                break
            self._preempt(self.running[-1])

    def _fits(self, sequence):
        return self.blocks.blocks_for(len(sequence.token_ids)) + self._spare <= self.blocks.num_free

    def computed(self, sequence, count):
        """Note that the cache has `count` more tokens of a sequence."""
        sequence.num_computed += count
        if sequence.num_computed // self.blocks.block_size > len(sequence.keys):
            self.blocks.publish(sequence)


def _order(sequence):
    return sequence.order


def _place(queue, sequence):
    place = bisect.bisect_left(queue, sequence.order, key=_order)
    if place == len(queue) or queue[place] is not sequence:
        raise ValueError(f"the sequence of order {sequence.order} is not in the queue")
    return place
