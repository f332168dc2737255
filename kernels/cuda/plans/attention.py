"""Attention: a block for each query row and head."""

from ...blocks.attention import ATTENTION, GRAD
from ...build.load import kernel
from ...cpu.plans.attention import numbers_of
from ...plan import Plan, launch
from ...problems.attention import Attention, AttentionBackward, AttentionForward

MAX_SIZE = 1024  # elements of a head: `cuda/attention/rows.py`


def _sums(dtype):
    return "float64" if dtype == "float64" else "float32"


def _check(p):
    if max(p.size_qk, p.size_v) > MAX_SIZE:
        got = f"{p.size_qk} of `q` and {p.size_v} of `v`"
        raise ValueError(f"attention takes head sizes up to {MAX_SIZE}, got {got}: use matmul and softmax")


def attention(problem):
    """One launch over the tokens and heads of all sequences."""
    p = problem
    _check(p)
    tokens = p.q_len if p.starts is not None else p.num_seqs * p.q_len
    size = {"int8": 1, "float32": 4, "float64": 8}.get(p.cache, 2)
    attend = kernel("attention.rows.attend", T=p.dtype, C=p.cache, A=_sums(p.dtype), C_BYTES=size)
    at, numbers = numbers_of(p)
    return Plan((launch(attend, ATTENTION, tokens * p.heads, 1, at, **numbers),))


def _pass(p, name, absent, n, **numbers):
    """A launch of a pass of training over n rows."""
    if p.mask is None:
        absent += ("mask",)
    else:
        numbers["mask_strides"], numbers["mask_bytes"] = p.mask
    return launch(
        kernel(f"attention.grad.{name}", T=p.dtype, A=_sums(p.dtype)), GRAD, n, 1, dict.fromkeys(absent),
        q_strides=p.q, k_strides=p.k, v_strides=p.v, out_strides=p.out, batch=p.batch, kv_heads=p.kv_heads,
        group=p.heads // p.kv_heads, num_rows=p.num_rows, num_keys=p.num_keys, size_qk=p.size_qk, size_v=p.size_v,
        scale=p.scale, causal=int(p.causal), dropout=p.dropout, later=("seed",), chunks=1, slice_bytes=0,
        slice_items=1, key_words=0, value_words=0, staging=0, query_words=0, **numbers,
    )  # fmt: skip


def forward(problem):
    """One launch over all rows."""
    p, absent = problem, ("g", "dq", "dk", "dv", "parts", "scratch")
    _check(p)
    rows = p.batch * p.heads * p.num_rows
    return Plan((_pass(p, "forward", absent if p.lse else (*absent, "lse"), rows),))


def backward(problem):
    """The gradients of queries, a row for a block, then those of keys and values."""
    p = problem.forward
    strides = {"g_strides": problem.g, "dq_strides": problem.dq, "dk_strides": problem.dk, "dv_strides": problem.dv}
    rows = p.batch * p.heads * p.num_rows
    first = _pass(p, "queries", ("parts",), rows, **strides)
    second = _pass(p, "keys", ("parts",), p.batch * p.kv_heads * p.num_keys, **strides)
    return Plan((first, second), (("scratch", rows * (8 if p.dtype == "float64" else 4)),))


PLANNERS = {Attention: attention, AttentionForward: forward, AttentionBackward: backward}
