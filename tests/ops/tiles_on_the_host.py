"""A program that multiplies by tile registers where there are none: what their instructions do is done by NumPy.

It pretends that the CPU has AMX, with float16, and that the system grants it; kernels then call functions in place of
the instructions. `test_amx.py` runs it, with an empty cache of kernels and a single thread.
"""

import ctypes
import sys

import llvmlite.binding as llvm
import ml_dtypes
import numpy as np
from llvmlite import ir
from numba.core import cgutils

PRETENDED = dict.fromkeys(("amx-tile", "amx-bf16", "amx-int8", "amx-fp16"), True)
_ask, _CDLL = llvm.get_host_cpu_features, ctypes.CDLL


def features():
    found = _ask()
    found.update(PRETENDED)
    return found


llvm.get_host_cpu_features = features


class Granting(_CDLL):
    """The C library, whose system grants the tile registers."""

    def __getattr__(self, name):
        found = super().__getattr__(name)
        return (lambda *args: 0 if args[:2] == (158, 0x1023) else found(*args)) if name == "syscall" else found


ctypes.CDLL = Granting

from attended import check_attention
from convolved import FEW, check_convolutions, check_infinities
from infinicore.kernels.build import elf, isa, rates
from infinicore.kernels.lang import tile_registers
from panels import random_weight

import infinicore as ic

TILES, SHAPES = np.zeros((8, 16, 64), np.uint8), [(16, 64)] * 8  # rows, and bytes of a row


def configure(at):
    config = np.frombuffer(ctypes.string_at(at, 64), np.uint8)
    SHAPES[:] = zip(config[48:56].tolist(), config[16:32].view(np.uint16).tolist())


def load(tile, at, stride):
    TILES[tile] = 0
    rows, size = SHAPES[tile]
    for row in range(rows):
        ctypes.memmove(TILES[tile, row].ctypes.data, at + row * stride, size)


def store(tile, at, stride):
    rows, size = SHAPES[tile]
    for row in range(rows):
        ctypes.memmove(at + row * stride, TILES[tile, row].ctypes.data, size)


def product(of_a, of_b, total, group):
    """sums += products of groups of neighbours: rows of a, and of columns of b."""

    def multiply(to, a, b):
        left = TILES[a].view(of_a).astype(total)
        right = TILES[b].view(of_b).astype(total).reshape(16, 16, group).swapaxes(1, 2).reshape(16 * group, 16)
        TILES[to] = (TILES[to].view(total) + left @ right).view(np.uint8)

    return multiply


def clear(tile):
    TILES[tile] = 0


FUNCTIONS = {
    "ldtilecfg": configure,
    "tilerelease": lambda: None,
    "tilezero": clear,
    "tileloadd64": load,
    "tilestored64": store,
    "tdpbf16ps": product(ml_dtypes.bfloat16, ml_dtypes.bfloat16, np.float32, 2),
    "tdpfp16ps": product(np.float16, np.float16, np.float32, 2),
    "tdpbssd": product(np.int8, np.int8, np.int32, 4),
    "tdpbsud": product(np.int8, np.uint8, np.int32, 4),
}
called, _kept = set(), []


def call_tiles(builder, name, *arguments):
    """As that of `tile_registers.py`, of a function of ours."""
    kinds = [ctypes.c_int8 if isinstance(x, int) else ctypes.c_int64 for x in arguments]
    if f"tiles_{name}" not in elf.provided:

        def function(*args):
            called.add(name)
            FUNCTIONS[name](*args)

        _kept.append(ctypes.CFUNCTYPE(None, *kinds)(function))
        elf.provided[f"tiles_{name}"] = ctypes.cast(_kept[-1], ctypes.c_void_p).value
    values = [ir.Constant(ir.IntType(8), x) if isinstance(x, int) else x for x in arguments]
    kind = ir.FunctionType(ir.VoidType(), [value.type for value in values])
    builder.call(cgutils.get_or_insert_function(builder.module, kind, f"tiles_{name}"), values)


tile_registers.call_tiles = call_tiles


def wide(x):
    return x.to(ic.float64).numpy()


def layouts(x):
    """The same values, transposed and with steps between neighbours."""
    yield x
    yield x.t().contiguous().t()
    gaps = ic.zeros((x.shape[0], 2 * x.shape[1]), dtype=x.dtype)
    gaps[:, ::2] = x
    yield gaps[:, ::2]


def check(y, exact, scale, digits):
    error = np.abs(wide(y) - exact)
    assert (error <= 1e-6 * scale + 2.0**-digits * np.abs(exact) + 1e-6).all(), (y.shape, error.max())


def floats(dtype, digits):
    """Products of any strides, few rows, what follows a product, packed weights, parts of k, a batch."""
    rng = np.random.default_rng(0)
    make = lambda *shape: ic.from_numpy(rng.standard_normal(shape).astype(np.float32)).to(dtype)
    for m, k, n in ((16, 1, 17), (33, 2, 70), (31, 33, 40), (130, 64, 33), (17, 1025, 48), (40, 5000, 37), (9, 96, 64)):
        a, b = make(m, k), make(k, n)
        exact, scale = wide(a) @ wide(b), np.abs(wide(a)) @ np.abs(wide(b))
        for x in layouts(a):
            for w in layouts(b):
                check(ic.matmul(x, w), exact, scale, digits)
        bias, residual = make(n), make(m, n)
        y = ic.linear(a, b.t(), bias, residual=residual, activation="relu")
        check(y, np.maximum(exact + wide(bias), 0) + wide(residual), scale, digits - 1)
        y = ic.linear_packed(a, ic.pack_weight(b.t().contiguous()), bias)
        check(y, exact + wide(bias), scale, digits)
    a, b = make(3, 20, 70), make(3, 70, 40)
    check(ic.bmm(a, b), wide(a) @ wide(b), np.abs(wide(a)) @ np.abs(wide(b)), digits)
    a, b = make(24, 9001), make(9001, 20)
    check(ic.matmul(a, b), wide(a) @ wide(b), np.abs(wide(a)) @ np.abs(wide(b)), digits)


def weights():
    """Quantised weights of which units are signed, unsigned and of whole rows: as by vectors, which take few rows."""
    rng = np.random.default_rng(1)
    x = ic.from_numpy(rng.standard_normal((20, 256)).astype(np.float32))
    for form in ("q4_0", "q4_1", "int8"):
        weight, exact = random_weight(form, 40, 256, rng)
        few = np.concatenate([wide(ic.linear_quantized(x[i : i + 5], weight)) for i in range(0, 20, 5)])
        error = np.abs(wide(ic.linear_quantized(x, weight)) - few)
        assert (error <= 1e-6 * (np.abs(wide(x)) @ np.abs(exact.T))).all(), (form, error.max())


assert isa.has_amx_float16() and not isa.is_foreign()
ic.set_num_threads(1)
floats(ic.bfloat16, 8)
floats(ic.float16, 11)
weights()
check_convolutions(ic.bfloat16, 8)
check_convolutions(ic.float16, 11)
check_infinities(ic.bfloat16)
check_convolutions(ic.bfloat16, 8, FEW)
chosen = rates.choices()._replace(vector_pairs=False)  # as where `vdpbf16ps` is slow
rates.choices = lambda: chosen
more = [((n + 1, *sizes), options) for (n, *sizes), options in FEW]  # of which no plan is known
check_convolutions(ic.bfloat16, 8, more)
check_attention(ic.bfloat16)
check_attention(ic.float16)
assert called == FUNCTIONS.keys(), called
sys.stdout.write("right\n")
