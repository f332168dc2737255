"""Guesses of tokens by a smaller model with the same vocabulary.

For a request with a seed, it draws by the random number that the engine will use at that place: both then choose the
same token as often as they make the same of one number, and the text stays a function of the seed, whether somebody
guesses or not, and so however many others run. For others it draws freely, and `guesses.taken` takes more of it.
"""

from ..tokenizer import tokenizer_of
from .blocks import BlockManager
from .guesses import draw, is_free, shares, to_host
from .runner import Runner
from .sampler import Sampler
from .scheduler import Batch
from .sequence import Sequence

_BUDGET = 512  # tokens of texts that are new to it, in one go


class DraftProposer:
    """Proposes `num_speculative_tokens` tokens for each answer, by the language model `model`.

    Its cache follows the texts: a guess that was wrong is forgotten, and what texts have in common is computed once.
    """

    def __init__(self, model, num_speculative_tokens=4):
        count = num_speculative_tokens
        if type(count) is not int or count < 1:
            raise ValueError(f"`num_speculative_tokens` must be an integer of at least 1, got {count!r}")
        self.model, self.num_speculative_tokens = model, count

    def attach(self, model, tokenizer, *, num_seqs, max_model_len, block_size, num_blocks, decode_threads):
        """Make room to follow `num_seqs` texts that an engine of `model` writes; ValueError if the vocabularies differ.

        The cache has at most `num_blocks` blocks, as many as the engine's. From now on, this serves that engine alone.
        """
        check_vocabulary(model, tokenizer, self.model)
        self._followers = {}  # id of a sequence -> [it, what follows it here, how much of both is known to agree]
        self._version = 0
        config = self.model.config
        self._same_size = config.vocab_size == model.config.vocab_size
        self._longest = min(max_model_len, config.context)
        blocks = min(num_blocks, num_seqs * -(-self._longest // block_size))
        self._longest = min(self._longest, blocks * block_size)
        rope = getattr(config, "rope", None)
        self._blocks = BlockManager(blocks, block_size, rope is None or rope.type != "dynamic")
        self._sampler = Sampler(self.model.device, 2 * num_seqs)  # after a guess that was taken whole, two are left
        self._runner = Runner(
            self.model, self._sampler, num_blocks=blocks, block_size=block_size, max_num_seqs=num_seqs,
            max_model_len=self._longest, kv_cache_dtype=self.model.dtype, decode_threads=decode_threads,
        )  # fmt: skip

    def propose(self, sequences):
        """(tokens that may follow, of what probabilities they were drawn or None) for `sequences` that are written."""
        followers = self._follow(sequences)
        ends = {
            id(one): min(one.limit, len(sequence.token_ids) + (sequence.draft_length or self.num_speculative_tokens))
            for sequence, one in zip(sequences, followers)
            if one is not None
        }
        turn = [one for one in followers if one is not None]
        self._version += 1
        for _ in range(self.num_speculative_tokens):
            before, turn = turn, [one for one in turn if len(one.token_ids) < ends[id(one)]]
            self._version += len(turn) < len(before)
            if not turn:
                break
            turn = self._step(turn)
        return [
            ([], None) if one is None else (one.token_ids[len(sequence.token_ids) :], one.draft_shares)
            for sequence, one in zip(sequences, followers)
        ]

    # ---- following the texts ----

    def _follow(self, sequences):
        """What follows each sequence, with its text as it is now; None where there is no room or no way."""
        current = {id(sequence) for sequence in sequences}
        for key in [key for key in self._followers if key not in current]:
            self._blocks.free(self._followers.pop(key)[1])
        return [self._follower(sequence) for sequence in sequences]

    def _follower(self, sequence):
        if sequence.draws.changes and not self._same_size:  # it counts with the ids of the larger vocabulary
            return None
        known = self._followers.get(id(sequence))
        if known is None:
            if len(sequence.token_ids) >= self._longest:
                return None
            one = Sequence(sequence.token_ids, limit=min(sequence.limit, self._longest))
            one.num_prompt, one.draws = sequence.num_prompt, sequence.draws
            if not self._blocks.start(one):
                return None
            one.draft_shares = [] if is_free(one.draws) else None
            self._followers[id(sequence)] = [sequence, one, len(one.token_ids)]
            return one
        _, one, same = known
        if one.draft_shares:
            one.draft_shares = []
        mine, theirs = one.token_ids, sequence.token_ids
        while same < min(len(mine), len(theirs)) and mine[same] == theirs[same]:
            same += 1
        mine[same:] = theirs[same:]
        one.num_computed = min(one.num_computed, same, len(mine) - 1)
        self._blocks.publish(one)  # now that it holds nothing that was only guessed
        known[2] = len(mine)
        return one

    def _step(self, turn):
        """Compute what is left of each text, and add the next token; returns those that have got one."""
        batch, budget = Batch(), _BUDGET
        for one in turn:
            count = min(one.left, budget)
            copies = self._blocks.reserve(one, one.num_computed + count) if count else None
            if copies is not None:
                batch.copies += copies
                batch.entries.append((one, count))
                batch.single = batch.single and count == one.left == 1
                budget -= count
        self._version += bool(batch.copies) or len(batch.entries) < len(turn)
        batch.version = self._version
        if not batch.entries:
            return []
        logits, wanted, ids, place = self._runner.run(batch)
        if ids is None and wanted:
            if place is None:
                self._sampler.prepare(wanted, logits.shape[0])
            ids, _ = self._sampler.choose(logits, place)
        for one, count in batch.entries:
            one.num_computed += count
        for one, row, _ in wanted:
            one.token_ids.append(ids[row] if one.draft_shares is None else self._draw(one, logits[row]))
        self._version += len(wanted) < len(batch.entries)
        return [one for one, *_ in wanted]

    def _draw(self, one, logits):
        """A token of the model's own choice, where the engine's numbers do not matter."""
        self._version += 1  # the runner has another one
        one.draft_shares.append(shares(to_host(logits), one.draws.params))
        return draw(one.draft_shares[-1])


def check_vocabulary(model, tokenizer, draft):
    """Raise ValueError unless two models read and write the same tokens.

    Their sizes may differ by padding, if both have tokenizers.
    """
    other, sizes = tokenizer_of(draft), (model.config.vocab_size, draft.config.vocab_size)
    if tokenizer is None or other is None:
        if sizes[0] != sizes[1]:
            raise ValueError(
                f"`draft_model` has a vocabulary of {sizes[1]} tokens and the model one of {sizes[0]}: "
                "choose a smaller model of the same family"
            )
    elif tokenizer is not other and tokenizer.vocabulary() != other.vocabulary():
        raise ValueError(
            f"`draft_model` has another vocabulary ({len(other)} tokens) than the model ({len(tokenizer)} tokens): "
            "choose a smaller model of the same family"
        )
