"""JIT policy: how kernel source becomes machine code, in this one file.

A kernel is a Python function `kernel(args, lo, hi)` that does the slice [lo, hi) of its work; `args`
points to its argument block of int64 (addresses, sizes, strides, bits of scalars). It returns 0, or
an error code. Numba compiles it to an object file that needs nothing of Numba at run time, so a warm
start loads code (`elf.py`, or LLVM) in about a millisecond and never imports Numba.

Helpers that kernels call are decorated with `@inline`. Flags: no fast-math (NaN and infinity keep
their meaning; the vector library asks for `fma` and reassociated sums where it wants them), NumPy's
error model (no exceptions in kernels), no reference counting (kernels see raw addresses only).
"""

import contextlib
import ctypes
import functools
import importlib.util
import os
import platform
import re
import threading

from . import disk, elf, frontend, host, isa

_FLAGS = {"error_model": "numpy", "boundscheck": False}
_addresses = {}  # entry of the disk cache -> address
_turns = {}  # entry -> lock: one thread loads it, and others wait for that, or load another one
_compiling = threading.RLock()  # Numba and LLVM compile one kernel at a time
_RENDERED = "infinicore_rendered."
_shared = {}  # what a rendered function means -> the compiled function
_on_compile = None  # called with a kernel's name before it is compiled: progress for waiting users
_only_store = False  # whether kernels are compiled into the disk cache, and never run: `_nothing` runs instead


def report_to(function):
    """Call `function(name)` before each compilation, None: nothing; returns what was called before."""
    global _on_compile
    before, _on_compile = _on_compile, function
    return before


def only_store():
    """From now on, this process compiles kernels for others and runs none."""
    global _only_store
    _only_store = True


def stores_only():
    """Whether this process runs no kernels."""
    return _only_store


def _after_fork():
    """A child has not the threads that held locks."""
    global _compiling
    _compiling = threading.RLock()
    _turns.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def inline(function):
    """Decorate a helper that kernels (and users' own Numba code) call."""
    if not function.__module__.startswith(_RENDERED):
        return _inline(function)
    # Rendered functions that mean the same are one, so that what is called with them is compiled once, too: kernels of
    # reductions differ in little, and 78 of them take TIME.
    meaning = _meaning(function)
    if meaning not in _shared:
        _shared[meaning] = _inline(function)
    return _shared[meaning]


def _meaning(function):
    """What a rendered function says, and the values of the names in it."""
    code, names = function.__code__, function.__globals__
    values = [names.get(name) for name in code.co_names]
    values = [(type(v), repr(v)) if isinstance(v, (int, float)) else v for v in values]  # 0.0 is not -0.0
    return code.co_code, repr(code.co_consts), code.co_names, code.co_varnames, code.co_argcount, tuple(values)


def _inline(function):
    import numba

    # Without entry points for Python and C, which only kernels themselves need, a helper compiles faster.
    flags = {**_FLAGS, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return numba.njit(**flags, pipeline_class=_compiler())(function)


@functools.cache
def _compiler():
    """Numba's compiler without the passes that find nothing to do in kernels: 6 % of the time of all."""
    from numba.core.compiler import CompilerBase, DefaultPassBuilder, PassManager
    from numba.core.typed_passes import NopythonRewrites
    from numba.core.untyped_passes import InlineClosureLikes

    needless = (
        NopythonRewrites,  # fuses expressions of whole arrays
        InlineClosureLikes,  # functions and comprehensions inside of functions
    )

    class Compiler(CompilerBase):
        def define_pipelines(self):
            every = DefaultPassBuilder.define_nopython_pipeline(self.state)
            kept = PassManager(every.pipeline_name)
            kept.passes = [step for step in every.passes if step[0] not in needless]
            kept.finalize()
            return [kept]

    return Compiler


def public(function):
    """Decorate a function on arrays (`arrays.py`) that Python calls as well."""
    import numba

    return numba.njit(**_FLAGS)(function)


@functools.cache
def _target_machine():
    import ctypes.util

    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    abort = ctypes.cast(ctypes.CDLL(None).abort, ctypes.c_void_p).value
    for name in elf.EXCEPTION_SYMBOLS:
        if llvm.address_of_symbol(name) is None:
            llvm.add_symbol(name, abort)
    for name, address in elf.provided.items():
        llvm.add_symbol(name, address)
    libm = ctypes.util.find_library("m")  # functions without a polynomial of ours, such as `pow`
    if libm is not None and llvm.address_of_symbol("powf") is None:
        llvm.load_library_permanently(libm)
    return llvm.Target.from_default_triple().create_target_machine()


def _load(symbol, code):
    """The address of `symbol` in object code, which stays loaded for the life of the process."""
    address = elf.load(symbol, code)
    if address is not None:
        return address
    import llvmlite.binding as llvm

    machine = _target_machine()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(engine))  # workers run in it until the process ends, behind Python
    return engine.get_function_address(symbol)


