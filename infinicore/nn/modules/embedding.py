"""Embedding tables."""

import infinicore

from .. import functional as F
from .. import init
from ..module import Module
from ..parameter import Parameter


class Embedding(Module):
    """Rows of a table: integer ids [...] to [..., embedding_dim]. An id outside the table is a ValueError.

    Of PyTorch's options, those about training (`padding_idx`, `scale_grad_by_freq`, `sparse`) change nothing here;
    `max_norm` is not supported.
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
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise ValueError(f"`padding_idx` {padding_idx} is out of range for {num_embeddings} embeddings")
        self.num_embeddings, self.embedding_dim, self.padding_idx = num_embeddings, embedding_dim, padding_idx
        if _weight is not None:
            if tuple(_weight.shape) != (num_embeddings, embedding_dim):
                raise ValueError(
                    f"`_weight` has shape {tuple(_weight.shape)}, expected {(num_embeddings, embedding_dim)}"
                )
            self.weight = Parameter(_weight)
        else:
            options = {"dtype": dtype or infinicore.float32, "device": device}
            self.weight = Parameter(infinicore.empty((num_embeddings, embedding_dim), **options))
            if init.wanted():
                self.reset_parameters()

    def reset_parameters(self):
        """Normal numbers; the row of the padding id is zero."""
        init.normal_(self.weight)
        if self.padding_idx is not None:
            init.zeros_(self.weight[self.padding_idx])

    def forward(self, input):
        return F.embedding(input, self.weight)

    def extra_repr(self):
        return f"{self.num_embeddings}, {self.embedding_dim}"
