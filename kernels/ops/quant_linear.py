"""Products with quantised weights: `linear_quantized`.

Activations are quantised on the way, 32 neighbours of a row with one scale (all of a row where the weight has one
scale per row), and multiplied as integers of 8 bits: sums of a group are exact, and scaled in float32. With
`activations="float"` they stay as they are, and the weight's integers are converted in registers.
"""

from ..problems.quant import Factor, QuantizedProduct
from ..table.registry import op
from .quant import QuantizedWeight

_DTYPES = ("float32", "bfloat16", "float16")
_FLAT_K = 1 << 17  # beyond, int32 could not hold the sum of a row


def _checked(input, weight, bias, activations):
    """The weights as a tuple, and the common K; ValueError or TypeError for what does not fit."""
    weights = (weight,) if isinstance(weight, QuantizedWeight) else tuple(weight)
    for w in weights:
        if not isinstance(w, QuantizedWeight):
            raise TypeError(f"`weight` of `linear_quantized` must be a QuantizedWeight, got {type(w).__name__}")
    if not hasattr(input, "address"):
        raise TypeError(f"`input` of `linear_quantized` must be a tensor, got {type(input).__name__}")
    if input.dtype.name not in _DTYPES:
        raise TypeError(
            f"`linear_quantized` takes {', '.join(_DTYPES)}, got {input.dtype.name}; cast `input` with `.to()`"
        )
    if activations not in ("int8", "float"):
        raise ValueError(f"`activations` must be 'int8' or 'float', got {activations!r}")
    shape = tuple(input.shape)
    for w in weights:
        if not shape or shape[-1] != w.shape[1]:
            raise ValueError(
                f"`linear_quantized` needs `input` [..., K] and `weight` [N, K], got {shape} and {w.shape}"
            )
        if not shape[-1]:
            raise ValueError(f"`weight` of `linear_quantized` must have K of at least 1, got shape {w.shape}")
        if w.format.flat and w.shape[1] > _FLAT_K:
            raise ValueError(
                f"`weight` of one scale per row may have K of {_FLAT_K} at most, got {w.shape[1]}; use int4"
            )
    n = sum(w.shape[0] for w in weights)
    if bias is not None:
        if tuple(bias.shape) != (n,):
            raise ValueError(f"`bias` of `linear_quantized` must have shape ({n},), got {tuple(bias.shape)}")
        if bias.dtype is not input.dtype:
            raise TypeError(f"`bias` must have the dtype of `input`, {input.dtype.name}, got {bias.dtype.name}")
    return weights, n


@op(dtypes=_DTYPES, gradient="missing")
def linear_quantized(call, input, weight, bias=None, *, activations="int8"):
    """`input @ weight.T + bias` for input [..., K] and a `QuantizedWeight` [N, K] -> [..., N].

    Several weights with the same K (a sequence) give their results one after another, [..., sum of N], and `bias` is
    as long. `activations` "int8" quantises `input` on the way, "float" does not (weights of float8 never do,
    and a GPU never does).
    Raises ValueError for sizes that do not match, TypeError for other dtypes than float32, bfloat16 and float16.
    """
    weights, n = _checked(input, weight, bias, activations)
    shape = tuple(input.shape)
    y = call.out((*shape[:-1], n), input.dtype)
    if y.numel() == 0:
        return y
    tensors = {"x": input.contiguous(), "y": y, "bias": None if bias is None else bias.contiguous()}
    factors, orders = [], {}
    for number, w in enumerate(weights):
        tensors[f"weight{number}"], order = w.data, None
        if w.order is not None:
            order = orders.setdefault(id(w.order), len(orders))
            tensors[f"order{order}"] = w.order
        factors.append(Factor(w.format.name, w.shape[0], w.shift, order))
    rows, rounded = y.numel() // n, activations == "int8"
    call.run(QuantizedProduct(input.dtype.name, rows, shape[-1], rounded, tuple(factors)), **tensors)
    return y
