"""Elementwise kernels, reductions and scans of GPUs, from the rules that those of the CPU are rendered from.

Of an elementwise kernel, a thread does the elements of one access of 16 bytes, where all operands are contiguous and
lie at such addresses, or have so many neighbours in each row; else one element. What its place in each operand is
follows from its number.
"""

import textwrap

from ..build.render import (
    FINISH,
    function_text,
    functions_for,
    hands_on,
    is_complex,
    of_complex,
    result_expression,
    rule_of,
    start_expression,
    type_expression,
)
from . import policy

_HEAD = '''"""Rendered for GPUs from the elementwise op `{name}`: ({inputs}) -> {output}, {layout}."""

from numba import types

from infinicore.kernels.build import jit
{more}from infinicore.kernels.lang import lowp, {functions} as m
from infinicore.kernels.lang.vector import BLOCK
from infinicore.kernels.lang.simd import (
    address, bitcast, convert_modulo as convert, fill, lane, load, ptr, ramp, reduce_or, vload, vload_aligned,
    vload_first, vstore, vstore_aligned, vstore_first,
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

# The places `at0`, `at1`, ... of an element in all operands.
_WALK = """rest = U64({index})
{places} = 0
for d in range(ndim - 1, -1, -1):
    size = U64(load(args, {count} + 1 + d))
    whole = rest // size
    i = types.int64(rest - whole * size)
    rest = whole
{steps}"""


_STRIDED = """def kernel(args, lo, hi):
    # args: the addresses of the operands, how many dims there are, their sizes, and the strides of each operand
{pointers}
    ndim = load(args, {count})
    for index in range(lo, hi):
{walk}
{check}        vstore(out, at{last}, convert(rule({values}), OUT))
    return 0
"""


_ROWS = """def kernel(args, lo, hi):
    # args: as above; [lo, hi) are WIDTH neighbours in a row
{pointers}
    ndim = load(args, {count})
{walk}
    if {aligned}:
{full_check}        vstore_aligned(out, at{last}, convert(rule({full}), OUT))
    else:
{check}        vstore(out, at{last}, convert(rule({values}), OUT))
    return 0
"""


# Of rows that are no whole vectors: neighbours may be those of two rows, whose elements then go one by one.
_PIECES = """def kernel(args, lo, hi):
    # args: as above; [lo, hi) are at most WIDTH elements that follow one another
{pointers}
    ndim = load(args, {count})
    size = load(args, {count} + ndim)
    rest = quotient(lo, size)
    column = lo - rest * size
{first}
    for d in range(ndim - 2, -1, -1):
        whole = quotient(rest, load(args, {count} + 1 + d))
        i = rest - whole * load(args, {count} + 1 + d)
        rest = whole
{steps}
    if hi - lo == WIDTH and column + WIDTH <= size:
        if address(out + at{last}) & {aligned} == 0:
{full_check}            vstore_aligned(out, at{last}, convert(rule({full}), OUT))
        else:
            vstore(out, at{last}, convert(rule({full}), OUT))
        return 0
    for index in range(lo, hi):
{walk}
{check}        vstore(out, at{last}, convert(rule({values}), OUT))
    return 0
"""


NUMBER = "number "  # before the dtype of an input that is no tensor: its value stands in the argument block
_VALUES = {
    "float32": "bitcast(types.int32(load(args, {i})), types.float32)",
    "float64": "bitcast(load(args, {i}), types.float64)",
    "int64": "load(args, {i})",
    "int32": "load(args, {i})",
}


def _walk(index, depth, operands):
    """Lines that find the places of an element in so many operands, `depth` times indented."""
    steps = [f"    at{i} += i * load(args, {operands} + 1 + ndim * {i + 1} + d)" for i in range(operands)]
    places = " = ".join(f"at{i}" for i in range(operands))
    text = _WALK.format(index=index, places=places, count=operands, steps="\n".join(steps))
    return textwrap.indent(text, "    " * depth)


def width(dtypes):
    """How many elements a thread does, of operands with these dtypes, the output last.

    As many as make up an access of 16 bytes in the widest one; twice as many for a narrower output (256 Mi elements of
    an H200: comparisons 339 us became 311, casts of float32 to bfloat16 396 became 372; others became slower).
    """
    if is_complex(dtypes):
        return 1
    widest = max(_bytes(d) for d in dtypes if not d.startswith(NUMBER))
    return 32 // widest if _bytes(dtypes[-1]) < widest else 16 // widest


def _bytes(dtype):
    return 1 if dtype == "bool" else int(dtype.partition("_")[0].lstrip("bfloatuin")) // 8


CONTIGUOUS, STRIDED, PIECES = "contiguous", "strided", "pieces"


def rows_layout(inputs, output, sizes, steps):
    """The layout of operands with these strides, the output last: "rows" and a letter for each input, or another.

    Where each row is whole vectors, an input has its own neighbours there ("v"), or one element for all ("s"). PIECES:
    rows are no whole vectors, but all operands have neighbours there. STRIDED: any strides.
    """
    if is_complex((*inputs, output)):
        return STRIDED
    letters = []
    for dtype, own in zip(inputs, steps):
        letters.append("v" if dtype.startswith(NUMBER) or own[-1] == 1 else "s" if own[-1] == 0 else "")
    plain = all(letters) and steps[-1][-1] == 1 and not any(x == "s" and d == "bool" for x, d in zip(letters, inputs))
    wide = width([*inputs, output])
    if plain and sizes[-1] % wide == 0:
        return "rows" + "".join(letters)
    pieces = all(own[-1] == 1 for own in steps) and not any(d.startswith(NUMBER) for d in inputs)
    return PIECES if pieces and sizes[-1] >= 4 * wide else STRIDED


def _elementwise_of_complex(op, inputs, compute, output, layout):
    """The same where something is complex: an element for a thread."""
    if layout == CONTIGUOUS:
        return of_complex(op, inputs, compute, output)
    count = len(inputs) + 1
    loop = f"    ndim = load(args, {count})\n    for index in range(lo, hi):\n{_walk('index', 2, count)}"
    return of_complex(op, inputs, compute, output, loop.rstrip(), "at{}")


def elementwise(op, inputs, compute, output, layout=CONTIGUOUS):
    """Source of an elementwise kernel; `inputs` and `output` are dtype names, `compute` the one to compute in.

    An input "number float32" is a number, whose bits stand in the argument block in the place of an address.
    Where integers are divided by 0, the kernel returns 1. `layout`: CONTIGUOUS, STRIDED or that of `rows_layout`.
    """
    if is_complex((*inputs, compute, output)):
        return _elementwise_of_complex(op, inputs, compute, output, layout)
    function, inputs, compute, output, more = rule_of(op, inputs, compute, output)
    wide = 1 if layout == STRIDED else width([*inputs, output])
    lines = [f"T{i} = {type_expression(d.removeprefix(NUMBER))}" for i, d in enumerate(inputs)]
    lines += [f"OUT = {result_expression(op, inputs, output)}", f"COMPUTE = {type_expression(compute)}"]
    last, numbers = len(inputs), [i for i, d in enumerate(inputs) if d.startswith(NUMBER)]
    tensors = [i for i in range(last + 1) if i not in numbers]
    pointers = [f"    x{i} = ptr(load(args, {i}), T{i})" for i in tensors[:-1]]
    for i in numbers:
        value = _VALUES[inputs[i].removeprefix(NUMBER)].format(i=i)
        pointers.append(f"    x{i} = fill({value}, T{i}, WIDTH)")
    pointers.append(f"    out = ptr(load(args, {last}), OUT)")

    def loads(text):
        values = [f"x{i}" if i in numbers else text.format(i=i) for i in range(last)]
        return [v if p == "condition" else f"convert({v}, COMPUTE)" for p, v in zip(op.parameters, values)] + more

    def check(values, there=""):
        if op.divisor is None or "float" in compute:
            return ""
        zero = f"(({values[op.parameters.index(op.divisor)]}) == 0){there}"
        return f"        if reduce_or({zero}):\n            return 1\n"

    functions, text = functions_for([d for d in (*inputs, output) if not d.startswith(NUMBER)], "cuda")
    head = _HEAD.format(
        name=op.name, inputs=", ".join(inputs), output=output, layout=layout,
        types="\n".join(lines), width=wide, rule=text(function, "rule"), functions=functions,
        more="from infinicore.kernels.cuda.array.create import quotient\n" * (layout == PIECES),
    )  # fmt: skip
    if layout == PIECES:
        places = [f"at{i}" for i in range(last + 1)]
        step = "    {at} {sign} {i} * load(args, {count} + 1 + ndim * {k} + {d})".format
        first = [
            step(at=at, sign="=", i="column", count=last + 1, k=i + 1, d="ndim - 1") for i, at in enumerate(places)
        ]
        steps = [step(at=at, sign="+=", i="i", count=last + 1, k=i + 1, d="d") for i, at in enumerate(places)]
        full, values = (loads("vload(x{i}, at{i}, " + lanes + ")") for lanes in ("WIDTH", "1"))
        return head + _PIECES.format(
            pointers="\n".join(pointers), count=last + 1, last=last, first="\n".join(first),
            steps=textwrap.indent("\n".join(steps), "    "), aligned=min(16, wide * _bytes(output)) - 1,
            full=", ".join(full), full_check=textwrap.indent(check(full), "    "), values=", ".join(values),
            check=check(values), walk=_walk("index", 2, last + 1),
        )  # fmt: skip
    if layout != CONTIGUOUS:
        values, there = loads("vload(x{i}, at{i}, WIDTH)"), {}
        if layout != STRIDED:
            letters, full = layout.removeprefix("rows"), loads("vload_aligned(x{i}, at{i}, WIDTH)")
            for i in (i for i in tensors[:-1] if letters[i] == "s"):
                values[i] = full[i] = f"fill(lane(convert(vload(x{i}, at{i}, 1), COMPUTE), 0), COMPUTE, WIDTH)"
            places = [(f"x{i} + at{i}", inputs[i]) for i in tensors[:-1] if letters[i] == "v"]
            places = [f"(address({at}) & {wide * _bytes(d) - 1})" for at, d in (*places, (f"out + at{last}", output))]
            there = {"aligned": f"({' | '.join(places)}) == 0", "full": ", ".join(full), "full_check": check(full)}
        return head + (_ROWS if there else _STRIDED).format(
            pointers="\n".join(pointers), count=last + 1, last=last, values=", ".join(values), check=check(values),
            walk=_walk("lo", 1, last + 1) if there else _walk("index", 2, last + 1), **there,
        )  # fmt: skip
    full, masked = loads("vload_aligned(x{i}, lo, WIDTH)"), loads("vload_first(x{i}, lo, WIDTH, hi - lo)")
    return head + _CONTIGUOUS.format(
        pointers="\n".join(pointers), addresses=" | ".join(f"load(args, {i})" for i in tensors),
        full=", ".join(full), masked=", ".join(masked), full_check=check(full),
        masked_check=check(masked, " & (ramp(0, types.int64, WIDTH) < hi - lo)"),
    )  # fmt: skip


_REDUCTION = '''"""Rendered for GPUs from the reduction `{name}`: {kind}, {types}."""

