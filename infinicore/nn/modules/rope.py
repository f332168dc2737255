"""Rotary position embedding as a module."""

import numpy as np

import infinicore

from .. import functional as F
from ..functional import RopeAlgo
from ..module import Module


class RoPE(Module):
    """Turns query and key heads by angles that grow with their position.

    The tables are [max_position_embeddings, rotary_dim / 2], plain attributes (not in `state_dict()`).
    `rotary_dim` (default `head_dim`) turns only the first dims of each head.
    """

    def __init__(
        self,
        max_position_embeddings,
        rope_theta,
        head_dim,
        device=None,
        dtype=None,
        rotary_dim=None,
        mrope_section=None,
        mrope_interleaved=False,
    ):
        super().__init__()
        if mrope_section is not None:
            raise NotImplementedError("`mrope_section` (several axes of positions) is not supported, leave it out")
        rotary_dim = head_dim if rotary_dim is None else rotary_dim
        for name, value in (("head_dim", head_dim), ("rotary_dim", rotary_dim)):
            if not isinstance(value, int) or value < 2 or value % 2:
                raise ValueError(f"`{name}` must be a positive even integer, got {value!r}")
        if rotary_dim > head_dim:
            raise ValueError(f"`rotary_dim` ({rotary_dim}) must be at most `head_dim` ({head_dim})")
        if not isinstance(max_position_embeddings, int) or max_position_embeddings < 1:
            raise ValueError(f"`max_position_embeddings` must be a positive integer, got {max_position_embeddings!r}")
        self.max_position_embeddings, self.rope_theta = max_position_embeddings, rope_theta
        self.head_dim, self.rotary_dim = head_dim, rotary_dim
        frequencies = 1.0 / rope_theta ** (np.arange(0, rotary_dim, 2) / rotary_dim)
        angles = np.outer(np.arange(max_position_embeddings), frequencies)
        dtype = dtype or infinicore.get_default_dtype()
        self._sin_table = infinicore.from_numpy(np.sin(angles).astype(np.float32)).to(dtype)
        self._cos_table = infinicore.from_numpy(np.cos(angles).astype(np.float32)).to(dtype)

    def _replace_tensors(self, fn, done):
        self._sin_table, self._cos_table = fn(self._sin_table), fn(self._cos_table)

    def forward(self, states, position_ids, *args, algo=RopeAlgo.GPT_NEOX, out=None):
        """Turn `states` [..., S, heads, head_dim] by `position_ids` [..., S]: in place, unless `out` is given."""
        if out is None:
            out = states
        elif self.rotary_dim < self.head_dim:
            out.copy_(states)
        part, target = states, out
        if self.rotary_dim < self.head_dim:
            part = states.narrow(states.ndim - 1, 0, self.rotary_dim)
            target = out.narrow(out.ndim - 1, 0, self.rotary_dim)
        F.rope(part, position_ids, self._sin_table, self._cos_table, algo, out=target)
        return out

    def rope(self, q, k, positions):
        """Turn query and key heads, both in place; returns the pair."""
        return self.forward(q, positions), self.forward(k, positions)

    def extra_repr(self):
        return f"{self.max_position_embeddings}, rope_theta={self.rope_theta}, head_dim={self.head_dim}"
