"""What this CPU can do, and the vector shapes that follow from it.

`INFINICORE_ISA` forces a smaller set: `avx512` (without the bf16 dot), `avx2` or `portable`.
Importing this costs an import of `llvmlite.binding` and nothing of Numba.
"""

import functools
import os

import llvmlite.binding as llvm

CHOICES = ("auto", "avx512", "avx2", "portable")
_FORCED_CPU = {"avx512": "skylake-avx512", "avx2": "haswell", "portable": "x86-64"}


@functools.cache
def forced():
    """The value of `INFINICORE_ISA`, checked."""
    choice = os.environ.get("INFINICORE_ISA", "auto")
    if choice not in CHOICES:
        raise ValueError(f"`INFINICORE_ISA` must be one of {', '.join(CHOICES)}, got {choice!r}")
    return choice


@functools.cache
def cpu_name():
    """The LLVM name of the CPU that kernels are compiled for."""
    return _FORCED_CPU.get(forced()) or llvm.get_host_cpu_name()


@functools.cache
def features():
    """The LLVM features of that CPU, as a frozen set of names."""
    have = llvm.get_host_cpu_features()
    names = {name for name, on in have.items() if on}
    if forced() == "portable":
        names = {n for n in names if n in ("64bit", "cmov", "cx8", "fxsr", "mmx", "sse", "sse2")}
    elif forced() == "avx2":
        names = {n for n in names if "avx512" not in n and not n.startswith("amx")}
    elif forced() == "avx512":
        names -= {"avx512bf16", "avx512vnni", "avx512fp16"}
    return frozenset(names)


def feature_string():
    """`features()` in LLVM's notation: what is on, and what the named CPU has but must stay off."""
    host = llvm.get_host_cpu_features()
    return ",".join(("+" if name in features() else "-") + name for name in sorted(host))


def vector_bytes():
    """The width of one vector register in bytes."""
    if "avx512f" in features():
        return 64
    return 32 if "avx2" in features() else 16


def lanes():
    """float32 values in one vector register; every kernel counts in these."""
    return vector_bytes() // 4


def has_fma():
    """Fused multiply-add in hardware (a library call, and slow, without)."""
    return "fma" in features() or "neon" in features()


def has_bf16_dot():
    """`vdpbf16ps`: products of bfloat16 pairs, summed in float32."""
    return "avx512bf16" in features()


def has_int8_dot():
    """`vpdpbusd`: products of 4 bytes, summed in int32."""
    return "avx512vnni" in features()
