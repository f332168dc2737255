"""From a kernel's name and types to source text that stands alone: what is compiled and cached.

A hand-written kernel is named `<file>.<function>`, e.g. `norm.rms_norm`; its rendered text is a stub
that binds the types as globals of a module of its own (a closure over a jitted function would never
be found in a cache). An elementwise rule is rendered into the loop of `cpu/elementwise.py`.
"""

import ast
import functools
import inspect
import textwrap

_TYPES = {
    "float32": "types.float32",
    "float64": "types.float64",
    "float16": "lowp.float16",
    "bfloat16": "lowp.bfloat16",
    "float8_e4m3": "lowp.float8_e4m3",
    "float8_e5m2": "lowp.float8_e5m2",
    "bool": "types.boolean",
    **{f"{sign}int{bits}": f"types.{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}

_STUB = '''"""Rendered from the kernel `{kernel}` for {what}."""

from numba import types

from infinicore.kernels.cpu import {file}, lowp

{bindings}

def kernel(args, lo, hi):
    return {file}.{function}(args, lo, hi{arguments})
'''


def type_expression(dtype):
    """The Numba type of a dtype name, as source text."""
    return _TYPES[dtype]


def _value(value):
    return _TYPES[value] if isinstance(value, str) else repr(value)


def stub(kernel, parameters):
    """Source of a hand-written kernel; `parameters` maps names to dtype names, ints or bools."""
    file, function = kernel.split(".")
    what = ", ".join(f"{k}={v}" for k, v in parameters.items()) or "all types"
    bindings = "".join(f"{k} = {_value(v)}\n" for k, v in parameters.items())
    arguments = "".join(f", {k}" for k in parameters)
    return _STUB.format(
        kernel=kernel, what=what, file=file, function=function, bindings=bindings, arguments=arguments
    )


_ELEMENTWISE = '''"""Rendered from the elementwise op `{name}`: ({inputs}) -> {output}."""

from numba import types

from infinicore.kernels import jit
from infinicore.kernels.cpu import lowp, vmath as m
from infinicore.kernels.cpu.elementwise import LANES, TILE, TILE_BYTES, advance, fill_tile, gather, scatter, unravel
from infinicore.kernels.cpu.simd import convert, load, ptr, stack, vload, vload_first, vstore, vstore_first

{types}


@jit.inline
{rule}

@jit.inline
def loop({pointers}, out, n):
    i = 0
    while i + LANES <= n:
        vstore(out, i, convert(rule({full}), OUT))
        i += LANES
    if i < n:
        vstore_first(out, i, convert(rule({masked}), OUT), n - i)


def kernel(args, lo, hi):
    # args: rank, addresses, shape, then the strides of each operand; [lo, hi) counts elements
    ndim = load(args, 0)
    base = {operands} + 1
    last = ndim - 1
    length = load(args, base + last)
{setup}
    dense = {dense}
    index = stack(256)
    row = lo // length
    column = lo - row * length
    unravel(args, base, last, row, index)
    todo = hi - lo
    while todo > 0:
        count = min(length - column, todo)
{rows}
        start = 0
        while start < count:
            n = count if dense else min(TILE, count - start)
{chunk}
            loop({tiles}, tile_out, n)
            if step_out != 1:
                scatter(tile_out, at_out + start * step_out, step_out, n)
            start += n
        column = 0
        todo -= count
        if todo > 0:
            advance(args, base, last, index)
    return 0
'''


def _indent(lines, depth):
    return "\n".join(" " * depth + line for line in lines)


def elementwise(op, inputs, compute, output):
    """Source of an elementwise kernel.

    `inputs` and `output` are dtype names; every input but a mask named `condition` is converted to
    the dtype `compute` when it is loaded.
    """
    names = op.parameters
    operands = [str(i) for i in range(len(inputs))] + ["out"]
    type_lines = [f"T{i} = {_TYPES[d]}" for i, d in enumerate(inputs)]
    type_lines += [f"OUT = {_TYPES[output]}", f"COMPUTE = {_TYPES[compute]}"]
    setup, rows, chunk = [], [], []
    for j, name in enumerate(operands):
        kind = "OUT" if name == "out" else f"T{name}"
        setup += [
            f"base_{name} = ptr(load(args, {j + 1}), {kind})",
            f"step_{name} = load(args, base + ndim * {j + 1} + last)",
            f"scratch_{name} = ptr(stack(TILE_BYTES), {kind})",
        ]
        rows.append(f"at_{name} = base_{name} + (load(ptr(index, types.int64), {j}) + column * step_{name})")
        if name == "out":
            chunk.append("tile_out = at_out + start if step_out == 1 else scratch_out")
            continue
        rows += [f"if step_{name} == 0:", f"    fill_tile(scratch_{name}, at_{name}, min(TILE, count))"]
        chunk += [
            f"tile_{name} = scratch_{name}",
            f"if step_{name} == 1:",
            f"    tile_{name} = at_{name} + start",
            f"elif step_{name} != 0:",
            f"    gather(scratch_{name}, at_{name} + start * step_{name}, step_{name}, n)",
        ]

    def loads(call):
        values = []
        for i, name in enumerate(names):
            value = call.format(i=i)
            values.append(value if name == "condition" else f"convert({value}, COMPUTE)")
        return ", ".join(values)

    return _ELEMENTWISE.format(
        name=op.name,
        inputs=", ".join(inputs),
        output=output,
        types="\n".join(type_lines),
        rule=_rule_source(op),
        pointers=", ".join(f"p{i}" for i in range(len(inputs))),
        full=loads("vload(p{i}, i, LANES)"),
        masked=loads("vload_first(p{i}, i, LANES, n - i)"),
        operands=len(operands),
        setup=_indent(setup, 4),
        dense=" and ".join(f"step_{name} == 1" for name in operands),
        rows=_indent(rows, 8),
        chunk=_indent(chunk, 12),
        tiles=", ".join(f"tile_{i}" for i in range(len(inputs))),
    )


@functools.cache
def _rule_source(op):
    """The rule of an op as the function `rule`, without decorators."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(op.function)))
    function = tree.body[0]
    function.decorator_list = []
    function.name = "rule"
    function.body = [s for s in function.body if not _is_docstring(s)]
    return ast.unparse(function)


def _is_docstring(statement):
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