@functools.cache
def _configure_numba():
    """Apply a forced instruction set before Numba builds its code generator."""
    if isa.forced() != "auto":
        import numba

        numba.config.CPU_NAME = isa.cpu_name()
        numba.config.CPU_FEATURES = isa.feature_string()


@contextlib.contextmanager
def _whole_programs():
    """While a kernel compiles, its helpers stay LLVM IR: unoptimised, and without machine code of their own.

    What counts of a helper is what the kernel makes of it, so the whole program is optimised once, in `_optimise`.
    Numba would do that for each helper in turn, and emit each: 9.2 s instead of 5.5 s for twelve kernels, for code
    of the same speed.
    Its passes over single functions stay: without them compiling takes 5 % less, but LLVM inlines otherwise (the kernel
    of one row has 2,860 instructions instead of 3,360), and what that does to speed is unknown.
    """
    from numba.core.codegen import JITCodeLibrary
    from numba.core.registry import cpu_target
    from numba.core.runtime import rtsys

    class Library(JITCodeLibrary):
        """A function and all that it calls, unknown to Numba's execution engine."""

        _optimize_functions = frontend.optimise_functions

        def _optimize_final_module(self):
            pass

        def _finalize_final_module(self):
            self._finalize_dynamic_globals()
            self._verify_declare_only_symbols()
            self._finalized = True

        def get_pointer_to_function(self, name):
            self._ensure_finalized()
            return 0

    context = cpu_target.target_context
    rtsys.initialize(context)  # a library too, which Numba calls
    codegen = context.codegen()
    codegen._library_class = Library
    codegen.set_env = lambda name, environment: None  # an address in the engine: for exceptions, which kernels lack
    try:
        yield
    finally:
        del codegen._library_class, codegen.set_env


def _import_source(name, path, source):
    """Run rendered source as a module of its own, named so that tracebacks show the text."""
    import linecache

    module_name = _RENDERED + re.sub(r"\W", "_", name)
    spec = importlib.util.spec_from_loader(module_name, loader=None)
    module = importlib.util.module_from_spec(spec)
    linecache.cache[str(path)] = (len(source), None, source.splitlines(True), str(path))
    exec(compile(source, str(path), "exec"), module.__dict__)
    return module


def _link(path, source):
    """(symbol, library) of rendered source: the kernel and its helpers in one module of LLVM IR."""
    _configure_numba()
    from numba import types
    from numba.core.ccallback import CFunc
    from numba.core.compiler_lock import global_compiler_lock

    rendered = _import_source(path.stem, path.with_suffix(".py"), source)
    kernel = rendered.kernel
    names = kernel.__code__.co_varnames[: kernel.__code__.co_argcount]
    first = rendered.BLOCK if names[0] == "args" else types.int64  # the driver's functions take plain integers
    arguments = (first, *(types.int64,) * (len(names) - 1))
    with global_compiler_lock, _whole_programs(), frontend.lean():
        result = CFunc(kernel, (arguments, types.int64), {}, dict(_FLAGS), _compiler())._compile_uncached()
        result.library.finalize()
    return result.fndesc.llvm_cfunc_wrapper_name, result.library


