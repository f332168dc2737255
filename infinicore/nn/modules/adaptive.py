"""Adaptive softmax."""

from typing import NamedTuple

import infinicore

from .. import functional as F
from ..module import Module
from .container import ModuleList, Sequential
from .linear import Linear


class _Result(NamedTuple):
    output: object
    loss: object


class AdaptiveLogSoftmaxWithLoss(Module):
    """Softmax over many classes whose rare ones are in clusters with smaller products (Grave, arXiv 1609.04309).

    Classes are sorted by frequency; `cutoffs` say where clusters begin, and cluster i is computed from in_features /
    div_value^(i + 1) numbers. Called with (input [N, in_features], target [N]), or without N, it gives (`output`: the
    log probabilities of the targets, `loss`: minus their mean).
    """

    def __init__(self, in_features, n_classes, cutoffs, div_value=4.0, head_bias=False, device=None, dtype=None):
        super().__init__()
        cutoffs = list(cutoffs)
        rising = cutoffs == sorted(set(cutoffs)) and all(isinstance(c, int) for c in cutoffs)
        if not cutoffs or not rising or cutoffs[0] < 1 or cutoffs[-1] > n_classes - 1:
            raise ValueError(f"`cutoffs` must be rising integers from 1 to {n_classes - 1}, got {cutoffs}")
        self.in_features, self.n_classes, self.div_value, self.head_bias = in_features, n_classes, div_value, head_bias
        self.cutoffs = [*cutoffs, n_classes]
        self.shortlist_size, self.n_clusters = cutoffs[0], len(cutoffs)
        self.head_size = self.shortlist_size + self.n_clusters
        options = {"device": device, "dtype": dtype}
        self.head = Linear(in_features, self.head_size, bias=head_bias, **options)
        self.tail = ModuleList()
        for i in range(self.n_clusters):
            width = int(in_features // div_value ** (i + 1))
            size = self.cutoffs[i + 1] - self.cutoffs[i]
            parts = Linear(in_features, width, bias=False, **options), Linear(width, size, bias=False, **options)
            self.tail.append(Sequential(*parts))

    def reset_parameters(self):
        """Fill all layers anew."""
        for module in (self.head, *(layer for pair in self.tail for layer in pair)):
            module.reset_parameters()

    def forward(self, input_, target_):
        if target_.ndim > 1 or input_.ndim != target_.ndim + 1 or input_.shape_[:-1] != target_.shape_:
            raise ValueError(
                f"`input_` and `target_` must be [N, {self.in_features}] and [N], or [{self.in_features}] and a class, "
                f"got {input_.shape_} and {target_.shape_}"
            )
        x, target = input_.reshape(-1, input_.shape_[-1]), target_.reshape(-1)
        ids = target.cpu().numpy()
        if ids.size and not (ids.min() >= 0 and ids.max() < self.n_classes):
            raise ValueError(f"`target_` must be classes from 0 to {self.n_classes - 1}, got {ids.tolist()}")
        head = F.log_softmax(self.head(x), 1)
        columns, rest = ids.copy(), None
        for i, (low, high) in enumerate(zip(self.cutoffs, self.cutoffs[1:])):
            rows = ((ids >= low) & (ids < high)).nonzero()[0]
            if not rows.size:
                continue
            columns[rows] = self.shortlist_size + i
            own = infinicore.from_numpy(rows, device=x.device)
            at = infinicore.from_numpy(ids[rows] - low, device=x.device).unsqueeze(1)
            inside = F.log_softmax(self.tail[i](infinicore.index_select(x, 0, own)), 1)
            rest = infinicore.zeros(len(ids), dtype=head.dtype, device=x.device) if rest is None else rest
            rest = infinicore.index_add(rest, 0, own, infinicore.gather(inside, 1, at).squeeze(1))
        output = infinicore.gather(head, 1, infinicore.from_numpy(columns, device=x.device).unsqueeze(1)).squeeze(1)
        output = output if rest is None else output + rest
        return _Result(output if target_.ndim else output.squeeze(0), -output.mean())

    def log_prob(self, input):
        """The log probabilities of all classes, [N, n_classes] of input [N, in_features]."""
        head, size = F.log_softmax(self.head(input), 1), self.shortlist_size
        parts = [head[:, :size]]
        for i, tail in enumerate(self.tail):
            parts.append(F.log_softmax(tail(input), 1) + head[:, size + i : size + i + 1])
        return infinicore.cat(parts, 1)

    def predict(self, input):
        """The most likely class of each row, [N] of input [N, in_features]."""
        return infinicore.argmax(self.log_prob(input), 1)
