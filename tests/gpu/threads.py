"""Kernels of GPUs run on the host, thread by thread: each thread of a block is a context of its own on one CPU.

The LLVM IR of a kernel, as the host's front end makes it, gets functions in place of what GPUs alone have: places of
threads, barriers, exchanges within a warp, shared memory. A thread runs until it has to wait, and the next one that can
goes on: the tests switch 90 million times, which threads of the system did in 1,300 s of CPU. Which thread is next
changes its direction with each barrier of the block, so that what lacks one is wrong in one of the two. Blocks run one
after the other, in their order. Kernels whose blocks need one thread alone run as `../stand_ins.py` makes them.
"""

import ctypes
import functools
import re
import threading
import traceback
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np
from infinicore.kernels.build import disk, host, jit
from infinicore.kernels.build.host import digest
from infinicore.kernels.cuda import load as cuda_load

from infinicore.core import memory
from infinicore.core.cuda import GpuBackend
from infinicore.device import Device, register

from . import fibers, units

WARP = 32
NAMED = 128  # threads that wait at barriers by their numbers, which are 1 and 2; of early kernels all but two warps
PATIENCE = 120.0  # seconds until threads that ask memory in vain count as lost

_OWN = """
define void @sim_barrier(i32 %number) {
  call void @wait(i32 0)
  ret void
}
define void @sim_warp() {
  %tid = call i32 @sim_tid()
  %warp = lshr i32 %tid, 5
  %number = add i32 %warp, 1
  call void @wait(i32 %number)
  ret void
}
define void @sim_bar(i32 %number, i32 %members) {
  %n = load i32, ptr @numbers
  %warps = lshr i32 %n, 5
  %place = add i32 %warps, %number
  call void @wait(i32 %place)
  ret void
}
define i32 @exchange(i32 %v, i32 %source) noinline {
  %slots = load ptr, ptr @slots
  %tid = call i32 @sim_tid()
  %own = getelementptr i32, ptr %slots, i32 %tid
  store volatile i32 %v, ptr %own
  %warp = lshr i32 %tid, 5
  %number = add i32 %warp, 1
  call void @wait(i32 %number)
  %at = getelementptr i32, ptr %slots, i32 %source
  %found = load volatile i32, ptr %at
  call void @wait(i32 %number)
  ret i32 %found
}
define i32 @gather(i32 %v, i32 %what) noinline {
entry:
  %slots = load ptr, ptr @slots
  %tid = call i32 @sim_tid()
  %own = getelementptr i32, ptr %slots, i32 %tid
  store volatile i32 %v, ptr %own
  %warp = lshr i32 %tid, 5
  %number = add i32 %warp, 1
  %base = and i32 %tid, -32
  call void @wait(i32 %number)
  br label %loop
loop:
  %k = phi i32 [ 0, %entry ], [ %next, %loop ]
  %bits = phi i32 [ 0, %entry ], [ %more, %loop ]
  %place = add i32 %base, %k
  %at = getelementptr i32, ptr %slots, i32 %place
  %found = load volatile i32, ptr %at
  %same = icmp eq i32 %found, %what
  %one = zext i1 %same to i32
  %bit = shl i32 %one, %k
  %more = or i32 %bits, %bit
  %next = add i32 %k, 1
  %again = icmp ult i32 %next, 32
  br i1 %again, label %loop, label %done
done:
  call void @wait(i32 %number)
  ret i32 %more
}
define i32 @sim_match(i32 %v) {
  %bits = call i32 @gather(i32 %v, i32 %v)
  ret i32 %bits
}
define i32 @sim_ballot(i32 %every, i1 %condition) {
  %v = zext i1 %condition to i32
  %bits = call i32 @gather(i32 %v, i32 1)
  ret i32 %bits
}
define i32 @sim_bfly(i32 %every, i32 %v, i32 %by, i32 %clamp) {
  %tid = call i32 @sim_tid()
  %source = xor i32 %tid, %by
  %found = call i32 @exchange(i32 %v, i32 %source)
  ret i32 %found
}
define float @sim_bfly_float(i32 %every, float %v, i32 %by, i32 %clamp) {
  %bits = bitcast float %v to i32
  %found = call i32 @sim_bfly(i32 %every, i32 %bits, i32 %by, i32 %clamp)
  %number = bitcast i32 %found to float
  ret float %number
}
define i32 @sim_up(i32 %every, i32 %v, i32 %by, i32 %clamp) {
  %tid = call i32 @sim_tid()
  %lane = and i32 %tid, 31
  %below = sub i32 %tid, %by
  %there = icmp sge i32 %lane, %by
  %source = select i1 %there, i32 %below, i32 %tid
  %found = call i32 @exchange(i32 %v, i32 %source)
  ret i32 %found
}
define i32 @sim_idx(i32 %every, i32 %v, i32 %by, i32 %clamp) {
  %tid = call i32 @sim_tid()
  %base = and i32 %tid, -32
  %lane = and i32 %by, 31
  %source = or i32 %base, %lane
  %found = call i32 @exchange(i32 %v, i32 %source)
  ret i32 %found
}
define i64 @sim_peek(i64 %at) noinline {
  %p = inttoptr i64 %at to ptr
  call void @next()
  %word = load volatile i64, ptr %p, align 8
  ret i64 %word
}
define void @sim_post(i64 %at, i64 %word) noinline {
  %p = inttoptr i64 %at to ptr
  store volatile i64 %word, ptr %p, align 8
  ret void
}
define {i64, i64} @sim_look(i64 %at) noinline {
  %p = inttoptr i64 %at to ptr
  call void @next()
  %v = load volatile <2 x i64>, ptr %p, align 16
  %a = extractelement <2 x i64> %v, i32 0
  %b = extractelement <2 x i64> %v, i32 1
  %s = insertvalue {i64, i64} undef, i64 %a, 0
  %t = insertvalue {i64, i64} %s, i64 %b, 1
  ret {i64, i64} %t
}
define void @sim_tell(i64 %at, i64 %a, i64 %b) noinline {
  %p = inttoptr i64 %at to ptr
  %s = insertelement <2 x i64> undef, i64 %a, i32 0
  %v = insertelement <2 x i64> %s, i64 %b, i32 1
  store volatile <2 x i64> %v, ptr %p, align 16
  ret void
}
define i64 @sim_clock() {
  %now = load i64, ptr @ticks
  %then = add i64 %now, 1000
  store i64 %then, ptr @ticks
  ret i64 %now
}
@ticks = internal global i64 1000
define float @sim_exp2(float %x) {
  %y = call float @llvm.exp2.f32(float %x)
  ret float %y
}
define float @sim_log2(float %x) {
  %y = call float @llvm.log2.f32(float %x)
  ret float %y
}
define float @sim_square_root(float %x) {
  %y = call float @llvm.sqrt.f32(float %x)
  ret float %y
}
define float @sim_quotient(float %x, float %y) {
  %z = fdiv float %x, %y
  ret float %z
}
define double @sim_reciprocal_wide(double %x) {
  %y = fdiv double 1.0, %x
  %bits = bitcast double %y to i64
  %kept = and i64 %bits, -4294967296
  %short = bitcast i64 %kept to double
  ret double %short
}
define float @sim_reciprocal(float %x) {
  %z = fdiv float 1.0, %x
  ret float %z
}
declare float @llvm.exp2.f32(float)
declare float @llvm.log2.f32(float)
declare float @llvm.sqrt.f32(float)
"""
_RUNTIME = _OWN + fibers.RUNTIME + units.RUNTIME
_ASM = {
    "ld.relaxed.sys.global.v2": "sim_look", "st.relaxed.sys.global.v2": "sim_tell",
    "mov.u64 $0, %globaltimer": "sim_clock", "ld.acquire.sys": "sim_peek", "st.release.sys": "sim_post",
    "ld.relaxed": "sim_peek", "st.relaxed": "sim_post", "ex2.approx.f32": "sim_exp2",
    "lg2.approx.f32": "sim_log2", "lg2.approx.ftz.f32": "sim_log2", "sqrt.approx.ftz.f32": "sim_square_root",
    "div.full.f32": "sim_quotient",
    "ex2.approx.ftz.f32": "sim_exp2", "rcp.approx.ftz.f32": "sim_reciprocal",
    "rcp.approx.ftz.f64": "sim_reciprocal_wide",
    "bar.sync": "sim_bar", "// votes": "sim_match", "bar.warp.sync": "sim_warp", **units.ASM,
}  # fmt: skip
_NAMES = {
    "llvm.nvvm.read.ptx.sreg.tid.x": "sim_tid", "llvm.nvvm.read.ptx.sreg.ntid.x": "sim_ntid",
    "llvm.nvvm.read.ptx.sreg.ctaid.x": "sim_ctaid", "llvm.nvvm.read.ptx.sreg.nctaid.x": "sim_nctaid",
    "llvm.nvvm.barrier.cta.sync.aligned.all": "sim_barrier", "llvm.nvvm.shfl.sync.bfly.i32": "sim_bfly",
    "llvm.nvvm.shfl.sync.up.i32": "sim_up", "llvm.nvvm.shfl.sync.idx.i32": "sim_idx",
    "llvm.nvvm.vote.ballot.sync": "sim_ballot", "llvm.nvvm.shfl.sync.bfly.f32": "sim_bfly_float",
}  # fmt: skip
_libc = ctypes.CDLL(None)
_FILES = __file__, fibers.__file__, units.__file__
_THIS = digest("".join(Path(file).read_text() for file in _FILES), 6)  # of the translation


