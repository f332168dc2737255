"""A decoder with a head: logits and losses over dense batches, logits over packed steps, text."""

import numpy as np

import infinicore
from infinicore import nn

from .. import autograd, models
from ..autograd import is_grad_enabled, no_grad
from ..lm.batch import Batch
from ..lm.generation import generate
from ..lm.step import build

IGNORED = -100  # the label of places that a loss passes over


def _call(function, *args):
    return function(*args)


def divided_heads(config, rank, ranks):
    """(how many ranks have each head of keys, first, stop): the groups of heads, of all `ranks` parts, that one has.

    ValueError for heads that cannot be divided.
    """
    heads, shared = config.num_attention_heads, config.num_key_value_heads
    if heads < ranks:
        raise ValueError(f"`num_attention_heads` ({heads}) must be at least the {ranks} ranks of `tp`")
    copies = 1
    if shared < ranks:
        copies = ranks // shared
        if ranks % shared or (heads // shared) % copies:
            raise ValueError(
                f"{ranks} ranks of `tp` cannot divide {heads} heads over {shared} of keys and values evenly: "
                f"`tp` must be at most {shared}, or a multiple of it that divides {heads}"
            )
    groups = shared * copies
    return copies, groups * rank // ranks, groups * (rank + 1) // ranks


class LanguageModel(nn.Module):
    """Base of the models: a subclass has `decoder`, `lm_head`, `rotary` (its positions), `dtype` and `names`.

    `model(input_ids)` takes ids [batch, sequence] (a Tensor, an array or lists, also of different lengths) and
    returns logits [batch, sequence, vocabulary]; see `forward`. In training mode, they are differentiable; in
    evaluation mode, they come from the kernels of inference. `generate` writes text. `gradient_checkpointing = True`
    computes each layer again in backward instead of keeping its activations.
    """

    gradient_checkpointing = False
    tensor_group, sequence_parallel = None, False  # the ranks that share this model: `distributed.parallelize`
    context_part, averaged = None, False  # how ranks share sequences; whether gradients are averaged over these ranks
    ranks = None  # those that follow its steps, of which this one is the first: `lm.ranks`

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.path, self.generation_config = None, {}

    def make_head(self, embedding, dtype, tied=None):
        """`lm_head`, whose weight is that of the embedding where `tied` says so, or else the configuration."""
        config = self.config
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False, dtype=dtype)
        if config.tie_word_embeddings if tied is None else tied:
            self.lm_head.weight = embedding.weight

    @property
    def device(self):
        """Where the weights lie."""
        return next(self.parameters()).device

    def tensor_parallel(self, group, sequence_parallel=False):
        """Compute a part of the heads and of the MLP from now on, as one of `group`; returns the plan of the layers.

        `infinicore.distributed.parallelize` calls it, and puts the plan into effect. Raises ValueError for heads that
        cannot be divided.
        """
        config = self.config
        if config.quantization is not None or any(getattr(m, "quantized", None) is not None for m in self.modules()):
            raise NotImplementedError(
                "a quantised model cannot be divided among ranks: load it divided, by `from_pretrained(mesh=)`"
            )
        if config.num_key_value_heads < group.size:
            raise ValueError(
                f"`num_key_value_heads` ({config.num_key_value_heads}) must be at least the {group.size} ranks of `tp`"
            )
        return self.divide(group, sequence_parallel)

    def context_parallel(self, group):
        """Compute a part of each sequence from now on, as one of `group`: `distributed.parallelize` calls it.

        In training, all its ranks give the same batches. Losses are those of the whole; gradients are to be averaged
        over these ranks too, by `DistributedDataParallel` and the like.
        """
        unit = self.tensor_group.size if self.sequence_parallel else 1
        self.context_part = models.training.ContextParallel(group, self.config.context - 1, unit)
        if group.size == 1:  # sequences are filled up for `sequence_parallel`
            return
        for module in self.modules():
            if hasattr(module, "context_group"):
                module.context_group = group

    def divide(self, group, sequence_parallel=False, exact=False, rows=1, head_rows=1):
        """The same for a model whose weights are to be loaded, which may have fewer heads of keys than ranks.

        Those are then held by several neighbours. With `exact`, for inference, results are those of one process bit for
        bit (`GatheringLinear`). Ranks have multiples of `rows` outputs of layers, and of `head_rows` of the head, as
        the format of a checkpoint asks for.
        """
        config, size = self.config, group.size
        if self.tensor_group is not None:
            raise ValueError("`module` is divided among ranks already")
        copies, first, stop = divided_heads(config, group.rank, size)
        shared, dim = config.num_key_value_heads, config.head_dim
        query = dim * (config.num_attention_heads // shared // copies)
        options = {
            "vocabulary": {}, "norm": {}, "inner": {"unit": rows}, "query": {"unit": query},
            "key": {"unit": dim, "copies": copies}, "three": {"parts": 3, "unit": dim},
            "head": {"gather_output": head_rows == 1, "unit": head_rows, "sequence_parallel": False},
        }  # fmt: skip
        heads = {"num_attention_heads": (stop - first) * query // dim, "num_key_value_heads": (stop - first) // copies}
        heads["num_key_value_heads"] = max(1, heads["num_key_value_heads"])
        self.use_config({name: n for name, n in heads.items() if name in config._fields})
        self.tensor_group, self.sequence_parallel = group, sequence_parallel
        if sequence_parallel and hasattr(self.decoder, "sequence_group"):
            self.decoder.sequence_group = group
        plan = {pattern: (kind, options[part]) for pattern, (kind, part) in self.names.PLAN.items()}
        if exact:
            more = {"rows": rows}
            plan = {at: ("gathering", o | more) if kind == "row" else (kind, o) for at, (kind, o) in plan.items()}
        return plan | (self.names.SEQUENCE if sequence_parallel else {})

    def use_config(self, changes):
        """Give the model and its layers a config with these fields changed."""
        config, own = self.config, self.config._replace(**changes)
        for module in self.modules():
            if getattr(module, "config", None) is config:
                module.config = own

    def init_weights(self):
        """Fill all parameters as the architecture does before training: see `from_config`."""
        std = self.config.initializer_range
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)) and module.weight is not None:
                nn.init.normal_(module.weight, 0.0, std)
                if getattr(module, "bias", None) is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, (nn.LayerNorm, nn.RMSNorm)):
                module.reset_parameters()
        return self

    @no_grad()
    def logits(self, step):
        """Logits [R, vocabulary] of a `Step`."""
        if self.ranks is not None:
            return self.ranks.lead(step, head=True)
        return self.lm_head(self.decoder(step))

    @no_grad()
    def states(self, step):
        """Hidden states [R, hidden size] of a `Step`, before the head."""
        if self.ranks is not None:
            return self.ranks.lead(step, head=False)
        return self.decoder(step)

    def hidden(self, ids):
        """Hidden states [batch, sequence, hidden size] before the head, differentiable; ids are an int64 Tensor.

        Where ranks share sequences, they are of this rank's part.
        """
        return self.run_pieces(ids, 0, None)

    def pieces(self):
        """Paths of the submodules of each piece that a pipeline may be cut into: embeddings, layers, norm and head."""
        path = next(name for name, module in self.named_modules() if module is self.decoder)
        first, layers, last = self.decoder.pieces
        middle = [[f"{path}.{layers}.{k}"] for k in range(self.decoder.depth)]
        return [[f"{path}.{name}" for name in first], *middle, [*(f"{path}.{name}" for name in last), "lm_head"]]

    def run_pieces(self, x, first, stop):
        """What pieces [first, stop) make of token ids (piece 0), or of what the piece before returned; differentiable.

        The last one returns the hidden states before the head.
        """
        length = x.shape[1] * (self.tensor_group.size if first and self.sequence_parallel else 1)
        if not first and length > self.config.context:  # later pieces get sequences that are filled up
            raise ValueError(f"`input_ids` has {length} tokens a sequence; the context is {self.config.context}")
        places, whole = np.arange(length), length
        if self.context_part is not None:
            if not first:
                self._check_context(length)
                x = self.context_part.part(x, 0)
                length = x.shape[1]
            whole = length * self.context_part.group.size
            places = self.context_part.places(whole)
        run = autograd.checkpoint if self.gradient_checkpointing and self.training else _call
        x = self.decoder.hidden(x, self.rotary, run, places, whole, first, stop)
        if self.sequence_parallel and (stop is None or stop == self.decoder.depth + 2):
            from ..distributed import functional

            x = functional.gather_from(x, 1, length, self.tensor_group)
        return x

    def forward(self, input_ids, attention_mask=None, cache=None, labels=None):
        """Logits [batch, sequence, vocabulary], or with `labels` the mean loss of predicting each next label.

        `attention_mask` [batch, sequence] marks the tokens that count (one run of ones per row, at either end; in
        training at the beginning); lists of different lengths need none. Logits of the other places are zero. With a
        `cache` (see `infinicore.lm`), the tokens follow those that it holds, and are stored in it. `labels` are shaped
        like `input_ids`, usually the same ids: place i is predicted from the places before it; -100 is passed over.
        Raises ValueError for ids outside the vocabulary, an empty row, or more tokens than the model's context.
        """
        if labels is not None or (self.training and cache is None and is_grad_enabled()):
            ids, mask = models.training.dense(input_ids, attention_mask, self.config.vocab_size, self.device)
            if labels is None:
                logits = self.lm_head(self.hidden(ids))
                return logits if self.context_part is None else self.context_part.whole(logits, ids.shape[1])
            targets = models.training.targets_of(labels, mask, tuple(ids.shape))
            shifted = np.full(targets.shape, IGNORED)
            shifted[:, :-1] = targets[:, 1:]
            return self.loss(ids, infinicore.from_numpy(shifted, device=self.device))
        return self._infer(input_ids, attention_mask, cache)

    def loss(self, input_ids, targets):
        """Mean cross entropy of predicting `targets` [B, T] (int64 Tensor; -100 is passed over) at each of `input_ids`.

        Logits are never held for all places at once.
        """
        return self.hidden_loss(self.hidden(input_ids), targets)

    def labels(self, targets):
        """How many of `targets` count in a loss."""
        return int((targets != IGNORED).sum().item())

    def hidden_loss(self, hidden, targets):
        """The `loss` of hidden states [B, T, hidden size]; where ranks share sequences, of this rank's part of them."""
        rows = hidden.reshape(-1, hidden.shape[-1])
        if self.lm_head.quantized is not None:
            raise NotImplementedError("a quantised model cannot be trained: load it without `quantize`")
        if self.context_part is None:
            return self._rows_loss(rows, targets.reshape(-1), "mean")
        if is_grad_enabled() and self.context_part.group.size > 1 and not self.averaged:
            raise RuntimeError(
                "each rank of `cp` has a part of the gradients, and nothing averages them: wrap the model in "
                'DistributedDataParallel(model, mesh.group("dp", "cp")), ZeroDataParallel or Pipeline'
            )
        own = self._rows_loss(rows, self.context_part.part(targets, IGNORED).reshape(-1), "sum")
        return self.context_part.total(own / (targets != IGNORED).sum())

    def _rows_loss(self, rows, targets, reduction):
        if self.tensor_group is not None:
            from ..distributed import vocab_parallel_cross_entropy

            logits, size, group = self.lm_head.part(rows), self.config.vocab_size, self.tensor_group
            return vocab_parallel_cross_entropy(logits, targets, size, IGNORED, reduction, group)
        options = {"ignore_index": IGNORED, "reduction": reduction}
        if type(self.lm_head) is not nn.Linear:  # more than its weight: an adapter
            return nn.functional.cross_entropy(self.lm_head(rows), targets, **options)
        return infinicore.linear_cross_entropy(rows, self.lm_head.weight, targets, **options)

    def _check_context(self, length):
        """Refuse sequences that cannot be filled up."""
        rope, padded = getattr(self.config, "rope", None), self.context_part.padded(length)
        if padded != length and getattr(rope, "type", None) == "dynamic" and padded > rope.max_position_embeddings:
            raise ValueError(
                f"`input_ids` must have a multiple of {self.context_part.unit} tokens beyond the "
                f"{rope.max_position_embeddings} of `max_position_embeddings`, as ranks share sequences, whose length "
                f"decides on dynamic rotary positions, got {length}"
            )

    @no_grad()
    def _infer(self, input_ids, attention_mask, cache):
        batch = Batch(input_ids, attention_mask, self.config.vocab_size)
        cache = batch.scratch_cache(self) if cache is None else cache
        batch.check_room(cache, self.config.context)
        step = build(cache, self.rotary, range(len(batch.rows)), batch.rows)
        return batch.unpack(self.logits(step))

    def generate(self, prompt, **options):
        """Write on from a prompt, token by token: see `infinicore.lm.generate`."""
        return generate(self, prompt, **options)
