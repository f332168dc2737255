"""Which blocks of the cache belong to which sequence: counted, shared, found again by what they hold. No tensors."""

from collections import OrderedDict


class BlockManager:
    """`num_blocks` blocks of `block_size` tokens.

    A block is held by as many sequences as its count says. One that nobody holds is free, but keeps what it was
    published with until it is needed: the one that was let go the longest ago goes first. A published block is never
    written to again, nor is one that several hold: `reserve` puts a copy in its place.

    A sequence has `token_ids`, `num_computed` (how many of them the cache has), `blocks` (its blocks in order), `keys`
    (what the first of them were published as) and `adapter`. A key stands for all tokens up to the end of its block: it
    is found by the key of the block before and the tokens of the block themselves, which are compared, so equal hashes
    of different texts do no harm. Before the first block comes a key of the adapter: no text finds another's blocks.
    """

    def __init__(self, num_blocks, block_size, enable_prefix_caching=True):
        for name, value in (("num_blocks", num_blocks), ("block_size", block_size)):
            if type(value) is not int or value < 1:
                raise ValueError(f"`{name}` must be an integer of at least 1, got {value!r}")
        self.num_blocks, self.block_size, self.enable_prefix_caching = num_blocks, block_size, enable_prefix_caching
        self.counts = [0] * num_blocks
        self._free = OrderedDict.fromkeys(range(num_blocks))  # in the order in which they are taken
        self._published = {}  # (key before, tokens) -> block
        self._names = {}  # block -> ((key before, tokens), key)
        self._next_key = 1  # 0 and below come before the first block: minus the number of an adapter

    @property
    def num_free(self):
        """Blocks that nobody holds."""
        return len(self._free)

    def blocks_for(self, length):
        """How many blocks `length` tokens take."""
        return -(-length // self.block_size)

    # ---- holding and letting go ----

    def _take(self):
        block, _ = self._free.popitem(last=False)
        name = self._names.pop(block, None)
        if name is not None:
            del self._published[name[0]]
        self.counts[block] = 1
        return block

    def _hold(self, block):
        if self.counts[block] == 0:
            del self._free[block]
        self.counts[block] += 1

    def _let_go(self, block):
        self.counts[block] -= 1
        if self.counts[block] == 0:
            self._free[block] = None
            if block not in self._names:
                self._free.move_to_end(block, last=False)  # nothing is lost with it

    def free(self, sequence):
        """Take all blocks from a sequence; the last go first, since nobody finds them without those before."""
        for block in reversed(sequence.blocks):
            self._let_go(block)
        sequence.blocks, sequence.keys, sequence.num_computed = [], [], 0

    # ---- what is in the cache already ----

    def find(self, token_ids, adapter=0):
        """The published blocks that a text begins with, and their keys; its last token is always left out."""
        blocks, keys, size, key = [], [], self.block_size, -adapter
        if self.enable_prefix_caching:
            for first in range(0, (len(token_ids) - 1) // size * size, size):
                block = self._published.get((key, tuple(token_ids[first : first + size])))
                if block is None:
                    break
                key = self._names[block][1]
                blocks.append(block)
                keys.append(key)
        return blocks, keys

    def start(self, sequence, spare=0, parent=None, reuse=True):
        """Give a sequence the blocks for all its tokens, and `num_computed` what the cache has of them already.

        That is what was published (`reuse`), or all but its last token if that is what `parent` began with. False, and
        nothing given, if fewer than `spare` blocks would stay free.
        """
        length = len(sequence.token_ids)
        if parent is not None:
            computed = length - 1
            blocks, keys = parent.blocks[: self.blocks_for(computed)], parent.keys[: computed // self.block_size]
        else:
            blocks, keys = self.find(sequence.token_ids, sequence.adapter) if reuse else ([], [])
            computed = len(blocks) * self.block_size
        fresh = self.blocks_for(length) - len(blocks) + (computed % self.block_size > 0)
        if fresh + sum(self.counts[block] == 0 for block in blocks) + spare > len(self._free):
            return False
        for block in blocks:
            self._hold(block)
        sequence.blocks, sequence.keys, sequence.num_computed = blocks, keys, computed
        while len(blocks) < self.blocks_for(length):
            blocks.append(self._take())
        return True

    def publish(self, sequence):
        """Let others find the blocks of a sequence that are full of computed tokens."""
        if not self.enable_prefix_caching:
            return
        size, keys = self.block_size, sequence.keys
        while (len(keys) + 1) * size <= sequence.num_computed:
            first = len(keys) * size
            name = (keys[-1] if keys else -sequence.adapter, tuple(sequence.token_ids[first : first + size]))
            block = self._published.get(name)
            if block is None:  # else another sequence was faster; this one keeps its own copy
                block = sequence.blocks[len(keys)]
                self._published[name], self._names[block] = block, (name, self._next_key)
                self._next_key += 1
            keys.append(self._names[block][1])

    # ---- room for new tokens ----

    def _plan(self, sequence, length):
        """(places in `blocks` whose block must not be written to, how many blocks more) for tokens up to `length`."""
        blocks = sequence.blocks
        places = range(sequence.num_computed // self.block_size, min(len(blocks), self.blocks_for(length)))
        shared = [i for i in places if self.counts[blocks[i]] > 1 or blocks[i] in self._names]
        return shared, max(0, self.blocks_for(length) - len(blocks))

    def reserve(self, sequence, length):
        """Make room for the tokens from `num_computed` up to `length`.

        Returns [(block, its copy)] that must be copied before they are written to, or None if too few blocks are free.
        """
        place = sequence.num_computed // self.block_size
        if place < len(sequence.blocks) and length <= (place + 1) * self.block_size:  # as nearly always
            block = sequence.blocks[place]
            if self.counts[block] == 1 and block not in self._names:
                return []
        shared, more = self._plan(sequence, length)
        if len(shared) + more > len(self._free):
            return None
        copies = []
        for place in shared:
            block, copy = sequence.blocks[place], self._take()
            sequence.blocks[place] = copy
            copies.append((block, copy))
        for block, _ in copies:
            self._let_go(block)
        sequence.blocks.extend(self._take() for _ in range(more))
        return copies
