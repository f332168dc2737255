"""What this CPU can do, and the vector shapes that follow from it.

`INFINICORE_ISA` forces a smaller set: `avx512` (without dot products; `avx512_bf16` and `avx512_vnni` leave one of
them), `avx2` or `portable`. `neon` and `amx` compile for aarch64 and for Intel's tile registers anywhere
(`jit.cross_assembly`), and run only there; `cuda` is set for the processes that compile for GPUs, whose kernels count
in this CPU's lanes (`INFINICORE_VECTOR_BYTES`). Importing this loads neither LLVM nor Numba.
"""

import contextlib
import ctypes
import functools
import os
import platform
import sys
import threading

from . import host

CHOICES = ("auto", "amx", "avx512", "avx512_bf16", "avx512_vnni", "avx2", "portable", "neon", "cuda")
_IS_ARM = platform.machine() in ("aarch64", "arm64")
_IS_X86 = platform.machine().lower() in ("x86_64", "amd64")
_PORTABLE = frozenset(("64bit", "cmov", "cx8", "fxsr", "mmx", "sse", "sse2"))
_NEON = frozenset(("fp-armv8", "neon"))
_CUDA = frozenset(("f16c", "fma"))  # what GPUs have of what kernels ask for
_DOTS = frozenset(("avx512bf16", "avx512fp16", "avx512vnni", "avxvnni"))
_KEPT_DOTS = {"avx512": frozenset(), "avx512_bf16": {"avx512bf16"}, "avx512_vnni": {"avx512vnni"}}
_TILES = frozenset(("amx-tile", "amx-bf16", "amx-int8"))
# of Sapphire Rapids, the first CPU with tile registers: what our kernels ask for
_AMX = _TILES | frozenset(
    "64bit avx avx2 avx512bf16 avx512bw avx512cd avx512dq avx512f avx512vl avx512vnni bmi bmi2 cmov cx8 f16c fma fxsr "
    "lzcnt mmx popcnt sse sse2 sse3 sse4.1 sse4.2 ssse3".split()
)
_own = threading.local()  # `gpu`: whether this thread plans for one


@functools.cache
def forced():
    """The value of `INFINICORE_ISA`, checked."""
    choice = os.environ.get("INFINICORE_ISA", "auto")
    if choice not in CHOICES:
        raise ValueError(f"`INFINICORE_ISA` must be one of {', '.join(CHOICES)}, got {choice!r}")
    return choice


def is_gpu():
    """Whether this process compiles for GPUs."""
    return forced() == "cuda"


def is_foreign():
    """Whether kernels are compiled for another machine than this one, to be read and not run."""
    return is_gpu() or (forced() == "neon" and not _IS_ARM) or (forced() == "amx" and tiles() != "granted")


def _is_own():
    """Whether kernels use all that this machine has."""
    return forced() == "auto" or (forced() in ("neon", "amx") and not is_foreign())


@functools.cache
def tiles():
    """Tile registers (AMX) of this machine: "absent"; "granted" to this process by the system, or "refused".

    Linux saves their 8 KB for processes that ask, before a thread first uses one (Linux documentation, x86/xstate):
    this asks, and the answer holds for all threads of the process and for its children.
    """
    names = {name for name, on in host.cpu()[1].items() if on}
    if not (_IS_X86 and names >= _TILES and sys.platform == "linux"):
        return "absent"
    ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA = 158, 0x1023, 18
    return "refused" if ctypes.CDLL(None).syscall(ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) else "granted"


@functools.cache
def cpu_name():
    """The LLVM name of the CPU that kernels are compiled for."""
    if _is_own():
        return host.cpu()[0]
    if forced() == "amx":
        return "sapphirerapids"
    if not _IS_X86 or forced() in ("neon", "cuda"):
        return "generic"
    return {"avx2": "haswell", "portable": "x86-64"}.get(forced(), "skylake-avx512")


@contextlib.contextmanager
def planning_for_gpu():
    """Let this thread see, inside the block, the features that kernels for GPUs are compiled with."""
    before, _own.gpu = getattr(_own, "gpu", False), True
    try:
        yield
    finally:
        _own.gpu = before


def plans_for_gpu():
    """Whether this thread plans, or this process compiles, for one."""
    return getattr(_own, "gpu", False) or is_gpu()


def features():
    """The LLVM features of that CPU, as a frozen set of names."""
    return _CUDA if getattr(_own, "gpu", False) else _features()


@functools.cache
def _features():
    names = frozenset(name for name, on in host.cpu()[1].items() if on)
    choice = forced()
    if _is_own():
        return names if tiles() == "granted" else frozenset(n for n in names if not n.startswith("amx"))
    if choice in ("neon", "cuda"):
        return _NEON if choice == "neon" else _CUDA
    if choice == "amx":
        return _AMX
    if choice == "portable":
        return names & _PORTABLE
    names = frozenset(n for n in names if not n.startswith("amx"))
    if choice == "avx2":
        return frozenset(n for n in names if "avx512" not in n) - _DOTS
    return names - (_DOTS - _KEPT_DOTS[choice])


def feature_string():
    """`features()` in LLVM's notation: what is on, and what the named CPU has but must stay off.

    With foreign kernels: the least that this machine's code generator, which Numba begins with, can do without.
    """
    known = host.cpu()[1]
    on = _PORTABLE if is_foreign() else features()
    return ",".join(("+" if name in on else "-") + name for name in sorted(known))


def vector_bytes():
    """The width of one vector register in bytes."""
    if is_gpu():
        return int(os.environ["INFINICORE_VECTOR_BYTES"])
    if "avx512f" in _features():
        return 64
    return 32 if "avx2" in _features() else 16


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
    return "avx512vnni" in features() or "avxvnni" in features()


def divides_slowly():
    """Whether a 512-bit division takes as long as 30 other instructions, as on Intel's CPUs; AMD's take a third."""
    return vector_bytes() == 64 and not cpu_name().startswith("znver")


def multiplies_faster_than_it_reads():
    """Whether 512-bit multiply-adds outrun the second-level cache: Intel's servers do two a cycle and read 30 bytes.

    AMD's do one (Zen 4), or read 64 bytes (Zen 5).
    """
    return vector_bytes() == 64 and not cpu_name().startswith("znver")


def has_amx():
    """Tile registers that multiply bfloat16 and int8."""
    return features() >= _TILES


def has_amx_float16():
    """Tile registers that multiply float16 as well (AMX-FP16, from Granite Rapids on)."""
    return has_amx() and "amx-fp16" in features()
