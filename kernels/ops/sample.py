"""The next token from logits."""

import numpy as np

from ..blocks.reduce import GREEDY, SAMPLE
from ..problems.reduce import Sample
from ..table.registry import op
from ._layout import check, rows

_ERRORS = {1: "`logits` must have no NaN and at least one value above -inf in each row: the model's output is broken"}


def _random_sample_ref(logits, random_val, topp, topk, temperature):
    if random_val == 0 or topp == 0 or topk == 1 or temperature == 0:
        return np.argmax(logits).astype(np.int32)
    order = np.argsort(-logits, kind="stable")
    mass = np.cumsum(np.exp((logits[order] - logits.max()) / temperature))
    k = min(topk, logits.size) if topk > 0 else logits.size
    limit = random_val * min(mass[k - 1], topp * mass[-1])
    return order[np.argmax(mass >= limit)].astype(np.int32)


def _random_sample_samples(rng):
    for size in (1, 3, 17, 257, 5000):
        for topp, topk, temperature in ((0.8, 3, 0.5), (1.0, 0, 1.0), (0.3, 1000, 2.0), (0.9, 1, 1.0), (0.5, 5, 0.0)):
            yield (rng.standard_normal(size) * 3, float(rng.uniform()), topp, topk, temperature), {}


def _float32(logits):
    return logits if logits.dtype.name == "float32" else logits.to(dtype="float32")


def _greedy(call, x, y, num_rows, stride, size):
    """The first of the largest logits of each row."""
    block = GREEDY(x=x, tokens=y, stride=stride, size=size)
    call.launch("reduce.sample.greedy", {"T": x.dtype.name, "O": y.dtype.name}, block, num_rows, size, _ERRORS)


@op(ref=_random_sample_ref, samples=_random_sample_samples, gradient=None)
def random_sample(call, logits, random_val, topp, topk, temperature):
    """One token id as a 0-dim int32 tensor, drawn from `logits` [V] by the number `random_val` in [0, 1].

    The most likely token (the first of equals) if `random_val` or `topp` or `temperature` is 0 or `topk`
    is 1. Otherwise tokens are taken from the most likely one downwards until their mass
    sum(exp((logit - max) / temperature)) reaches `random_val` times the smaller of the mass of the
    `topk` first (all for `topk` <= 0) and `topp` times the whole mass. Logits are compared as float32.
    """
    check(call, logits, "logits")
    if len(logits.shape_) != 1 or not logits.numel_:
        raise ValueError(f"`logits` of `random_sample` must be [V] with V >= 1, got shape {logits.shape_}")
    for name, value, limit in (
        ("random_val", random_val, 1.0),
        ("topp", topp, None),
        ("temperature", temperature, None),
    ):
        if not value >= 0 or (limit is not None and value > limit):
            words = "from 0 to 1" if limit else "at least 0"
            raise ValueError(f"`{name}` of `random_sample` must be {words}, got {value!r}")
    logits = logits.contiguous()
    y = call.out((), "int32")
    if random_val == 0 or topp == 0 or topk == 1 or temperature == 0:
        _greedy(call, logits, y, 1, 0, logits.numel_)
        return y
    x = _float32(logits)
    size = x.numel_
    workspace = call.empty((6, size), "int32")  # by the contract, there is one row, hence one slot
    block = SAMPLE(
        x=x, tokens=y, workspace=workspace, stride=0, rows=1, size=size, slots=1, contract=1, own_random=random_val,
        own_temperature=temperature, own_top_k=int(topk), own_top_p=topp,
    )  # fmt: skip
    call.launch("reduce.sample.sample_tokens", {}, block, 1, size, _ERRORS)
    return y


def _sample_row(logits, random, temperature, top_k, top_p, min_p, penalty, history, bias):
    """One row of `sample_tokens`, after the definitions."""
    known, logits = logits, logits.copy()
    for token, more in zip(history, bias):
        if 0 <= token < logits.size:
            logits[token] = (known[token] / penalty if known[token] > 0 else known[token] * penalty) + more
    if temperature <= 0:
        return np.argmax(logits)
    weights = np.exp((logits - logits.max()) / temperature)
    order = np.argsort(-logits, kind="stable")
    keep = np.ones(logits.size, bool)
    if 0 < top_k < logits.size:
        keep = logits >= logits[order[top_k - 1]]
    weights = np.where(keep, weights, 0)
    before = np.concatenate([[0], np.cumsum(weights[order])[:-1]])
    if top_p < 1:
        keep[order[1:]] &= before[1:] < top_p * weights.sum()
    keep &= weights >= min(min_p, 1)
    weights = np.where(keep, weights, 0)
    mass = np.cumsum(weights[order])
    return order[np.argmax(mass > random * mass[-1])]


