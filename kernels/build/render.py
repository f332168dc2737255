"""From a kernel's name and types to source text that stands alone: what is compiled and cached.

A hand-written kernel is named `<folder>.<file>.<function>`, e.g. `norm.rows.rms_norm`; its rendered text is a stub
that binds the types as globals of a module of its own (a closure over a jitted function would never be found in a
cache); an op among them becomes a function, its rule. An elementwise rule is rendered into one vector loop over
contiguous operands; `cpu/array/elementwise.py` brings other layouts to it.
"""

import ast
import functools
import linecache
import re
import textwrap
import types

from . import isa

_TYPES = {
    "float32": "types.float32",
    "float64": "types.float64",
    "float16": "lowp.float16",
    "float16_pairs": "lowp.float16_pairs",
    "bfloat16": "lowp.bfloat16",
    "bfloat16_wide": "lowp.bfloat16_wide",
    "float8_e4m3": "lowp.float8_e4m3",
    "float8_e5m2": "lowp.float8_e5m2",
    "complex64": "types.complex64",
    "complex128": "types.complex128",
    "bool": "types.boolean",
    "uint128": "types.Integer('uint128', 128, False)",  # complex128, where it is only moved
    **{f"{sign}int{bits}": f"types.{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}

_STUB = '''"""Rendered from the kernel `{kernel}` for {what}."""

from numba import types

from infinicore.kernels.{device}.{folder} import {file}
from infinicore.kernels.lang import lowp
from infinicore.kernels.lang.vector import BLOCK

{bindings}

def kernel({entry}):
    return {file}.{function}(args, lo, hi{arguments})
'''


def type_expression(dtype):
    """The Numba type of a dtype name, as source text."""
    return _TYPES[dtype]


def result_expression(op, inputs, output):
    """The Numba type of an elementwise op's results: exact ones of bfloat16 need no rounding."""
    exact = op.exact and output == "bfloat16" and all(d == output for d in inputs)
    return "lowp.bfloat16_exact" if exact else type_expression(output)


def _value(name, value):
    if name == "F":
        return f"lowp.quantized({value!r})"
    return _TYPES[value] if isinstance(value, str) else repr(value)


_RULES = """
from infinicore.kernels.build import jit
from infinicore.kernels.lang import {functions} as m
"""
_NARROW = ("bfloat16", "float16")


def _jitted(source):
    return f"\n\n@jit.inline\n{source}\n"


def functions_for(dtypes, device):
    """The file of `kernels/lang` with the functions of rules, and what makes the text of a function of a rule.

    On GPUs, rules of 16-bit floats alone have faster ones, and all have faster quotients.
    """
    if device != "cuda":
        return "functions", function_text
    narrow = dtypes and all(dtype in _NARROW for dtype in dtypes)
    return "narrow" if narrow else "functions", lambda f, name: _with_quotients(function_text(f, name))


class _Quotients(ast.NodeTransformer):
    """p / q as m.divide(p, q)."""

    def visit_BinOp(self, node):
        node = self.generic_visit(node)
        if not isinstance(node.op, ast.Div):
            return node
        function = ast.Attribute(ast.Name("m", ast.Load()), "divide", ast.Load())
        return ast.Call(function, [node.left, node.right], [])


def _with_quotients(text):
    """The rule with approximate quotients, if it takes functions that are approximate anyway."""
    if not re.search(r"\bm\.(exp|sigmoid|tanh|sin)\(", text):
        return text
    return ast.unparse(ast.fix_missing_locations(_Quotients().visit(ast.parse(text))))


def _rules(name, op, function_text):
    """An elementwise op of one input as the function `name` of a module; SLOPE: its derivative, of (g, input)."""
    if name != "SLOPE":
        return _jitted(function_text(op.function, name))
    derivative = op.gradients[op.parameters[0]]
    values = ", ".join({"g": "g", "out": "rule(x)"}.get(p, "x") for p in derivative.parameters)
    sources = function_text(op.function, "rule"), function_text(derivative.function, "derivative")
    return "".join(map(_jitted, (*sources, f"def SLOPE(g, x):\n    return derivative({values})")))


def stub(kernel, parameters, device="cpu", thread="thread"):
    """Source of a hand-written kernel of `kernels/<device>`.

    `parameters` maps names to dtype names, ints or bools, F to a format; ACT to an elementwise op (or None), whose
    rule the kernel gets as a function, and SLOPE to one whose derivative it gets. A kernel with `thread` is told which
    thread of the launch runs it, since each has scratch of its own: by the number `thread`, on a GPU "lo", as a thread
    there does one item.
    """
    number = f", {thread}" if parameters.get("thread") else ""
    entry = "args, lo, hi, thread" if number and thread == "thread" else "args, lo, hi"
    parameters = {k: v for k, v in parameters.items() if k != "thread"}
    folder, file, function = kernel.split(".")
    ops = {k: op for k, op in parameters.items() if hasattr(op, "function")}
    what = ", ".join(f"{k}={getattr(v, 'name', v)}" for k, v in parameters.items()) or "all types"
    functions, text = functions_for([parameters[k] for k in "TR" if k in parameters], device)
    bindings = _RULES.format(functions=functions) * bool(ops)
    bindings += "".join(_rules(k, op, text) for k, op in ops.items())
    bindings += "".join(f"{k} = {_value(k, v)}\n" for k, v in parameters.items() if k not in ops)
    arguments = number + "".join(f", {k}" for k in parameters)
    return _STUB.format(
        kernel=kernel,
        what=what,
        device=device,
        folder=folder,
        file=file,
        function=function,
        bindings=bindings,
        entry=entry,
        arguments=arguments,
    )


_ELEMENTWISE = '''"""Rendered from the elementwise op `{name}`: ({inputs}) -> {output}."""

from numba import types

from infinicore.kernels.build import jit
from infinicore.kernels.cpu.array.elementwise import LANES
from infinicore.kernels.lang import lowp, functions as m
from infinicore.kernels.lang.vector import BLOCK
from infinicore.kernels.lang.simd import (
    address, convert_modulo as convert, fence, fill, load, ptr, ramp, reduce_or, vload, vload_first, vstore,
    vstore_first, vstore_nontemporal
)

{types}
WIDTH = {width}


@jit.inline
{rule}


def kernel(args, lo, hi):
    # args: the addresses of contiguous operands, the output last
{pointers}
{loop}    return 0
'''

_LOOP = """    i = lo
    while i + WIDTH <= hi:
{full_check}        vstore(out, i, convert(rule({full}), OUT))
        i += WIDTH
    if i < hi:
{masked_check}        vstore_first(out, i, convert(rule({masked}), OUT), hi - i)
"""

# The first elements are those up to a line's begin.
_NONTEMPORAL = """    size = address(out + 1) - address(out)
    i, end = lo, min(hi, lo + (-address(out + lo) & min(63, size * WIDTH - 1)) // size)
    while i < hi:
        if i < end:
{masked_check}            vstore_first(out, i, convert(rule({masked}), OUT), end - i)
            i = end
        while i + WIDTH <= hi:
{full_check}            vstore_nontemporal(out, i, convert(rule({full}), OUT))
            i += WIDTH
        end = hi
    fence()
"""


_COMPLEX = '''"""Rendered from the elementwise op `{name}`: ({inputs}) -> {output}."""

from numba import types

from infinicore.kernels.build import jit
from infinicore.kernels.lang import complex_math as m, lowp
from infinicore.kernels.lang.complex_math import as_type
from infinicore.kernels.lang.simd import load, ptr, store
from infinicore.kernels.lang.vector import BLOCK

U64 = types.uint64
{types}


@jit.inline
{rule}


def kernel(args, lo, hi):
{pointers}
{loop}
        store(out, {place}, as_type(rule({values}), OUT))
    return 0
'''


class _Divisions(ast.NodeTransformer):
    """`x / y` as `m.div(x, y)`, since Numba's own division by 0 raises."""

    def visit_BinOp(self, node):
        self.generic_visit(node)
        if not isinstance(node.op, ast.Div):
            return node
        return ast.Call(ast.parse("m.div", mode="eval").body, [node.left, node.right], [])


def of_complex(op, inputs, compute, output, loop="    for i in range(lo, hi):", place="i"):
    """Source of an elementwise kernel where something is complex: the same rule on one element after another.

    The addresses of operands are the first arguments, that of the output the last of these. `loop` begins a loop in
    which `place` (formatted with the number of an operand, as "at{}") is that of an element.
    """
    types, last = {**{f"T{i}": d for i, d in enumerate(inputs)}, "OUT": output, "COMPUTE": compute}, len(inputs)
    pointers = [f"    x{i} = ptr(load(args, {i}), T{i})" for i in range(last)]
    pointers.append(f"    out = ptr(load(args, {last}), OUT)")
    values = [f"load(x{i}, {place.format(i)})" for i in range(last)]
    values = [v if name == "condition" else f"as_type({v}, COMPUTE)" for v, name in zip(values, op.parameters)]
    return _COMPLEX.format(
        name=op.name,
        inputs=", ".join(inputs),
        output=output,
        types="\n".join(f"{k} = {_TYPES[v]}" for k, v in types.items()),
        rule=ast.unparse(_Divisions().visit(ast.parse(function_text(op.function, "rule")))),
        pointers="\n".join(pointers),
        loop=loop,
        place=place.format(last),
        values=", ".join(values),
    )


def is_complex(dtypes):
    """Whether one of these dtypes is."""
    return any("complex" in d for d in dtypes)


_INFINITY = {"bfloat16": 0x7F80, "float16": 0x7C00}


def rule_of(op, inputs, compute, output):
    """(the rule of an elementwise op, dtypes of inputs, dtype to compute in, dtype of results, arguments behind the
    inputs): its own, or on the words of 16-bit floats.
    """
    if op.words is None or any(d != compute for d in inputs) or compute not in _INFINITY:
        return op.function, inputs, compute, output, []
    more = [str(_INFINITY[compute])] if "infinity" in op.words.__code__.co_varnames else []
    return op.words, ("int16",) * len(inputs), "int16", "int16" if output == compute else output, more


# Functions that are many steps in float64, where two vectors have too few registers: j0 would take a third longer.
_LONG = r"\bm\.(lgamma|digamma|zeta|gammaincc?|[ij][01]e?|k[01]e?|y[01]|airy_ai|ndtri)\("

SINGLE = ("float32", "float64", "int32", "int64")  # of which an elementwise kernel takes a single number


def elementwise(op, inputs, compute, output):
    """Source of an elementwise kernel for contiguous operands.

    `inputs` and `output` are dtype names; every input but a mask named `condition` is converted to
    the dtype `compute` when it is loaded. Where integers are divided by 0, the kernel returns 1. "single float32" says
    that one number lies there for all elements, "nontemporal float32" that results go past the caches.
    """
    through = output.startswith("nontemporal ")
    function, inputs, compute, output, more = rule_of(op, inputs, compute, output.removeprefix("nontemporal "))
    single = [d.startswith("single ") for d in inputs]
    inputs = tuple([d.removeprefix("single ") for d in inputs])
    if is_complex((*inputs, compute, output)):
        return of_complex(op, inputs, compute, output)
    # Two registers of results at a time are rounded to 16 bits with fewer shuffles: 10 to 25 % faster on AVX2. Words of
    # 16 bits fill a register so. With AVX-512's 32 registers, two chains of steps in turn fill more of the cycles than
    # one: a million sines took 277 us and take 170, logarithms to the base of 2 264 and 220, tanh 190 and 169.
    text = function_text(function, "rule")
    two = output in _NARROW or compute == "int16"
    if isa.vector_bytes() == 64:
        two = compute in ("int16", "float32", *_NARROW) and not re.search(_LONG, text)
    lines = [f"T{i} = {_TYPES[d]}" for i, d in enumerate(inputs)]
    lines += [f"OUT = {result_expression(op, inputs, output)}", f"COMPUTE = {_TYPES[compute]}"]
    pointers = [f"    x{i} = ptr(load(args, {i}), T{i})" for i in range(len(inputs))]
    pointers += [f"    one{i} = load(x{i}, 0)" for i, given in enumerate(single) if given]
    pointers.append(f"    out = ptr(load(args, {len(inputs)}), OUT)")

    def loads(call):
        values = []
        for i, name in enumerate(op.parameters):
            value = f"fill(one{i}, T{i}, WIDTH)" if single[i] else call.format(i=i)
            values.append(value if name == "condition" else f"convert({value}, COMPUTE)")
        return values + more

    def check(values, there=""):
        if op.divisor is None or "float" in compute:
            return ""
        zero = f"(({values[op.parameters.index(op.divisor)]}) == 0){there}"
        return f"        if reduce_or({zero}):\n            return 1\n"

    stop = "end" if through else "hi"
    full, masked = loads("vload(x{i}, i, WIDTH)"), loads(f"vload_first(x{{i}}, i, WIDTH, {stop} - i)")
    checks = check(full), check(masked, f" & (ramp(0, types.int64, WIDTH) < {stop} - i)")
    if through:
        checks = [textwrap.indent(text, "    ") for text in checks]
    loop = (_NONTEMPORAL if through else _LOOP).format(
        full=", ".join(full), masked=", ".join(masked), full_check=checks[0], masked_check=checks[1]
    )
    return _ELEMENTWISE.format(
        name=op.name,
        inputs=", ".join(inputs),
        output=output,
        width="2 * LANES" if two else "LANES",
        types="\n".join(lines),
        rule=text,
        pointers="\n".join(pointers),
        loop=loop,
    )


_REDUCTION = '''"""Rendered from the reduction `{name}`: {kind}, {types}."""

from numba import types

from infinicore.kernels.build import jit
from infinicore.kernels.cpu.reduce import fold
from infinicore.kernels.cpu.reduce.fold import WIDE, spread
from infinicore.kernels.lang import lowp, functions as m
from infinicore.kernels.lang.vector import BLOCK
from infinicore.kernels.lang.shuffle import turned
from infinicore.kernels.lang.simd import (
    convert_modulo as convert, fill, lane, ramp, select, store, vload, vload_apart, vload_first, vstore, vstore_first
)

{bindings}


{functions}


@jit.inline
def read(x, i, plane):
    return {read}


@jit.inline
def read_first(x, i, left, plane):
    return {read_first}


@jit.inline
def read_rest(x, i, left, plane):
    there, s = ramp(0, types.int64, WIDE) < left, {read_first}
    return {read_rest}


@jit.inline
def across(s0):
{across}


@jit.inline
def write(y, i, s, count, plane):
{write}


@jit.inline
def write_first(y, i, s, left, count, plane):
{write_first}


def kernel(args, lo, hi):
    return {call}
'''


def reduction(rule, kind, source, value, state, result, cut=""):
    """Source of a reduction by a rule (`table/rules.py`) in a loop of `cpu/reduce/fold.py`: "inner", "outer", "short".

    Elements of dtype `source` are converted to `value` before the rule sees them; its states are of dtype `state`.
    Where a long reduction is `cut`, its "parts" are states stored for a second launch, which makes their "whole".
    """
    # A helper takes some 20 ms to compile, so none is written that only hands its argument on.
    parts, itself = range(rule.parts), rule.parts == 1 and hands_on(rule.element)
    here = [f"s[{k}]" for k in parts] if rule.parts > 1 else ["s"]

    def joined(values):
        return f"({', '.join(values)})" if rule.parts > 1 else values[0]

    def states(load):
        if cut == "whole":
            return joined([load.format(x=f"x + {k} * plane" if k else "x") for k in parts])
        values = f"convert({load.format(x='x')}, VALUE)"
        if itself:
            return values if value == state else f"convert({values}, STATE)"
        if rule.parts == 1:
            return f"spread(element({values}), STATE, WIDE)"
        return f"stated(element({values}))"

    types = {"SOURCE": state if cut == "whole" else source, "VALUE": value, "STATE": state}
    types["RESULT"] = state if cut == "parts" else result
    functions = [function_text(rule.joined, "join")]
    if not itself and cut != "whole":
        functions.append(function_text(rule.element, "element"))
    if rule.absorbed:
        functions.append(function_text(rule.absorbed, "absorb"))
    if rule.parts > 1:
        functions.append(f"def stated(s):\n    return {joined([f'spread({v}, STATE, WIDE)' for v in here])}")
    # At one width, which is one `join` to compile for all steps; LLVM drops the lanes that no later step looks at.
    across, wide = [], 4 * isa.lanes()  # `cpu/reduce/sizes.py: WIDE`
    steps = wide.bit_length() - 1
    for step in range(steps):
        values = [v.replace("s", f"s{step}", 1) for v in here]
        far = joined([f"turned({v}, {wide >> step + 1})" for v in values])
        across.append(f"    s{step + 1} = join({joined(values)}, {far})")
    across.append("    return " + joined([f"fill(lane({v.replace('s', f's{steps}', 1)}, 0), STATE, 1)" for v in here]))
    if cut == "parts":
        write = "\n".join(f"    store(y, i + {k} * plane, lane({v}, 0))" for k, v in enumerate(here))
        first = "\n".join(f"    vstore_first(y, i + {k} * plane, {v}, left)" for k, v in enumerate(here))
    else:
        final, rest = "convert(s, RESULT)", "convert(s, RESULT)"
        if rule.finished or rule.parts > 1:
            functions.append(function_text(rule.finished, "finish") if rule.finished else FINISH)
            final = f"finish({', '.join([*here, 'count'] if rule.counts else here)})"
            final, rest = f"spread({final}, RESULT, 1)", f"spread({final}, RESULT, WIDE)"
        write = f"    store(y, i, lane({final}, 0))"
        first = f"    vstore_first(y, i, {rest}, left)"
    whole, loads = "vload({x}, i, WIDE)", "vload_first({x}, i, WIDE, left)"
    if kind == "short":
        whole, loads = "vload_apart({x}, i, plane, WIDE, WIDE)", "vload_apart({x}, i, plane, WIDE, left)"
    nothing = joined([f"fill(START_{k}, STATE, WIDE)" for k in parts])
    loop, arguments = "inner", f"read, read_rest, join, {'absorb' if rule.absorbed else None}, across, write"
    if kind != "inner":
        loop, arguments = "outer", f"read, read_first, join, {'absorb' if rule.absorbed else None}, write_first"
    bindings = [f"{k} = {_TYPES[v]}" for k, v in types.items()]
    bindings += [f"START_{k} = {start_expression(v, state)}" for k, v in enumerate(rule.starts)]
    return _REDUCTION.format(
        name=rule.name,
        kind=kind + (f", {cut} of a long one" if cut else ""),
        types=", ".join(dict.fromkeys(types.values())),
        bindings="\n".join(bindings),
        functions="\n\n\n".join(f"@jit.inline\n{text}" for text in functions),
        read=states(whole),
        read_first=states(loads),
        read_rest=joined([f"select(there, {v}, fill(START_{k}, STATE, WIDE))" for k, v in enumerate(here)]),
        across="\n".join(across),
        write=write,
        write_first=first,
        call=f"fold.{loop}(\n        args, lo, hi, {nothing}, {arguments}, SOURCE, RESULT\n    )",
    )


FINISH = "def finish(s):\n    return s"


def start_expression(value, dtype):
    """The source of a state's start; infinity stands for the ends of integer types."""
    if dtype in ("float32", "float64"):
        return f"float({str(value)!r})"
    if dtype == "bool" or abs(value) != float("inf"):
        return repr(int(value))
    bits = int(dtype.lstrip("uint"))
    low, high = (0, (1 << bits) - 1) if dtype[0] == "u" else (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
    return repr(high if value > 0 else low)


_SCAN = '''"""Rendered from the scan `{name}` along {kind}: {types}."""

from numba import types

from infinicore.kernels.build import jit
from infinicore.kernels.cpu.reduce import scan
from infinicore.kernels.lang import lowp, functions as m
from infinicore.kernels.lang.vector import BLOCK

{bindings}


@jit.inline
{join}


def kernel(args, lo, hi):
    return scan.{kind}(args, lo, hi, join, START, T, STATE, RESULT)
'''


def scan(rule, kind, T, state, result):
    """Source of a running state by a rule: `kind` is "rows" or "columns", the loop of `cpu/reduce/scan.py`."""
    bindings = [f"{k} = {_TYPES[v]}" for k, v in {"T": T, "STATE": state, "RESULT": result}.items()]
    bindings.append(f"START = {start_expression(rule.start, state)}")
    return _SCAN.format(
        name=rule.name,
        kind=kind,
        types=f"{T} in {state} to {result}",
        bindings="\n".join(bindings),
        join=function_text(rule.joined, "join"),
    )


@functools.cache
def function_text(function, name):
    """A function of a rule under another name, without decorators and docstring."""
    tree = ast.parse(textwrap.dedent(_source(function)))
    function = tree.body[0]
    function.decorator_list = []
    function.name = name
    function.body = [s for s in function.body if not _is_docstring(s)]
    return ast.unparse(function)


def _source(function):
    """The text of a function. (`inspect.getsource` would load the patterns of the tokenizer, 4 ms at each start.)"""
    code = function.__code__
    lines = linecache.getlines(code.co_filename)[code.co_firstlineno - 1 :]
    last = max([line for *_, line in _lines(code) if line is not None]) - code.co_firstlineno
    margin = len(lines[0]) - len(lines[0].lstrip())
    for line in lines[last + 1 :]:
        if len(line) - len(line.lstrip()) <= margin:  # an empty one, or what follows the function
            break
        last += 1
    return "".join(lines[: last + 1])


def _lines(code):
    """(first, last) lines of all that a function and the functions in it do."""
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _lines(inner)
    yield from ((begin, end) for begin, end, *_ in code.co_positions())


def hands_on(function):
    """Whether a function of a rule returns its argument as it is."""
    return re.fullmatch(r"def (\w+)\((\w+)\):\s*return \2", function_text(function, "f")) is not None


def _is_docstring(statement):
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
