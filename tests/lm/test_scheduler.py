"""The scheduler and the block manager alone: random programs, and after every step what must always hold."""

import collections
import random
from types import SimpleNamespace

import pytest

from infinicore.lm.engine.blocks import BlockManager
from infinicore.lm.engine.scheduler import Scheduler
from infinicore.lm.engine.sequence import Sequence as Plain


class Sequence(Plain):
    """The engine's, with what this test keeps of it."""

    __slots__ = ("siblings",)

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.siblings = []


class World:
    """A scheduler with a cache of which every slot holds the text that its token was computed after."""

    def __init__(self, rng):
        self.rng = rng
        self.blocks = BlockManager(rng.randint(3, 10), rng.randint(1, 4), rng.random() < 0.8)
        seats = rng.randint(1, 4)
        self.scheduler = Scheduler(self.blocks, seats, rng.randint(seats, 10))
        self.slots = {}
        self.live, self.arrivals, self.seen = [], 0, collections.Counter()
        self.written = None, []

    def add(self):
        room = self.blocks.num_blocks * self.blocks.block_size
        if room < 3:
            return
        rng, length = self.rng, self.rng.randint(1, min(10, room - 1))
        prompt = [rng.randint(0, 1) for _ in range(length)]
        limit = min(room, length + rng.randint(1, 6))
        order = rng.choice([0, 0, 1]), self.arrivals
        self.arrivals += 1
        same = dict(limit=limit, adapter=rng.choice([0, 0, 1, 2]))
        sequence = Sequence(prompt, order=(*order, 0), **same)
        sequence.siblings = [Sequence(prompt, order=(*order, i), **same) for i in range(1, rng.choice([1, 1, 3]))]
        for one in sequence.siblings:
            one.parent = sequence
        self.scheduler.add(sequence)
        self.live.append(sequence)

    def step(self):
        drafted = any(sequence.draft for sequence in self.scheduler.running)
        batch = self.scheduler.schedule(self.rng.choice([None, lambda *_: 1, lambda *_: 4]), drafted)
        self.seen["copied"] += len(batch.copies)
        for block, copy in batch.copies:
            for i in range(self.blocks.block_size):
                self.slots[copy, i] = self.slots.get((block, i))
        assert batch.entries or not self.live, "somebody always gets on"
        if batch.entries and all(count == 1 == sequence.left for sequence, count in batch.entries):
            rows = [id(sequence) for sequence, _ in batch.entries]
            assert self.written[0] != batch.version or self.written[1] == rows, "a version is one order of rows"
            self.written = batch.version, rows
            self.seen["again"] += 1
        else:
            self.written = None, []
        total = 0
        for sequence, count in batch.entries:
            total += count
            self.compute(sequence, count)
        assert total <= self.scheduler.max_num_batched_tokens
        assert len({id(sequence) for sequence, _ in batch.entries}) == len(batch.entries)
        for sequence, count in batch.entries:
            self.write(sequence, count)
        self.check()

    def place(self, sequence, position):
        return sequence.blocks[position // self.blocks.block_size], position % self.blocks.block_size

    def compute(self, sequence, count):
        assert sequence.running and count > 0
        first, text = sequence.num_computed, [*sequence.token_ids, *sequence.draft]
        for position in range(first, first + count):
            block, offset = self.place(sequence, position)
            assert self.blocks.counts[block] == 1 and block not in self.blocks._names, "nobody else reads it"
            self.slots[block, offset] = (sequence.adapter, *text[: position + 1])
        for position in range(first + count):
            assert self.slots[self.place(sequence, position)] == (sequence.adapter, *text[: position + 1])

    def write(self, sequence, count):
        if count < sequence.left:
            return self.scheduler.computed(sequence, count)
        known, accepted, rng = sequence.left, 0, self.rng
        for token in sequence.draft[: count - known]:
            if rng.random() < 0.5:
                break
            sequence.token_ids.append(token)
            accepted += 1
        self.seen["accepted"] += accepted
        sequence.token_ids.append(rng.randint(0, 1))
        sequence.draft = tuple(rng.randint(0, 1) for _ in range(rng.choice([0, 0, 2])))
        self.scheduler.computed(sequence, known + accepted)
        assert len(sequence.token_ids) <= sequence.limit
        for one in sequence.siblings:
            self.scheduler.add(one)
            self.live.append(one)
        sequence.siblings = []
        if len(sequence.token_ids) == sequence.limit or rng.random() < 0.1:
            self.end(sequence)

    def end(self, sequence):
        if sequence.siblings == [] or sequence.num_new == 0:
            self.scheduler.remove(sequence)
            self.live.remove(sequence)

    def check(self):
        blocks, scheduler = self.blocks, self.scheduler
        held = [block for sequence in scheduler.running for block in sequence.blocks]
        assert [held.count(block) for block in range(blocks.num_blocks)] == blocks.counts
        assert sorted(blocks._free) == [block for block, count in enumerate(blocks.counts) if count == 0]
        assert not any(sequence.blocks for sequence in scheduler.waiting)
        assert len(scheduler.running) <= scheduler.max_num_seqs
        for queue in (scheduler.running, scheduler.waiting):
            assert [one.order for one in queue] == sorted(one.order for one in queue)
        assert {id(s) for s in (*scheduler.running, *scheduler.waiting)} == {id(s) for s in self.live}
        assert len(blocks._published) == len(blocks._names)


def test_random_programs():
    seen = collections.Counter()
    for seed in range(10_000):
        world = World(random.Random(seed))
        for _ in range(6):
            act = world.rng.random()
            if act < 0.5:
                world.add()
            elif act < 0.6 and world.live:
                world.end(world.rng.choice(world.live))
            world.step()
        for _ in range(500):
            if not world.live:
                break
            world.step()
        assert not world.live and world.blocks.num_free == world.blocks.num_blocks, seed
        seen.update({"preempted": world.scheduler.num_preemptions, "found": world.scheduler.num_hits, **world.seen})
    assert min(seen[name] for name in ("preempted", "found", "copied", "accepted", "again")) > 1000, seen


def scheduler_of(num_blocks=8, block_size=4, seats=4, tokens=16, **options):
    return Scheduler(BlockManager(num_blocks, block_size, **options), seats, tokens)


def run(scheduler, batch, token=7):
    """What the engine does with a batch: whoever is complete gets a token."""
    for sequence, count in batch.entries:
        done = count == sequence.left
        if done:
            sequence.token_ids.append(token)
        scheduler.computed(sequence, count)
    return [(sequence, count) for sequence, count in batch.entries]


def test_chunks_of_prompts_run_beside_what_is_written():
    scheduler = scheduler_of(num_blocks=20, tokens=6)
    first, second = Sequence([1, 2], order=(0, 0, 0)), Sequence(range(9), order=(0, 1, 0))
    first.limit = second.limit = 20
    scheduler.add(first)
    assert run(scheduler, scheduler.schedule()) == [(first, 2)]
    scheduler.add(second)
    assert run(scheduler, scheduler.schedule()) == [(first, 1), (second, 5)]
    assert run(scheduler, scheduler.schedule(prompt_tokens=lambda writing, waiting: 3)) == [(first, 1), (second, 3)]
    assert run(scheduler, scheduler.schedule()) == [(first, 1), (second, 1)]


def test_what_arrives_together_is_computed_once():
    scheduler = scheduler_of(num_blocks=20, tokens=16)
    texts = [[*range(9), last] for last in (1, 2, 3)]
    for i, text in enumerate(texts):
        scheduler.add(Sequence(text, order=(0, i, 0), limit=12))
    assert [count for _, count in run(scheduler, scheduler.schedule())] == [10]
    assert [count for _, count in run(scheduler, scheduler.schedule())] == [1, 2, 2]
    assert (scheduler.num_queries, scheduler.num_hits) == (30, 16)


def test_nobody_overtakes_one_of_its_priority_and_the_urgent_take_their_place():
    scheduler = scheduler_of(num_blocks=4, block_size=4, seats=2)
    long, short = Sequence(range(12), order=(1, 0, 0), limit=16), Sequence([1], order=(1, 2, 0), limit=2)
    big = Sequence(range(20, 32), order=(1, 1, 0), limit=14)
    for one in (long, big, short):
        scheduler.add(one)
    run(scheduler, scheduler.schedule())
    assert scheduler.running == [long] and scheduler.waiting == [big, short]
    urgent = Sequence([5, 6], order=(0, 3, 0), limit=4)
    scheduler.add(urgent)
    run(scheduler, scheduler.schedule())
    assert scheduler.running == [urgent] and scheduler.waiting == [long, big, short] and scheduler.num_preemptions == 1


def test_tokens_are_compared_and_the_oldest_blocks_go_first():
    blocks = BlockManager(4, 2)

    def text(*tokens):
        one = SimpleNamespace(adapter=0, token_ids=list(tokens), blocks=[], keys=[], num_computed=0)
        assert blocks.start(one)
        one.num_computed = len(tokens)
        blocks.publish(one)
        return one

    first = text(1, 2, 3, 4)
    blocks.free(first)
    again = text(1, 2, 3, 4, 5)
    assert again.blocks[:2] == [0, 1]
    blocks.free(again)
    other = text(3, 4, 9)  # the same block of tokens, but not after 1, 2
    assert other.blocks[0] not in (0, 1)
    blocks.free(other)
    text(8, 8, 8, 8)
    assert blocks.find([1, 2, 3, 4, 5])[0] == [0], "the end of a text goes before its beginning"


@pytest.mark.parametrize("sizes", [(0, 4), (4, 0), (2.0, 4)])
def test_refusals(sizes):
    with pytest.raises(ValueError, match="must be an integer of at least 1"):
        BlockManager(*sizes)
    with pytest.raises(ValueError, match=r"`max_num_batched_tokens` .* must be at least `max_num_seqs`"):
        scheduler_of(seats=17)
    with pytest.raises(ValueError, match="needs 9 blocks, and the cache has 8"):
        scheduler_of().add(Sequence([1], limit=33))
