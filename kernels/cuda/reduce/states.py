"""States of scans (`scan.py`): in lanes, in threads of a warp, in shared memory, and in words that other blocks read.

A state is a vector (of rules), or two: values and their places (of running extremes). What is one for each lane of
several vectors is joined here lane by lane, in their order.
"""

from numba import types

from ...build import jit
from ...lang.by_type import by_type
from ...lang.memory import element_bytes
from ...lang.ptx import from_below, from_place, peek, post, shared
from ...lang.shuffle import dealt, picked, queued, repeated
from ...lang.simd import bitcast, fill, lane, ptr, vload, vstore

I32, I64 = types.int32, types.int64
FLAG, LOW = 1 << 32, (1 << 32) - 1
CALLED = {  # by functions whose text is made here
    f.__name__: f for f in (from_below, from_place, dealt, picked, queued, repeated, ptr, vload, vstore)
}  # fmt: skip


def _parts(s):
    return s.types if isinstance(s, types.BaseTuple) else (s,)


def _generated(source, **names):
    """The function `made` of a source text."""
    scope = {**CALLED, **names}
    exec(source, scope)
    return scope["made"]


def _each(s, text):
    """The expression `text` of `s`, for one part or for both."""
    if isinstance(s, types.BaseTuple):
        return f"({text.replace('@', 's[0]')}, {text.replace('@', 's[1]')})"
    return text.replace("@", "s")


@by_type
def below(s, by):
    """The state of the thread `by` places below in the warp."""
    return _generated(f"def made(s, by):\n    return {_each(s, 'from_below(@, by)')}")


@by_type
def at_place(s, by):
    """That of the thread number `by` of the warp."""
    return _generated(f"def made(s, by):\n    return {_each(s, 'from_place(@, by)')}")


@by_type(prefer_literal=True)
def spread(s, times, each):
    """Each lane `each` times, all of them `times` times."""
    n, k = times.literal_value, each.literal_value
    return _generated(f"def made(s, times, each):\n    return {_each(s, f'repeated(@, {n}, {k})')}")


@by_type
def states(v, places, nothing):
    """The states of elements: of extremes, their places too."""
    if isinstance(nothing, types.BaseTuple):
        return lambda v, places, nothing: (v, places)
    return lambda v, places, nothing: v


def _together(s, names, put):
    """The expression of one state made of those of these names."""
    if not isinstance(s, types.BaseTuple):
        return f"{put}(({', '.join(names)},))"
    values, indices = (f"{put}(({', '.join(f'{name}[{i}]' for name in names)},))" for i in (0, 1))
    return f"({values}, {indices})"


def _running(s, count, lanes, first, step, put):
    """The body of a function that joins parts of `lanes` lanes of s in turn: (all of them, the last one)."""
    lines = []
    for k in range(count):
        one = _each(s, f"picked(@, {first * k}, {step}, {lanes})")
        lines.append(f"    s{k} = join(s{k - 1}, {one})" if k else f"    s0 = {one}")
    every = _together(s, [f"s{k}" for k in range(count)], put)
    return "\n".join([*lines, f"    return {every}, s{count - 1}"])