def _translated(text):
    """The module with functions of ours in place of what the host has not."""
    for name, own in _NAMES.items():
        text = text.replace(f"@{name}(", f"@{own}(")
    found = {}  # functions of shared memory whose address has a number behind it

    def call(match):
        own, behind = _own(match[1]), re.search(r"\[\$\d\+(\d+)\]", match[1])
        if own.startswith(("sim_ld", "sim_st")) and behind and int(behind[1]):
            found[f"{own}_{behind[1]}"] = own, behind[1]
            own = f"{own}_{behind[1]}"
        return f" @{own}("

    text = re.sub(r' asm (?:sideeffect )?"([^"]*)", "[^"]*"\(', call, text)
    text = re.sub(r"addrspace\([13]\) ?", "", re.sub(r"\baddrspacecast\b", "bitcast", text))
    dynamic = f"@dynamic_shared = external global [{units.BYTES} x i8], align 1024"
    text = re.sub(r"^@dynamic_shared = .*$", dynamic, text, flags=re.MULTILINE)
    of_asm = {name: re.search(rf"^define (.*@{name}\(.*\)).*{{$", _RUNTIME, re.MULTILINE)[1] for name in _ASM.values()}
    for name, (own, behind) in found.items():
        result, parameters = re.match(r"(.*) @\w+\(i32 %at(.*)\)", of_asm[own]).groups()
        text += f"\ndefine internal {result} @{name}(i32 %at{parameters}) {{\n  %there = add i32 %at, {behind}\n"
        call_it = f"call {result} @{own}(i32 %there{parameters})"
        text += f"  {call_it}\n  ret void\n}}" if result == "void" else f"  %v = {call_it}\n  ret {result} %v\n}}"
    return text + "".join(f"\ndeclare {kind}" for kind in of_asm.values())


