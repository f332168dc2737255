"""Elementwise kernels of GPUs, from the rules that those of the CPU are rendered from.

A thread does the elements of one access of 16 bytes, where all operands are contiguous and lie at such addresses, and
one element where they are not: what its place in each operand is follows from its number.
"""

from ..build.render import function_text, type_expression

_HEAD = '''"""Rendered for GPUs from the elementwise op `{name}`: ({inputs}) -> {output}, {layout}."""

from numba import types

from infinicore.kernels.build import jit
from infinicore.kernels.lang import lowp, functions as m
from infinicore.kernels.lang.vector import BLOCK
from infinicore.kernels.lang.simd import (
    convert, load, ptr, ramp, reduce_or, vload, vload_aligned, vload_first, vstore, vstore_aligned, vstore_first
)

U64 = types.uint64
{types}
WIDTH = {width}


@jit.inline
{rule}


'''

_CONTIGUOUS = """def kernel(args, lo, hi):
    # args: the addresses of contiguous operands, the output last; [lo, hi) is at most WIDTH elements
{pointers}
    if hi - lo == WIDTH and ({addresses}) & 15 == 0:
{full_check}        vstore_aligned(out, lo, convert(rule({full}), OUT))
    else:
{masked_check}        vstore_first(out, lo, convert(rule({masked}), OUT), hi - lo)
    return 0
"""

_STRIDED = """def kernel(args, lo, hi):
    # args: the addresses of the operands, how many dims there are, their sizes, and the strides of each operand
{pointers}
    ndim = load(args, {count})
    for index in range(lo, hi):
        rest = U64(index)
        {places} = {zeros}
        for d in range(ndim - 1, -1, -1):
            size = U64(load(args, {count} + 1 + d))
            whole = rest // size
            i = types.int64(rest - whole * size)
            rest = whole
{steps}
{check}        vstore(out, at{last}, convert(rule({values}), OUT))
    return 0
"""


def width(dtypes):
    """How many elements make up an access of 16 bytes in the widest operand."""
    return 16 // max(_bytes(d) for d in dtypes)


def _bytes(dtype):
    return 1 if dtype == "bool" else int(dtype.partition("_")[0].lstrip("bfloatuin")) // 8


def elementwise(op, inputs, compute, output, strided=False):
    """Source of an elementwise kernel; `inputs` and `output` are dtype names, `compute` the one to compute in.

    Where integers are divided by 0, the kernel returns 1.
    """
    wide = 1 if strided else width([*inputs, output])
    lines = [f"T{i} = {type_expression(d)}" for i, d in enumerate(inputs)]
    lines += [f"OUT = {type_expression(output)}", f"COMPUTE = {type_expression(compute)}"]
    last = len(inputs)
    pointers = [f"    x{i} = ptr(load(args, {i}), T{i})" for i in range(last)]
    pointers.append(f"    out = ptr(load(args, {last}), OUT)")

    def loads(text):
        values = [text.format(i=i) for i in range(last)]
        return [v if p == "condition" else f"convert({v}, COMPUTE)" for p, v in zip(op.parameters, values)]

    def check(values, there=""):
        if op.divisor is None or "float" in compute:
            return ""
        zero = f"(({values[op.parameters.index(op.divisor)]}) == 0){there}"
        return f"        if reduce_or({zero}):\n            return 1\n"

    head = _HEAD.format(
        name=op.name, inputs=", ".join(inputs), output=output, layout="strided" if strided else "contiguous",
        types="\n".join(lines), width=wide, rule=function_text(op.function, "rule"),
    )  # fmt: skip
    if strided:
        values = loads("vload(x{i}, at{i}, 1)")
        step = "            at{i} += i * load(args, {count} + 1 + ndim * {k} + d)"
        return head + _STRIDED.format(
            pointers="\n".join(pointers), count=last + 1, last=last, values=", ".join(values), check=check(values),
            places=" = ".join(f"at{i}" for i in range(last + 1)), zeros="0",
            steps="\n".join(step.format(i=i, k=i + 1, count=last + 1) for i in range(last + 1)),
        )  # fmt: skip
    full, masked = loads("vload_aligned(x{i}, lo, WIDTH)"), loads("vload_first(x{i}, lo, WIDTH, hi - lo)")
    return head + _CONTIGUOUS.format(
        pointers="\n".join(pointers), addresses=" | ".join(f"load(args, {i})" for i in range(last + 1)),
        full=", ".join(full), masked=", ".join(masked), full_check=check(full),
        masked_check=check(masked, " & (ramp(0, types.int64, WIDTH) < hi - lo)"),
    )  # fmt: skip
