"""From a kernel's name and types to source text that stands alone: what is compiled and cached.

A hand-written kernel is named `<folder>.<file>.<function>`, e.g. `norm.rows.rms_norm`; its rendered text is a stub
that binds the types as globals of a module of its own (a closure over a jitted function would never
be found in a cache). An elementwise rule is rendered into one vector loop over contiguous operands;
`cpu/array/elementwise.py` brings other layouts to it.
"""

import ast
import functools
import inspect
import textwrap

from . import isa

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

from infinicore.kernels.cpu.{folder} import {file}
from infinicore.kernels.lang import lowp

{bindings}

def kernel(args, lo, hi):
    return {file}.{function}(args, lo, hi{arguments})
'''


def type_expression(dtype):
    """The Numba type of a dtype name, as source text."""
    return _TYPES[dtype]


def _value(name, value):
    if name == "F":
        return f"lowp.quantized({value!r})"
    return _TYPES[value] if isinstance(value, str) else repr(value)


def stub(kernel, parameters):
    """Source of a hand-written kernel; `parameters` maps names to dtype names, ints or bools, and F to a format."""
    folder, file, function = kernel.split(".")
    what = ", ".join(f"{k}={v}" for k, v in parameters.items()) or "all types"
    bindings = "".join(f"{k} = {_value(k, v)}\n" for k, v in parameters.items())
    arguments = "".join(f", {k}" for k in parameters)
    return _STUB.format(
        kernel=kernel, what=what, folder=folder, file=file, function=function, bindings=bindings, arguments=arguments
    )


_ELEMENTWISE = '''"""Rendered from the elementwise op `{name}`: ({inputs}) -> {output}."""

from numba import types

from infinicore.kernels.build import jit
from infinicore.kernels.cpu.array.elementwise import LANES
from infinicore.kernels.lang import lowp, vmath as m
from infinicore.kernels.lang.simd import convert, load, ptr, vload, vload_first, vstore, vstore_first

{types}
WIDTH = {width}


@jit.inline
{rule}


def kernel(args, lo, hi):
    # args: the addresses of contiguous operands, the output last
{pointers}
    i = lo
    while i + WIDTH <= hi:
        vstore(out, i, convert(rule({full}), OUT))
        i += WIDTH
    if i < hi:
        vstore_first(out, i, convert(rule({masked}), OUT), hi - i)
    return 0
'''


def elementwise(op, inputs, compute, output):
    """Source of an elementwise kernel for contiguous operands.

    `inputs` and `output` are dtype names; every input but a mask named `condition` is converted to
    the dtype `compute` when it is loaded.
    """
    # Two registers of results at a time are rounded to 16 bits with fewer shuffles: 10 to 25 % faster on AVX2.
    two = output in ("bfloat16", "float16") and isa.vector_bytes() < 64
    lines = [f"T{i} = {_TYPES[d]}" for i, d in enumerate(inputs)]
    lines += [f"OUT = {_TYPES[output]}", f"COMPUTE = {_TYPES[compute]}"]
    pointers = [f"    x{i} = ptr(load(args, {i}), T{i})" for i in range(len(inputs))]
    pointers.append(f"    out = ptr(load(args, {len(inputs)}), OUT)")

    def loads(call):
        values = []
        for i, name in enumerate(op.parameters):
            value = call.format(i=i)
            values.append(value if name == "condition" else f"convert({value}, COMPUTE)")
        return ", ".join(values)

    return _ELEMENTWISE.format(
        name=op.name,
        inputs=", ".join(inputs),
        output=output,
        width="2 * LANES" if two else "LANES",
        types="\n".join(lines),
        rule=_rule_source(op),
        pointers="\n".join(pointers),
        full=loads("vload(x{i}, i, WIDTH)"),
        masked=loads("vload_first(x{i}, i, WIDTH, hi - i)"),
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
