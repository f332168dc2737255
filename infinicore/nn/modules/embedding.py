"""Embedding tables."""

import infinicore

from .. import functional as F
from .. import init
from ..module import Module
from ..parameter import Parameter


class Embedding(Module):
    """Rows of a table: integer ids [...] to [..., embedding_dim]. An id outside the table is a ValueError.

    The row `padding_idx` is zero at first and gets no gradient. Gradients are dense, whatever `sparse` says;
    `max_norm` and `scale_grad_by_freq` are not supported.
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
        if max_norm is not None:
            raise NotImplementedError("`max_norm` of Embedding is not supported, leave it out")
        if scale_grad_by_freq:
            raise NotImplementedError("`scale_grad_by_freq` of Embedding is not supported, leave it out")
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise ValueError(f"`padding_idx` {padding_idx} is out of range for {num_embeddings} embeddings")
        if padding_idx is not None and padding_idx < 0:
            padding_idx += num_embeddings
        self.num_embeddings, self.embedding_dim, self.padding_idx = num_embeddings, embedding_dim, padding_idx
        if _weight is not None:
            if tuple(_weight.shape) != (num_embeddings, embedding_dim):
                raise ValueError(
                    f"`_weight` has shape {tuple(_weight.shape)}, expected {(num_embeddings, embedding_dim)}"
                )
            self.weight = Parameter(_weight, requires_grad=not _freeze)
        else:
            options = {"dtype": dtype or infinicore.float32, "device": device}
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
        if self.weight is None:  # raw blocks stay; what they are expanded to changes
            raw, kind, dtype = self._quantized
            self._quantized = (raw, kind, fn(infinicore.empty((0,), dtype=dtype)).dtype)

    def forward(self, input):
        weight = self._own("weight")
        if weight is None:
            raw, kind, dtype = self._quantized
            shape = (self.num_embeddings, self.embedding_dim)
            return infinicore.gguf_embedding(input, raw, kind, shape, dtype.name)
        return F.embedding(input, weight, self.padding_idx)

    def extra_repr(self):
        kind = f", {self._quantized[1]}" if self.weight is None else ""
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}{padding}{kind}"