def _optimise(module, machine):
    """Run LLVM's passes for a target machine over a linked module."""
    import llvmlite.binding as llvm

    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = True  # SLP stays off, as in Numba, where it once miscompiled
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    module.verify()


def _compile(path, source):
    """Compile rendered source; (symbol, object code)."""
    with _compiling:
        symbol, library = _link(path, source)
        machine = library.codegen._tm
        _optimise(library._final_module, machine)
        return symbol, machine.emit_object(library._final_module)


def _store(name, path, source, wait=True):
    """The entry of a kernel, which this process compiles, or waits for while another one does.

    Without `wait`: None in the second case.
    """
    with host.turn(path, wait) as ours:
        entry = disk.read(path)  # another process may have been faster
        if entry is None and ours:
            if _on_compile is not None:
                _on_compile(name)
            entry = _compile(path, source)
            disk.write(path, *entry, source)
        return entry


@functools.cache
def _nothing():
    return ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 3)(lambda *_: 0)


def nothing():
    """The address of a kernel that does nothing."""
    return ctypes.cast(_nothing(), ctypes.c_void_p).value


def load_kernel(name, source):
    """The address of the kernel with this rendered source: from the disk cache, or compiled now."""
    if isa.is_foreign():
        what = "aarch64" if isa.forced() == "neon" else "a CPU with tile registers that the system lets it use"
        raise NotImplementedError(
            f"`INFINICORE_ISA={isa.forced()}` compiles for {what}, and this is {platform.machine()}"
            f"{'' if isa.forced() == 'neon' else ' with them ' + isa.tiles()}: unset it to run kernels"
        )
    path = disk.path_of(name, source)
    if _only_store:
        if disk.read(path) is None:
            _store(name, path, source, wait=False)
        return nothing()
    with _turns.setdefault(path, threading.RLock()):
        address = _addresses.get(path)
        if address is None:
            address = _addresses[path] = _load(*(disk.read(path) or _store(name, path, source)))
        return address


def assembly(name, source):
    """The machine code of a kernel as text (for tests and for reading)."""
    _, code = _compile(disk.path_of(name, source), source)
    import subprocess
    import tempfile

    with tempfile.NamedTemporaryFile(suffix=".o") as file:
        file.write(code)
        file.flush()
        return subprocess.run(["objdump", "-d", file.name], capture_output=True, text=True, check=True).stdout


def cross_assembly(name, source):
    """The code of a kernel for another machine, as assembly: what `INFINICORE_ISA=neon` or `amx` compiles to.

    The IR is Numba's for this machine, made with the lanes and the intrinsics of the other one; it takes that one's
    triple and data layout, and LLVM optimises it for that one.
    """
    if not isa.is_foreign():
        raise ValueError(
            f"`INFINICORE_ISA` must be 'neon' or 'amx', on a machine without them, to compile for another one, "
            f"got {isa.forced()!r} on {platform.machine()}"
        )
    triple = "aarch64-unknown-linux-gnu" if isa.forced() == "neon" else "x86_64-unknown-linux-gnu"
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    features = ",".join("+" + feature for feature in sorted(isa.features()))
    target = llvm.Target.from_triple(triple)
    machine = target.create_target_machine(cpu=isa.cpu_name(), features=features, opt=3)
    text = str(_link(disk.path_of(name, source), source)[1]._final_module)
    text = re.sub(r'^target triple = ".*"$', f'target triple = "{triple}"', text, flags=re.MULTILINE)
    layout = f'target datalayout = "{machine.target_data}"'
    module = llvm.parse_assembly(re.sub(r'^target datalayout = ".*"$', layout, text, flags=re.MULTILINE))
    _optimise(module, machine)
    return machine.emit_assembly(module)