from numba import types

from infinicore.kernels.build import jit
from infinicore.kernels.cuda.block import read as read_vector
from infinicore.kernels.cuda.reduce import fold
from infinicore.kernels.cpu.reduce.fold import spread
from infinicore.kernels.lang import lowp, functions as m
from infinicore.kernels.lang.ptx import from_lane, shared
from infinicore.kernels.lang.shuffle import turned
from infinicore.kernels.lang.vector import BLOCK
from infinicore.kernels.lang.simd import (
    convert_modulo as convert, fill, lane, ptr, ramp, select, store, vload, vload_aligned, vload_first, vstore,
    vstore_first,
)

{bindings}
N = {lanes}


{functions}


@jit.inline
def read(x, i, plane):
    return {read}


@jit.inline
def read_aligned(x, i, plane):
    return {read_aligned}


@jit.inline
def read_rest(x, i, left, plane):
    there, s = ramp(0, types.int64, N) < left, {read_rest}
    return {selected}


@jit.inline
def states(v):
    return {states}


@jit.inline
def rest(s, there):
    return {selected}


@jit.inline
def lanes(s0):
{across}


@jit.inline
def exchange(s, apart):
    return {exchanged}


@jit.inline
def memory():
    return shared({space})


@jit.inline
def keep(memory, k, s):
    parts = ptr(memory, STATE)
{keep}


