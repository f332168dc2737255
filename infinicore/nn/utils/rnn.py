"""Sequences of different lengths: packed, padded, unpadded."""

from typing import NamedTuple

import numpy as np

import infinicore

__all__ = [
    "PackedSequence",
    "invert_permutation",
    "pack_padded_sequence",
    "pack_sequence",
    "pad_packed_sequence",
    "pad_sequence",
    "unpack_sequence",
    "unpad_sequence",
]


class _Fields(NamedTuple):
    data: object
    batch_sizes: object
    sorted_indices: object
    unsorted_indices: object


class PackedSequence(_Fields):
    """Sequences of falling lengths step by step: `data` [all steps, *], of which step t has `batch_sizes[t]` rows.

    `sorted_indices` say which sequence of the caller's is the k-th longest, `unsorted_indices` the reverse; both are
    None where the caller's were sorted.
    """

    __slots__ = ()

    def __new__(cls, data, batch_sizes=None, sorted_indices=None, unsorted_indices=None):
        if unsorted_indices is None:
            unsorted_indices = invert_permutation(sorted_indices)
        return super().__new__(cls, data, batch_sizes, sorted_indices, unsorted_indices)

    def to(self, *args, **kwargs):
        """The same with `data` of another dtype or device."""
        data = self.data.to(*args, **kwargs)
        order = [x if x is None else x.to(data.device) for x in self[2:]]
        return PackedSequence(data, self.batch_sizes, *order)

    def cpu(self):
        """The same with `data` on the CPU."""
        return self.to("cpu")

    @property
    def is_cuda(self):
        """Whether `data` is on a GPU."""
        return self.data.is_cuda

    def is_pinned(self):
        """Whether `data` is in pinned memory."""
        return self.data.is_pinned()

    def pin_memory(self):
        """Itself, as tensors' `pin_memory`."""
        return self

    def cuda(self, device=None):
        """The same with `data` on a GPU."""
        data = self.data.cuda(device)
        return self.to(data.device)


def _converted(name, dtype):
    def method(self):
        return self.to(getattr(infinicore, dtype))

    method.__name__, method.__doc__ = name, f"With `data` in {dtype}."
    return method


for _name, _dtype in {
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "int": "int32",
    "long": "int64",
    "short": "int16",
    "char": "int8",
    "byte": "uint8",
}.items():
    setattr(PackedSequence, _name, _converted(_name, _dtype))


def invert_permutation(permutation):
    """The permutation [N] that undoes another one; None of None."""
    if permutation is None:
        return None
    return infinicore.from_numpy(np.argsort(permutation.cpu().numpy(), kind="stable"), device=permutation.device)


def _listed(lengths):
    values = lengths.tolist() if isinstance(lengths, infinicore.Tensor) else list(lengths)
    if not values or not all(isinstance(n, int) and n > 0 for n in values):
        raise ValueError(f"`lengths` must hold integers above 0, one for each sequence, got {values}")
    return np.array(values)


def pack_padded_sequence(input, lengths, batch_first=False, enforce_sorted=True):
    """Pack `input` [S, B, *] (with `batch_first` [B, S, *]) of B sequences with `lengths` (a list or tensor).

    `enforce_sorted` says that lengths fall; else they are sorted, and the order is kept in the result.
    """
    sizes = _listed(lengths)
    input = input.transpose(0, 1) if batch_first else input
    if len(sizes) != input.shape_[1] or sizes.max() > input.shape_[0]:
        raise ValueError(
            f"`lengths` must be {input.shape_[1]} numbers of at most {input.shape_[0]} for `input` {input.shape_}, "
            f"got {sizes.tolist()}"
        )
    order = None
    if not enforce_sorted:
        order = np.argsort(-sizes, kind="stable")
        sizes = sizes[order]
    elif (np.diff(sizes) > 0).any():
        raise ValueError(f"`lengths` must fall with `enforce_sorted`, got {sizes.tolist()}: pass enforce_sorted=False")
    steps = np.arange(sizes[0])
    batch_sizes = (sizes[None] > steps[:, None]).sum(1)
    step = np.repeat(steps, batch_sizes)
    place = np.concatenate([np.arange(n) for n in batch_sizes])
    rows = step * len(sizes) + (place if order is None else order[place])
    flat = input.reshape(-1, *input.shape_[2:])
    data = infinicore.index_select(flat, 0, infinicore.from_numpy(rows, device=flat.device))
    order = None if order is None else infinicore.from_numpy(order, device=flat.device)
    return PackedSequence(data, infinicore.from_numpy(batch_sizes.astype(np.int64)), order)


