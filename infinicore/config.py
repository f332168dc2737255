"""Every `INFINICORE_*` environment switch, in one table.

`get(name)` reads a switch, typed and checked; `check()` refuses unknown names, because a switch with a
typing error would otherwise do nothing in silence. Some switches are read inside `infinicore.kernels`,
which imports nothing above itself; their rows here are their documentation.
`docs/configuration.md` shows the table (`python -m infinicore.config` writes it; a test compares).
"""

import os
from typing import NamedTuple

PREFIX = "INFINICORE_"


class Switch(NamedTuple):
    """One environment variable: what it accepts, its default, its meaning, and the file that reads it.

    `kind` is `str`, `int` or `float`; `choices` lists the legal values of a string, if they are few;
    `least` is the smallest legal number. A default of None means: decided by the reader.
    """

    name: str
    kind: type
    default: object
    meaning: str
    read_by: str
    choices: tuple[str, ...] = ()
    least: float | None = None

    def accepts(self):
        """The legal values, in words."""
        if self.choices:
            return " or ".join(f"`{c}`" for c in self.choices)
        if self.kind is str:
            return "a path"
        words = "an integer" if self.kind is int else "a number"
        return words if self.least is None else f"{words} of at least {self.least}"

    def parse(self, text):
        """The typed value of `text`; ValueError with the legal values otherwise."""
        error = ValueError(f"`{self.name}` must be {self.accepts()}, got {text!r}")
        if self.choices and text not in self.choices:
            raise error
        try:
            value = self.kind(text)
        except ValueError:
            raise error from None
        if self.least is not None and value < self.least:
            raise error
        return value


_ROWS = (
    Switch(
        name="INFINICORE_CEXT",
        kind=str,
        default="auto",
        choices=("auto", "require", "off"),
        meaning="the core: compiled if it was built (`auto`), an error if it was not (`require`), in Python (`off`);"
        " while installing: what to build",
        read_by="infinicore/core/__init__.py, setup.py",
    ),
    Switch(
        name="INFINICORE_ISA",
        kind=str,
        default="auto",
        choices=("auto", "amx", "avx512", "avx512_bf16", "avx512_vnni", "avx2", "portable", "neon", "cuda"),
        meaning="a smaller instruction set than this CPU's (`avx512` leaves out the bfloat16 and int8 dot products,"
        " `avx512_bf16` and `avx512_vnni` keep one of them, and none has tile registers); `neon` and `amx`: code for"
        " aarch64 and for Intel's tile registers, which machines without them can only compile; `cuda` is set by"
        " infinicore itself for the processes that compile kernels for GPUs",
        read_by="kernels/build/isa.py",
    ),
    Switch(
        name="INFINICORE_RATES",
        kind=str,
        default="auto",
        choices=("auto", "fixed"),
        meaning="how instructions and numbers of threads are chosen: `auto` by rates that are measured once for a type"
        " of machine and kept beside the kernels (`infinicore info` shows them), `fixed` by the CPU's features alone,"
        " for results that are the same bits on all machines with them",
        read_by="kernels/build/rates.py",
    ),
    Switch(
        name="INFINICORE_VECTOR_BYTES",
        kind=int,
        default=None,
        least=16,
        meaning="set by infinicore itself beside `INFINICORE_ISA=cuda`: the bytes of this CPU's vectors",
        read_by="kernels/build/isa.py",
    ),
    Switch(
        name="INFINICORE_NUM_THREADS",
        kind=int,
        default=None,
        least=1,
        meaning="threads that kernels use, up to 64 or as many as there are CPUs; default: every CPU that the process"
        " may use (affinity and cgroup quota)",
        read_by="kernels/cpu/threads.py",
    ),
    Switch(
        name="INFINICORE_DECODE_THREADS",
        kind=int,
        default=None,
        least=1,
        meaning="threads for steps of one token per sequence, which memory limits and not the cores; default: as many"
        " as for prompts",
        read_by="infinicore/lm/engine/engine.py",
    ),
    Switch(
        name="INFINICORE_WEIGHT_CACHE",
        kind=str,
        default="0",
        choices=("0", "1"),
        meaning="whether weights that loading repacks are kept on disk, beside the kernels, and mapped the next time",
        read_by="infinicore/models/weight_cache.py",
    ),
    Switch(
        name="INFINICORE_CACHE_DIR",
        kind=str,
        default=None,
        meaning="where compiled kernels, the code of modules and repacked weights are kept; default: `infinicore` in"
        " the user's cache folder",
        read_by="kernels/build/disk.py",
    ),
    Switch(
        name="INFINICORE_COMM_TIMEOUT",
        kind=int,
        default=600,
        least=1,
        meaning="seconds after which a collective that waits for another rank is an error",
        read_by="distributed/group.py",
    ),
    Switch(
        name="INFINICORE_COMM_TRANSPORT",
        kind=str,
        default="auto",
        choices=("auto", "messages"),
        meaning="how ranks communicate: `auto` by shared memory within a node and by MPI's messages between nodes,"
        " `messages` always by those",
        read_by="distributed/group.py",
    ),
    Switch(
        name="INFINICORE_COMM_GPU",
        kind=str,
        default="auto",
        choices=("auto", "host", "peers", "copies"),
        meaning="how tensors of GPUs travel: `auto` from GPU to GPU where each rank has one of its own, `host` through"
        " the host's memory; `peers` and `copies`: as `auto`, and small sums, or all of one host by copy engines, from"
        " GPU to GPU also where ranks share one (for tests)",
        read_by="distributed/gpu.py",
    ),
    Switch(
        name="INFINICORE_COMM_DEBUG",
        kind=str,
        default="0",
        choices=("0", "1"),
        meaning="whether ranks compare what they call before each collective, and name the lines where they differ",
        read_by="distributed/group.py",
    ),
    Switch(
        name="INFINICORE_LLAMA_SERVER",
        kind=str,
        default=None,
        meaning="llama.cpp's program `llama-server`, which the suite `serving` of `infinicore perf compare` sets our"
        " server against (`llama-quantize` beside it makes its files); default: the one on the path",
        read_by="infinicore/perf/serving/sides.py",
    ),
    Switch(
        name="INFINICORE_TEST_DATA",
        kind=str,
        default=None,
        meaning="a folder with `models/` and `data/` for the tests that need real weights;"
        " default: `shared` beside the checkout; without either they skip",
        read_by="tests/conftest.py",
    ),
)

SWITCHES = {row.name: row for row in _ROWS}


def get(name):
    """The value of a switch: typed, checked, its default where the variable is unset or empty."""
    row = SWITCHES[name]
    text = os.environ.get(name)
    return row.parse(text) if text else row.default


def check(environ=None):
    """Raise ValueError for a name that starts with `INFINICORE_` and is no switch, naming the closest one."""
    for name in os.environ if environ is None else environ:
        if name.startswith(PREFIX) and name not in SWITCHES:
            import difflib

            close = difflib.get_close_matches(name, SWITCHES, n=1, cutoff=0.0)[0]
            raise ValueError(
                f"`{name}` is not a switch of infinicore; did you mean `{close}`? (all: {', '.join(SWITCHES)})"
            )


def table():
    """The switches as a Markdown table."""
    lines = ["| variable | accepts | default | meaning |", "|---|---|---|---|"]
    for row in SWITCHES.values():
        default = "" if row.default is None else f"`{row.default}`"
        lines.append(f"| `{row.name}` | {row.accepts()} | {default} | {row.meaning} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())  # noqa: T201
