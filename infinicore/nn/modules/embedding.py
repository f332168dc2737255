"""Embedding tables."""

import infinicore

from .. import functional as F
from .. import init
from ..module import Module
from ..parameter import Parameter


class Embedding(Module):
    """Rows of a table: integer ids [...] to [..., embedding_dim]. An id outside the table is a ValueError.

    The row `padding_idx` is zero at first and gets no gradient; `max_norm`, `norm_type` and `scale_grad_by_freq` are
    those of `functional.embedding`. Gradients are dense, whatever `sparse` says.
    """

    def __init__(
        self,
        num_embeddings,
        embedding_dim,
        padding_idx=None,
        max_norm=None,
        norm_type=2.0,
        scale_grad_by_freq=False,
        sparse=False,
        _weight=None,
        _freeze=False,
        device=None,
        dtype=None,
    ):
        super().__init__()
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise ValueError(f"`padding_idx` {padding_idx} is out of range for {num_embeddings} embeddings")
        if padding_idx is not None and padding_idx < 0:
            padding_idx += num_embeddings
        self.num_embeddings, self.embedding_dim, self.padding_idx = num_embeddings, embedding_dim, padding_idx
        self.max_norm, self.norm_type, self.sparse = max_norm, norm_type, sparse
        self.scale_grad_by_freq = scale_grad_by_freq
        if _weight is not None:
            if tuple(_weight.shape) != (num_embeddings, embedding_dim):
                raise ValueError(
                    f"`_weight` has shape {tuple(_weight.shape)}, expected {(num_embeddings, embedding_dim)}"
                )
            self.weight = Parameter(_weight, requires_grad=not _freeze)
        else:
            options = {"dtype": dtype or infinicore.get_default_dtype(), "device": device}
            self.weight = Parameter(infinicore.empty((num_embeddings, embedding_dim), **options), not _freeze)
            if init.wanted():
                self.reset_parameters()

    def reset_parameters(self):
        """Normal numbers; the row of the padding id is zero."""
        init.normal_(self.weight)
        if self.padding_idx is not None:
            init.zeros_(self.weight.detach()[self.padding_idx])

    @classmethod
    def from_pretrained(
        cls,
        embeddings,
        freeze=True,
        padding_idx=None,
        max_norm=None,
        norm_type=2.0,
        scale_grad_by_freq=False,
        sparse=False,
    ):
        """A layer over a table that exists [num_embeddings, embedding_dim], which is not trained if `freeze`."""
        if embeddings.ndim != 2:
            raise ValueError(f"`embeddings` must have 2 dims, got shape {tuple(embeddings.shape)}")
        options = (padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse)
        return cls(*embeddings.shape, *options, _weight=embeddings, _freeze=freeze)

    @property
    def dtype(self):
        """The dtype of the rows that `forward` returns."""
        return self._quantized[2] if self.weight is None else self.weight.dtype

    def set_quantized(self, raw, kind):
        """Take rows from raw blocks of a GGUF file from now on, and drop `weight`; `forward` returns its dtype.

        `raw` (uint8) and `kind` are those of `gguf_embedding`; `raw` is kept as it is, also where it is a mapped file,
        and only the rows that are asked for are read.
        """
        self._quantized = (raw, kind, self.dtype)
        self.weight = None

    def _replace_tensors(self, fn, done):
        super()._replace_tensors(fn, done)
        if self.weight is None:  # raw blocks stay as they are; what they are expanded to changes, and where they lie
            raw, kind, dtype = self._quantized
            like = fn(infinicore.empty((0,), dtype=dtype, device=raw.device))
            self._quantized = (raw.to(like.device), kind, like.dtype)

    def forward(self, input):
        weight = self._own("weight")
        if weight is None:
            raw, kind, dtype = self._quantized
            shape = (self.num_embeddings, self.embedding_dim)
            return infinicore.gguf_embedding(input, raw, kind, shape, dtype.name)
        return F.embedding(
            input, weight, self.padding_idx, self.max_norm, self.norm_type, self.scale_grad_by_freq, self.sparse
        )

    def extra_repr(self):
        kind = f", {self._quantized[1]}" if self.weight is None else ""
        return f"{self.num_embeddings}, {self.embedding_dim}{_options(self)}{kind}"


def _options(module):
    """The options of a table that are not those of the start, as text."""
    text = "" if module.padding_idx is None else f", padding_idx={module.padding_idx}"
    text += "" if module.max_norm is None else f", max_norm={module.max_norm}"
    text += "" if module.norm_type == 2 else f", norm_type={module.norm_type}"
    for name in ("scale_grad_by_freq", "sparse"):
        text += f", {name}=True" if getattr(module, name) else ""
    return text


class EmbeddingBag(Module):
    """Sums, means or maxima of the rows of bags of ids; see `functional.embedding_bag` for the options."""

    def __init__(
        self,
        num_embeddings,
        embedding_dim,
        max_norm=None,
        norm_type=2.0,
        scale_grad_by_freq=False,
        mode="mean",
        sparse=False,
        _weight=None,
        include_last_offset=False,
        padding_idx=None,
        device=None,
        dtype=None,
    ):
        super().__init__()
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise ValueError(f"`padding_idx` {padding_idx} is out of range for {num_embeddings} embeddings")
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.padding_idx = padding_idx if padding_idx is None else padding_idx % num_embeddings
        self.max_norm, self.norm_type, self.mode, self.sparse = max_norm, norm_type, mode, sparse
        self.scale_grad_by_freq, self.include_last_offset = scale_grad_by_freq, include_last_offset
        if _weight is not None and tuple(_weight.shape) != (num_embeddings, embedding_dim):
            raise ValueError(f"`_weight` has shape {tuple(_weight.shape)}, expected {(num_embeddings, embedding_dim)}")
        if _weight is None:
            options = {"dtype": dtype or infinicore.get_default_dtype(), "device": device}
            self.weight = Parameter(infinicore.empty((num_embeddings, embedding_dim), **options))
            if init.wanted():
                self.reset_parameters()
        else:
            self.weight = Parameter(_weight)

    reset_parameters = Embedding.reset_parameters

    @classmethod
    def from_pretrained(
        cls,
        embeddings,
        freeze=True,
        max_norm=None,
        norm_type=2.0,
        scale_grad_by_freq=False,
        mode="mean",
        sparse=False,
        include_last_offset=False,
        padding_idx=None,
    ):
        """A layer over a table that exists [num_embeddings, embedding_dim], which is not trained if `freeze`."""
        if embeddings.ndim != 2:
            raise ValueError(f"`embeddings` must have 2 dims, got shape {tuple(embeddings.shape)}")
        options = (max_norm, norm_type, scale_grad_by_freq, mode, sparse, embeddings, include_last_offset, padding_idx)
        bag = cls(*embeddings.shape, *options)
        bag.weight.requires_grad_(not freeze)
        return bag

    def forward(self, input, offsets=None, per_sample_weights=None):
        options = (self.max_norm, self.norm_type, self.scale_grad_by_freq, self.mode, self.sparse)
        rest = (per_sample_weights, self.include_last_offset, self.padding_idx)
        return F.embedding_bag(input, self.weight, offsets, *options, *rest)

    def extra_repr(self):
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        limit = "" if self.max_norm is None else f", max_norm={self.max_norm}"
        limit += "" if self.norm_type == 2 else f", norm_type={self.norm_type}"
        freq = f", scale_grad_by_freq={self.scale_grad_by_freq}" if self.scale_grad_by_freq else ""
        return f"{self.num_embeddings}, {self.embedding_dim}{limit}{freq}, mode={self.mode!r}{padding}"