def pad_packed_sequence(sequence, batch_first=False, padding_value=0.0, total_length=None):
    """(padded [S, B, *], lengths [B]) of a `PackedSequence`; what is behind a sequence is `padding_value`."""
    sizes = sequence.batch_sizes.cpu().numpy()
    steps, batch = len(sizes), int(sizes[0])
    if total_length is not None and total_length < steps:
        raise ValueError(f"`total_length` must be at least the longest length, {steps}, got {total_length}")
    lengths = (sizes[:, None] > np.arange(batch)[None]).sum(0)
    starts = np.cumsum(sizes) - sizes
    order = sequence.unsorted_indices
    back = np.arange(batch) if order is None else order.cpu().numpy()
    rows = starts[:, None] + np.arange(batch)[None]
    inside = np.arange(steps)[:, None] < lengths[None]
    rows, inside, lengths = np.where(inside, rows, 0)[:, back], inside[:, back], lengths[back]
    data, extra = sequence.data, (total_length or steps) - steps
    rows = np.concatenate([rows, np.zeros((extra, batch), np.int64)])
    inside = np.concatenate([inside, np.zeros((extra, batch), bool)])
    rest = data.shape_[1:]
    padded = infinicore.index_select(data, 0, infinicore.from_numpy(rows.reshape(-1), device=data.device))
    padded = padded.reshape(steps + extra, batch, *rest)
    if not inside.all():
        mask = inside.reshape(steps + extra, batch, *(1,) * len(rest))
        mask = infinicore.from_numpy(mask, device=data.device)
        padded = infinicore.where(mask, padded, padding_value)
    return padded.transpose(0, 1) if batch_first else padded, infinicore.from_numpy(lengths.astype(np.int64))


def pad_sequence(sequences, batch_first=False, padding_value=0.0, padding_side="right"):
    """Tensors [n, *] of different n as one [S, B, *], or [B, S, *] with `batch_first`, filled with `padding_value`."""
    if padding_side not in ("right", "left"):
        raise ValueError(f"`padding_side` must be 'right' or 'left', got {padding_side!r}")
    sequences = list(sequences)
    if not sequences:
        raise ValueError("`sequences` must hold a tensor at least")
    longest, rows = max(x.shape_[0] for x in sequences), []
    for x in sequences:
        sides = (0, longest - x.shape_[0]) if padding_side == "right" else (longest - x.shape_[0], 0)
        rows.append(infinicore.pad(x, (0, 0) * (x.ndim - 1) + sides, value=padding_value))
    return infinicore.stack(rows, 0 if batch_first else 1)


def unpad_sequence(padded_sequences, lengths, batch_first=False):
    """The tensors that `pad_sequence` put together, as a list."""
    rows = padded_sequences if batch_first else padded_sequences.transpose(0, 1)
    return [row[: int(n)] for row, n in zip(rows.unbind(0), lengths)]


def pack_sequence(sequences, enforce_sorted=True):
    """A `PackedSequence` of tensors [n, *], whose lengths fall with `enforce_sorted`."""
    lengths = [x.shape_[0] for x in sequences]
    return pack_padded_sequence(pad_sequence(sequences), lengths, enforce_sorted=enforce_sorted)


def unpack_sequence(packed_sequences):
    """The tensors of a `PackedSequence`, as a list."""
    padded, lengths = pad_packed_sequence(packed_sequences, batch_first=True)
    return unpad_sequence(padded, lengths, batch_first=True)