def _sample_tokens_ref(
    logits,
    random_val=None,
    temperature=None,
    top_k=None,
    top_p=None,
    min_p=None,
    repetition_penalty=None,
    history=None,
    history_bias=None,
):
    out = []
    history = np.zeros((len(logits), 0), int) if history is None else history
    history_bias = np.zeros(history.shape) if history_bias is None else history_bias
    for i, row in enumerate(logits):
        given = (random_val, temperature, top_k, top_p, min_p, repetition_penalty)
        values = [d if v is None else v[i] for v, d in zip(given, (0, 0, 0, 1, 0, 1))]
        out.append(_sample_row(row, *values, history[i], history_bias[i]))
    return np.array(out, np.int64)


_FLOAT64 = ("random_val", "temperature", "top_p", "min_p", "repetition_penalty")


def _per_row(call, name, values, num_rows):
    """A contiguous tensor with a value per row, or None."""
    if values is None:
        return None
    dtype = "float64" if name in _FLOAT64 else "int64"
    if not hasattr(values, "strides_") or values.dtype.name != dtype or values.shape_ != (num_rows,):
        got = f"{values.dtype.name} {values.shape_}" if hasattr(values, "strides_") else type(values).__name__
        raise ValueError(f"`{name}` of `sample_tokens` must be a {dtype} tensor of shape ({num_rows},), got {got}")
    return values.contiguous()


@op(ref=_sample_tokens_ref, gradient=None)
def sample_tokens(
    call,
    logits,
    random_val=None,
    temperature=None,
    top_k=None,
    top_p=None,
    min_p=None,
    repetition_penalty=None,
    history=None,
    history_bias=None,
):
    """One token id per row of `logits` [B, V]: int64 [B].

    Each option is a tensor [B] with a value per row (float64; `top_k` int64), or None. In this order:
    logits of the tokens in `history` (int64 [B, L], negative ids are padding) are divided by
    `repetition_penalty` where positive, else multiplied, and `history_bias` (float32 [B, L]) is added to
    them, the last one where a token is named again; `temperature` 0 (and None) takes the most likely
    token, the first of equals; others divide the logits; `top_k` > 0 keeps the k most likely tokens and
    those equal to the last; `top_p` keeps the most likely ones up to the one with which their
    probability reaches it; `min_p` those with that share of the greatest probability. `random_val` in
    [0, 1) draws from what is left, ordered from the most likely token. Logits are compared as float32.
    The tensors are read when the launch runs, so a recorded graph follows their values.
    """
    check(call, logits, "logits")
    if len(logits.shape_) != 2 or not logits.shape_[1]:
        raise ValueError(f"`logits` of `sample_tokens` must be [B, V] with V >= 1, got shape {logits.shape_}")
    num_rows, size = logits.shape_
    y = call.out((num_rows,), "int64")
    if temperature is None and repetition_penalty is None and history_bias is None:
        x, _, _, stride = rows(logits, 1)
        _greedy(call, x, y, num_rows, stride, size)
        return y
    x, _, _, stride = rows(_float32(logits), 1)
    given = {"random_val": random_val, "temperature": temperature, "top_k": top_k, "top_p": top_p}
    given |= {"min_p": min_p, "repetition_penalty": repetition_penalty}
    random, temperature, top_k, top_p, min_p, penalty = (_per_row(call, k, v, num_rows) for k, v in given.items())
    length = step = bias_step = 0
    if history_bias is not None:
        shape, given = (getattr(one, "shape_", None) for one in (history, history_bias))
        if shape is None or given != shape or history_bias.dtype.name != "float32":
            raise ValueError(
                f"`history_bias` of `sample_tokens` must be a float32 tensor of the shape of `history`, {shape}, got "
                f"{history_bias!r}"
            )
        history_bias, _, _, bias_step = rows(history_bias, 1)
    if history is not None:
        if not hasattr(history, "strides_") or history.dtype.name != "int64" or history.shape_[:-1] != (num_rows,):
            raise ValueError(f"`history` of `sample_tokens` must be an int64 tensor [{num_rows}, L], got {history!r}")
        history, _, length, step = rows(history, 1)
    call.run(
        Sample(num_rows, size, stride, length, step, bias_step), _ERRORS, x=x, tokens=y, random=random,
        temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, penalty=penalty, history=history,
        bias=history_bias,
    )  # fmt: skip
    return y