@by_type(prefer_literal=True)
def in_vectors(s, join, W):
    """(the states within each vector of W lanes, the last ones of all vectors)."""
    width, lanes = W.literal_value, _parts(s)[0].lanes
    return _generated("def made(s, join, W):\n" + _running(s, width, lanes // width, 1, width, "dealt"))


@by_type(prefer_literal=True)
def in_pieces(s, join, W):
    """(the states along vectors of W lanes, the last vector)."""
    width, lanes = W.literal_value, _parts(s)[0].lanes
    return _generated("def made(s, join, W):\n" + _running(s, lanes // width, width, width, 1, "queued"))


@by_type
def before_each(s, join, nothing):
    """(for each lane the state of those before it, that of all)."""
    lanes = _parts(s)[0].lanes
    if lanes == 1:
        return lambda s, join, nothing: (nothing, s)
    lines = ["    s0 = nothing"]
    for k in range(lanes):
        one = _each(s, f"picked(@, {k}, 1, 1)")
        lines.append(f"    s{k + 1} = join(s{k}, {one})" if k else f"    s1 = {one}")
    every = _together(s, [f"s{k}" for k in range(lanes)], "queued")
    return _generated("\n".join(["def made(s, join, nothing):", *lines, f"    return {every}, s{lanes}"]))


@by_type(prefer_literal=True)
def memory_of(s, count):
    """The address of shared memory for `count` (a literal) such states."""
    nbytes = sum(p.lanes * element_bytes(p.dtype) for p in _parts(s)) * count.literal_value
    return lambda s, count: shared(nbytes)


@by_type(prefer_literal=True)
def keep(memory, count, k, s):
    """Store the state number k of `count`."""
    lines, at = ["def made(memory, count, k, s):"], 0
    for i, part in enumerate(_parts(s)):
        value = f"s[{i}]" if isinstance(s, types.BaseTuple) else "s"
        lines.append(f"    vstore(ptr(memory + {at}, T{i}), k * {part.lanes}, {value})")
        at += part.lanes * element_bytes(part.dtype) * count.literal_value
    return _generated("\n".join(lines), **{f"T{i}": part.dtype for i, part in enumerate(_parts(s))})


@by_type(prefer_literal=True)
def kept(memory, count, k, s):
    """The state number k, one like s."""
    found, at = [], 0
    for i, part in enumerate(_parts(s)):
        found.append(f"vload(ptr(memory + {at}, T{i}), k * {part.lanes}, {part.lanes})")
        at += part.lanes * element_bytes(part.dtype) * count.literal_value
    every = f"({', '.join(found)})" if len(found) > 1 else found[0]
    return _generated(
        f"def made(memory, count, k, s):\n    return {every}", **{f"T{i}": p.dtype for i, p in enumerate(_parts(s))}
    )


# ---- states in memory: words of 32 bits of them, and a bit that says that they are there ----------


@jit.inline
def wait_word(at):
    """The word at an address, when it is there."""
    word = peek(at)
    while word < FLAG:
        word = peek(at)
    return word & LOW


@by_type
def words_bytes(s):
    """The bytes of the words of a state of one lane."""
    nbytes = sum(2 * element_bytes(p.dtype) for p in _parts(s))
    return lambda s: nbytes


@by_type
def put_number(at, v):
    """Store the words of a vector of one lane."""
    if element_bytes(v.dtype) == 4:
        return lambda at, v: post(at, FLAG | (I64(lane(bitcast(v, I32), 0)) & LOW))

    def implementation(at, v):
        number = lane(bitcast(v, I64), 0)
        post(at, FLAG | (number & LOW))
        post(at + 8, FLAG | ((number >> 32) & LOW))

    return implementation


@by_type
def wait_number(at, like):
    """The vector of one lane, like another one, whose words are there."""
    dtype = like.dtype
    if element_bytes(dtype) == 4:
        return lambda at, like: bitcast(fill(I32(wait_word(at)), I32, 1), dtype)

    def implementation(at, like):
        low, high = peek(at), peek(at + 8)  # both are on their way at once
        while low < FLAG or high < FLAG:
            low, high = peek(at), peek(at + 8)
        return bitcast(fill((low & LOW) | (high << 32), I64, 1), dtype)

    return implementation


@by_type
def put(at, s):
    """Store the words of a state of one lane."""
    if not isinstance(s, types.BaseTuple):
        return lambda at, s: put_number(at, s)
    second = 2 * element_bytes(s[0].dtype)

    def implementation(at, s):
        put_number(at, s[0])
        put_number(at + second, s[1])

    return implementation


@by_type
def wait(at, like):
    """The state, like another one, whose words are there."""
    if not isinstance(like, types.BaseTuple):
        return lambda at, like: wait_number(at, like)
    second = 2 * element_bytes(like[0].dtype)
    return lambda at, like: (wait_number(at, like[0]), wait_number(at + second, like[1]))
