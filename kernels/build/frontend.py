"""Numba's front end without what kernels have no use for: the same machine code in two thirds of the time.

Numba spends most of a kernel's compilation on Python of its own. `lean` replaces some of that while a kernel compiles,
and puts it back after: an answer that was worked out before is kept, and what nobody reads is not made.
"""

import contextlib
import functools
from importlib import import_module


def _run_pass(self, index, one, state):
    """A pass and nothing else: no events, no text about it, no checks after it."""
    one.analysis = self._analysis
    one.run_initialization(state)
    one.run_pass(state)
    one.run_finalizer(state)


def _remembered(resolve, configs):
    """`get_call_type` of Numba's functions, which tries one template after the other, once for the same types.

    What is found may depend on the flags of the function that is compiled, which belong to the key.
    """
    known = {}

    def get_call_type(self, context, args, kws):
        flags = configs.ConfigStack.top_or_none()
        flags = tuple((name, str(value)) for name, value in flags._values.items()) if flags is not None else None
        key = id(self), context, tuple(args), tuple(kws.items()), flags
        if key not in known:
            signature = resolve(self, context, args, kws)
            known[key] = signature, self._impl_keys[signature.args], self  # which lives on, as its number does
        signature, self._impl_keys[signature.args], _ = known[key]
        return signature

    return get_call_type


def _sizes(size):
    """`get_abi_sizeof`, which has LLVM read a module, and is asked for each variable, for debuggers."""
    known = {}

    def get_abi_sizeof(self, kind):
        name = str(kind)
        if "%" in name:  # a name says nothing
            return size(self, kind)
        key = str(self.target_data), name
        if key not in known:
            known[key] = size(self, kind)
        return known[key]

    return get_abi_sizeof


def _counted(change):
    """Counting references, which nothing in kernels has: not even parts of values are looked at."""
    known = {}

    def change_counts(self, builder, kind, value, name):
        if kind not in known:
            known[kind] = self._context.data_model_manager[kind].contains_nrt_meminfo()
        if known[kind]:
            change(self, builder, kind, value, name)

    return change_counts


def _lifetimes(postproc, transforms):
    """After a pass, Numba finds out where each variable lives, which nobody asks for until the last pass (or of
    generators): a tenth of its Python.
    """
    run = postproc.PostProcessor.run

    def run_post_processor(self, emit_dels=False, extend_lifetimes=False):
        if emit_dels or self.func_ir.is_generator:
            return run(self, emit_dels, extend_lifetimes)
        self.func_ir.blocks = transforms.canonicalize_cfg(self.func_ir.blocks)
        self.func_ir.variable_lifetime = postproc.VariableLifetime(
            self.func_ir.blocks
        )  # works itself out when it is asked
        self.func_ir.generator_info = None

    return run_post_processor


def _listed(ir):
    """The variables in a statement: by the type of each part, and into one list."""
    kinds = {}

    def kind_of(kind):
        of = ((ir.Var, 1), (ir.Inst, 2), ((list, tuple), 3), (dict, 4))
        return next((number for base, number in of if issubclass(kind, base)), 0)

    def gather(value, into):
        kind = kinds.get(type(value))
        if kind is None:
            kind = kinds[type(value)] = kind_of(type(value))
        if kind == 1:
            into.append(value)
        elif kind == 2:
            into += value.list_vars()
        elif kind:
            for one in value if kind == 3 else value.values():
                gather(one, into)
        return into

    return lambda self, value: gather(value, [])


def _nothing(*_, **__):
    pass


def optimise_functions(library, module):
    """As Numba does it, which makes a manager of passes for each function that is only declared, too."""
    module.data_layout = library._codegen._data_layout
    for function in module.functions:
        if not function.is_declaration:
            manager, builder = library._codegen._function_pass_manager()
            manager.run(function, builder)


def _of_kernels(create):
    """An entry point for C is what a kernel needs, and none of the helpers."""

    def create_cfunc_wrapper(self):
        if self.flags.no_compile:  # which a kernel has from `CFunc`
            create(self)

    return create_cfunc_wrapper


@functools.cache
def _replacements(device):
    """[(object, name, what stands there for a while)]; Numba's compiler for GPUs has files of its own.

    Where a version of Numba has something in another place or not at all, that stays as it is.
    """
    core = "numba.cuda.core" if device == "cuda" else "numba.core"
    module = lambda name: import_module(f"{core}.{name}")
    functions = "numba.cuda.types.functions" if device == "cuda" else "numba.core.types.functions"
    wanted = [  # (where, name, what makes the other one of the own)
        (
            lambda: import_module(functions).BaseFunction, "get_call_type",
            lambda own: _remembered(own, module("targetconfig")),
        ),
        (lambda: module("compiler_machinery").PassManager, "_runPass", lambda own: _run_pass),
        (
            lambda: module("postproc").PostProcessor, "run",
            lambda own: _lifetimes(module("postproc"), module("transforms")),
        ),
        (lambda: module("ir").Inst, "_rec_list_vars", lambda own: _listed(module("ir"))),
        (lambda: module("base"), "_has_loc", functools.cache),
        (lambda: module("base").BaseContext, "get_abi_sizeof", _sizes),
        (lambda: module("event"), "start_event", lambda own: _nothing),  # at each call of LLVM, for those who measure
        (lambda: module("event"), "end_event", lambda own: _nothing),
    ]  # fmt: skip
    if device == "cpu":
        wanted += [
            (lambda: module("runtime.context").NRTContext, "_call_incref_decref", _counted),
            (lambda: module("lowering").BaseLower, "create_cfunc_wrapper", _of_kernels),
        ]
    found = []
    for where, name, make in wanted:
        try:
            place = where()
            found.append((place, name, make(vars(place)[name])))
        except (ImportError, AttributeError, KeyError):
            continue
    return found


@contextlib.contextmanager
def lean(device="cpu"):
    """A block in which Numba compiles kernels; who enters it holds the compiler's lock."""
    before = [(where, name, vars(where)[name]) for where, name, _ in _replacements(device)]
    for where, name, other in _replacements(device):
        setattr(where, name, other)
    try:
        yield
    finally:
        for where, name, own in before:
            setattr(where, name, own)