@jit.inline
def kept(memory, k):
    parts = ptr(memory, STATE)
    return {kept}


@jit.inline
def write(y, i, s, count, plane, left):
{write}


def kernel(args, lo, hi):
    return {call}
'''


def reduction(rule, kind, source, value, state, result, cut="", team="", pieces=""):
    """Source of a reduction by a rule (`table/rules.py`) in a loop of `cuda/reduce/fold.py`; see the CPU's.

    `kind`: "inner", "rows", "short" or "held" (of `team` threads for a result, with so many `pieces`, and for "held" a
    "+" where there are more than these), "apart", "columns" or "outer". Of a `cut` reduction, the "parts" are states in
    memory, which the second launch, the "whole", joins.
    """
    parts, lanes = range(rule.parts), reduction_lanes(rule, kind, source, state, cut)
    width, lanes = lanes, lanes * int(pieces.rstrip("+") or 1)
    here = [f"s[{k}]" for k in parts] if rule.parts > 1 else ["s"]
    itself = rule.parts == 1 and hands_on(rule.element)

    def joined(values):
        return f"({', '.join(values)})" if rule.parts > 1 else values[0]

    of_vector = ""
    if cut == "whole":
        read = aligned = read_rest = joined([f"vload(x + {k} * plane, i, 1)" for k in parts])
    else:

        def states(vector):
            values = f"convert({vector}, VALUE)"
            if itself:
                return f"convert({values}, STATE)"
            return f"stated(element({values}))" if rule.parts > 1 else f"spread(element({values}), STATE, N)"

        of_vector = states("v")
        read, aligned = states("vload(x, i, N)"), states("vload_aligned(x, i, N)")
        read_rest = states("vload_first(x, i, N, left)" if lanes > 1 else "vload(x, i, 1)")
    selected = joined([f"select(there, {v}, fill(START_{k}, STATE, N))" for k, v in enumerate(here)])
    across, step, left = [], 0, lanes if kind in ("inner", "rows", "short", "held") else 1
    while left > 1:  # halves, and what is left of lanes that are no power of two one by one
        values, far = [v.replace("s", f"s{step}", 1) for v in here], left // 2 if left % 2 == 0 else 1
        text = joined(values)
        for k in range(far, left, far):
            text = f"join({text}, {joined([f'turned({v}, {k})' for v in values])})"
        across.append(f"    s{step + 1} = {text}")
        step, left = step + 1, far if left % 2 == 0 else 1
    last = [v.replace("s", f"s{step}", 1) for v in here]
    across.append("    return " + joined([f"fill(lane({v}, 0), STATE, 1)" for v in last]))
    types = {"SOURCE": state if cut == "whole" else source, "VALUE": value, "STATE": state}
    types["RESULT"] = state if cut == "parts" else result
    functions = [function_text(rule.joined, "join")]
    if not itself and cut != "whole":
        functions.append(function_text(rule.element, "element"))
    if rule.parts > 1:
        functions.append(f"def stated(s):\n    return {joined([f'spread({v}, STATE, N)' for v in here])}")
    one, put = "N" if kind == "columns" else "1", "    store({to}, {at}, lane({v}, 0))"
    if kind == "columns":
        put = "    vstore_first({to}, {at}, {v}, left)" if lanes > 1 else put
    if cut == "parts":
        write = "\n".join(put.format(to=f"y + {k} * plane", at="i", v=v) for k, v in enumerate(here))
    else:
        final = "convert(s, RESULT)"
        if rule.finished or rule.parts > 1:
            functions.append(function_text(rule.finished, "finish") if rule.finished else FINISH)
            final = f"spread(finish({', '.join([*here, 'count'] if rule.counts else here)}), RESULT, {one})"
        write = put.format(to="y", at="i", v=final)
    bindings = [f"{k} = {type_expression(v)}" for k, v in types.items()]
    bindings += [f"START_{k} = {start_expression(v, state)}" for k, v in enumerate(rule.starts)]
    nothing = joined([f"fill(START_{k}, STATE, N)" for k in parts])
    one_nothing = joined([f"fill(START_{k}, STATE, 1)" for k in parts])
    space = rule.parts * _bytes(state) * (lanes * policy.ROW_THREADS if kind == "columns" else 32)
    rest, memory = "read, read_aligned, read_rest, join", "keep, kept, write, SOURCE, RESULT, N"
    call = {
        "inner": f"fold.inner(args, lo, {nothing}, {rest}, lanes, exchange, memory, {memory})",
        "rows": f"fold.rows(args, lo, {nothing}, {rest}, lanes, exchange, write, SOURCE, RESULT, N)",
        "short": f"fold.short(args, lo, states, rest, join, lanes, exchange, write, SOURCE, RESULT, {width}, "
        f"{pieces or 0}, {team or 0})",
        "held": f"fold.held(args, lo, {one_nothing}, states, rest, join, lanes, exchange, memory, keep, kept, write, "
        f"SOURCE, RESULT, {width}, {pieces.rstrip('+') or 0}, {team or 0}, {pieces.endswith('+')})",
        "apart": f"fold.apart(args, lo, {nothing}, read, rest, join, lanes, exchange, memory, keep, kept, write, "
        "SOURCE, RESULT)",
        "columns": f"fold.columns(args, lo, {nothing}, {rest}, memory, {memory})",
        "outer": f"fold.outer(args, lo, hi, {nothing}, read, join, write, SOURCE, RESULT)",
    }[kind]
    return _REDUCTION.format(
        name=rule.name, kind=kind + (f", {cut} of a long one" if cut else ""), types=", ".join(types.values()),
        bindings="\n".join(bindings), lanes=lanes, space=space,
        functions="\n\n\n".join(f"@jit.inline\n{f}" for f in functions), read=read, read_aligned=aligned,
        read_rest=read_rest, selected=selected, states=of_vector or "v", across="\n".join(across), write=write,
        call=call,
        exchanged=joined([f"from_lane({v}, apart)" for v in here]),
        keep="\n".join(f"    vstore(parts, {one} * ({rule.parts} * k + {i}), {v})" for i, v in enumerate(here)),
        kept=joined([f"vload(parts, {one} * ({rule.parts} * k + {i}), {one})" for i in parts]),
    )  # fmt: skip


_SCAN = '''"""Rendered for GPUs from the scan `{name}` along {kind}: {types}."""