def _own(instruction):
    for start, own in _ASM.items():
        if instruction.startswith(start):
            return own
    raise NotImplementedError(f"no function of the host stands for `{instruction}`")


def _machine():
    cpu, features = llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
    options = {"opt": 1, "jit": True, "codemodel": "jitdefault"}  # code that the engine puts anywhere in memory
    return llvm.Target.from_default_triple().create_target_machine(cpu=cpu, features=features, **options)


class Kernel:
    """A kernel that runs here."""

    def __init__(self, source, shape):
        self.source, self.shape = source, shape
        self._engine = None

    def _code(self, path):
        """(name of the kernel, object code) of the kernel with the functions of the host."""
        symbol, library = jit._link(path, self.source)
        module = llvm.parse_assembly(_translated(str(library._final_module)))
        runtime = _RUNTIME.replace("@SYMBOL", f'@"{symbol}"')
        module.link_in(llvm.parse_assembly(f'{runtime}declare i64 @"{symbol}"(i64, i64, i64)\n'))
        machine = _machine()
        builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=1))
        builder.getModulePassManager().run(module, builder)
        return symbol, machine.emit_object(module)

    def _compiled(self):
        """The engine with its code, which one process compiles and others read: 53 s of 30 tests, or 5."""
        path = disk.path_of(f"threads-{_THIS}", self.source)
        with host.turn(path):
            entry = disk.read(path)
            if entry is None:
                entry = self._code(path)
                disk.write(path, *entry, self.source)
        for name in ("getcontext", "makecontext", "swapcontext"):
            llvm.add_symbol(name, ctypes.cast(getattr(_libc, name), ctypes.c_void_p).value)
        for name, address in units.SYMBOLS.items():
            llvm.add_symbol(name, address)
        jit._target_machine()  # what else kernels call
        engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _machine())
        engine.add_object_file(llvm.ObjectFileRef.from_data(entry[1]))
        engine.finalize_object()
        return engine

    def run(self, args, n, blocks=3):
        """Items [0, n) with the block at the address `args`, in `blocks` blocks where these share items out."""
        self._engine = engine = self._engine or self._compiled()
        shape = self.shape
        count = shape.threads if shape.kind != "thread" else 1
        grid = {"block": n, "grid": blocks, "thread": 1}[shape.kind]
        per = shape.per if shape.kind == "thread" else 1

        # barriers: the block's, of warps, by two numbers, and all in shared memory
        every = np.zeros((4 + count // WARP, 4), np.int32)
        every[0, 0], every[1:-3, 0], every[-3:-1, 0] = count, WARP, count - 2 * WARP if shape.early else NAMED
        those, slots = np.zeros((count, 4), np.int32), np.zeros(max(count, WARP), np.uint32)
        contexts = np.zeros((count + 1) * fibers.CONTEXT + 64, np.uint8)
        for name, address in (
            ("barriers", every.ctypes.data), ("fibers", those.ctypes.data), ("slots", slots.ctypes.data),
            ("contexts", contexts.ctypes.data + -contexts.ctypes.data % 64), ("stacks", _stacks(count).ctypes.data),
        ):  # fmt: skip
            ctypes.c_uint64.from_address(engine.get_global_value_address(name)).value = address
        numbers = (ctypes.c_uint32 * 2).from_address(engine.get_global_value_address("numbers"))
        numbers[0], numbers[1] = count, grid
        kinds = [ctypes.c_int64] * 3 + [ctypes.c_int32]
        enter = ctypes.CFUNCTYPE(ctypes.c_int64, *kinds)(engine.get_function_address("enter"))
        codes = []

        def run():
            for item in range(0, n, per) if shape.kind == "thread" else range(grid):
                lo, hi = {"thread": (item, min(n, item + per)), "block": (item, item + 1), "grid": (0, n)}[shape.kind]
                codes.append(enter(args, lo, hi, item if shape.kind != "thread" else 0))

        one = threading.Thread(target=run, daemon=True)
        one.start()
        one.join(PATIENCE)
        assert not one.is_alive() and min(codes, default=0) >= 0, "threads wait for one another"
        return max(codes, default=0)


@functools.cache
def _stacks(count):
    """Room for the stacks of this many threads, of which the system gives what is used."""
    return np.empty(count * fibers.STACK, np.uint8)


class Kernels(cuda_load.CompiledOnly):
    """Those of a device whose threads are the host's: a handle is the address of what runs a kernel."""

    def __init__(self, arch):
        super().__init__(arch)
        self.used, self._callbacks, self._names, self.wrong = [], [], {}, None

    tensor_map = staticmethod(units.tensor_map)

    def _load(self, name, source, shape):
        kernel = Kernel(source, shape)

        def call(args, lo, hi):
            self.used.append(name)
            try:
                assert lo == 0
                return kernel.run(args, hi)
            except BaseException as error:
                self.wrong = error
                traceback.print_exception(error)
                return 1

        self._callbacks.append(ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 3)(call))
        handle = ctypes.cast(self._callbacks[-1], ctypes.c_void_p).value
        self._names[handle] = name
        return handle

    def name_of(self, handle):
        """The name of the kernel with this handle."""
        return self._names[handle]


class Threads(GpuBackend):
    """The backend of such a device; its memory is the same RAM."""

    shares_memory = False

    def __init__(self, device):
        super().__init__(device)
        self.kernels = Kernels("sm_90a")

    def allocate(self, nbytes):
        storage = memory.allocate(nbytes)
        storage.backend = self
        ctypes.memset(storage.address, 0xA5, nbytes)  # what was there before must not be right by chance
        return storage


def device():
    """The device, registered on the first call."""
    register("threads", Threads)
    return Device("threads")