from numba import types

from infinicore.kernels.build import jit
from infinicore.kernels.cuda.reduce import scan
from infinicore.kernels.lang import lowp, functions as m
from infinicore.kernels.lang.simd import fill
from infinicore.kernels.lang.vector import BLOCK

{bindings}


@jit.inline
{join}


def kernel(args, lo, hi):
    return scan.{kind}(args, lo, join, fill(START, STATE, 1), START, T, STATE, RESULT, {constants})
'''


def parallel_scan(rule, kind, T, state, result, team, pieces, way):
    """Source of a scan by a rule in a loop of `cuda/reduce/scan.py`, `kind`; `way` is "back" or nothing."""
    bindings = [f"{k} = {type_expression(v)}" for k, v in {"T": T, "STATE": state, "RESULT": result}.items()]
    bindings.append(f"START = {start_expression(rule.start, state)}")
    return _SCAN.format(
        name=rule.name, kind=kind, types=f"{T} in {state} to {result}", bindings="\n".join(bindings),
        join=function_text(rule.joined, "join"), constants=f"{team}, {pieces}, {way == 'back'}",
    )  # fmt: skip


MOST_STATE = 128  # bytes of a thread's state in shared memory, of which 256 threads have 48 KB


def reduction_lanes(rule, kind, source, state, cut):
    """How many neighbours a thread of such a kernel takes at a time."""
    lanes = 1 if kind in ("apart", "outer") or cut == "whole" else 16 // _bytes(source)
    while kind == "columns" and lanes * rule.parts * _bytes(state) > MOST_STATE:
        lanes //= 2
    return lanes
