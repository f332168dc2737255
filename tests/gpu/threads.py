"""Kernels of GPUs run on the host, thread by thread: a thread of the system for each thread of a block.

The LLVM IR of a kernel, as the host's front end makes it, gets functions in place of what GPUs alone have: places of
threads, barriers, exchanges within a warp, shared memory. Blocks run one after the other, in their order.
"""

import ctypes
import re
import threading
from typing import NamedTuple

import llvmlite.binding as llvm
import numpy as np
from infinicore.kernels.build import disk, jit, load, render
from infinicore.kernels.build.render import stub
from infinicore.kernels.cuda import policy
from infinicore.kernels.cuda import render as cuda_render

WARP = 32
BARRIER = 64  # bytes that a barrier of pthreads may take
PATIENCE = 120.0  # seconds until threads that wait for one another count as lost

# `here`: for each thread its number, and that of its block times 2^16.
_RUNTIME = """
@key = global i32 0
@numbers = global [2 x i32] zeroinitializer
@barriers = global ptr null
@slots = global ptr null

declare ptr @pthread_getspecific(i32)
declare i32 @pthread_setspecific(i32, ptr)
declare i32 @pthread_barrier_wait(ptr)
declare i32 @sched_yield()

define i32 @there() noinline {
  %key = load i32, ptr @key
  %p = call ptr @pthread_getspecific(i32 %key)
  %n = ptrtoint ptr %p to i64
  %here = trunc i64 %n to i32
  ret i32 %here
}
define i32 @sim_tid() {
  %n = call i32 @there()
  %tid = and i32 %n, 65535
  ret i32 %tid
}
define i32 @sim_ctaid() {
  %n = call i32 @there()
  %block = lshr i32 %n, 16
  ret i32 %block
}
define i32 @sim_ntid() {
  %n = load i32, ptr @numbers
  ret i32 %n
}
define i32 @sim_nctaid() {
  %at = getelementptr i32, ptr @numbers, i64 1
  %n = load i32, ptr %at
  ret i32 %n
}
define void @wait(i32 %number) noinline {
  %all = load ptr, ptr @barriers
  %place = mul i32 %number, BARRIER
  %at = getelementptr i8, ptr %all, i32 %place
  %code = call i32 @pthread_barrier_wait(ptr %at)
  ret void
}
define void @sim_barrier(i32 %number) {
  call void @wait(i32 0)
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
define i32 @sim_bfly(i32 %every, i32 %v, i32 %by, i32 %clamp) {
  %tid = call i32 @sim_tid()
  %source = xor i32 %tid, %by
  %found = call i32 @exchange(i32 %v, i32 %source)
  ret i32 %found
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
  %word = load atomic i64, ptr %p acquire, align 8
  ret i64 %word
}
define void @sim_post(i64 %at, i64 %word) noinline {
  %p = inttoptr i64 %at to ptr
  store atomic i64 %word, ptr %p release, align 8
  ret void
}
define float @sim_exp2(float %x) {
  %y = call float @llvm.exp2.f32(float %x)
  ret float %y
}
define float @sim_divide(float %x, float %y) {
  %z = fdiv float %x, %y
  ret float %z
}
declare float @llvm.exp2.f32(float)

define i64 @enter(i64 %args, i64 %lo, i64 %hi, i64 %here) {
  %p = inttoptr i64 %here to ptr
  %key = load i32, ptr @key
  %code = call i32 @pthread_setspecific(i32 %key, ptr %p)
  %found = call i64 @SYMBOL(i64 %args, i64 %lo, i64 %hi)
  call void @wait(i32 0)
  ret i64 %found
}
"""
_ASM = {
    "ld.relaxed": "sim_peek", "st.relaxed": "sim_post", "ex2.approx.f32": "sim_exp2", "div.full.f32": "sim_divide",
}  # fmt: skip
_NAMES = {
    "llvm.nvvm.read.ptx.sreg.tid.x": "sim_tid", "llvm.nvvm.read.ptx.sreg.ntid.x": "sim_ntid",
    "llvm.nvvm.read.ptx.sreg.ctaid.x": "sim_ctaid", "llvm.nvvm.read.ptx.sreg.nctaid.x": "sim_nctaid",
    "llvm.nvvm.barrier.cta.sync.aligned.all": "sim_barrier", "llvm.nvvm.shfl.sync.bfly.i32": "sim_bfly",
    "llvm.nvvm.shfl.sync.up.i32": "sim_up", "llvm.nvvm.shfl.sync.idx.i32": "sim_idx",
}  # fmt: skip
_libc = ctypes.CDLL(None)
_kept, _kernels = [], {}


def _translated(text):
    """The module with functions of ours in place of what the host has not."""
    for name, own in _NAMES.items():
        text = text.replace(f"@{name}(", f"@{own}(")
    text = re.sub(r' asm (?:sideeffect )?"(\S+)[^"]*", "[^"]*"\(', lambda m: f" @{_own(m[1])}(", text)
    text = re.sub(r"addrspace\(3\) ?", "", re.sub(r"\baddrspacecast\b", "bitcast", text))
    of_asm = {name: re.search(rf"^define (.*@{name}\(.*\)).*{{$", _RUNTIME, re.MULTILINE)[1] for name in _ASM.values()}
    return text + "".join(f"\ndeclare {kind}" for kind in of_asm.values())


def _own(instruction):
    return next(own for start, own in _ASM.items() if instruction.startswith(start))


class Kernel(NamedTuple):
    """A kernel that runs here: called with its block and how many items there are."""

    source: str
    shape: policy.Shape

    def _entry(self):
        found = _kernels.get(self.source)
        if found is None:
            path = disk.path_of("threads", self.source)
            symbol, library = jit._link(path, self.source)
            text = _translated(str(library._final_module))
            text = re.sub(rf"^define (?:[a-z_]+ )*i64 @(\"?){symbol}\1\(", f'define i64 @"{symbol}"(', text, flags=re.MULTILINE)
            module = llvm.parse_assembly(text)
            runtime = _RUNTIME.replace("BARRIER", str(BARRIER)).replace("@SYMBOL", f'@"{symbol}"')
            declared = f'declare i64 @"{symbol}"(i64, i64, i64)\n'
            module.link_in(llvm.parse_assembly(runtime + declared))
            machine = jit._target_machine()
            module.triple = machine.triple
            options = llvm.create_pipeline_tuning_options(speed_level=1)
            llvm.create_pass_builder(machine, options).getModulePassManager().run(module, llvm.create_pass_builder(machine, options))
            for name in ("pthread_getspecific", "pthread_setspecific", "pthread_barrier_wait", "sched_yield"):
                llvm.add_symbol(name, ctypes.cast(getattr(_libc, name), ctypes.c_void_p).value)
            engine = llvm.create_mcjit_compiler(module, llvm.Target.from_default_triple().create_target_machine(opt=1))
            engine.finalize_object()
            found = _kernels[self.source] = engine
        return found

    def __call__(self, block, n, blocks=3):
        engine, shape = self._entry(), self.shape
        count = shape.threads if shape.kind != "thread" else 1
        grid = {"block": n, "grid": blocks, "thread": 1}[shape.kind]

        def place(kind, name):
            return kind.from_address(engine.get_global_value_address(name))

        key = ctypes.c_uint32()
        assert _libc.pthread_key_create(ctypes.byref(key), None) == 0
        memory = np.zeros(BARRIER * (2 + count // WARP) + 64, np.uint8)
        slots = np.zeros(max(count, WARP), np.uint32)
        at = memory.ctypes.data + -memory.ctypes.data % 64
        for number in range(1 + count // WARP):
            assert _libc.pthread_barrier_init(ctypes.c_void_p(at + number * BARRIER), None, WARP if number else count) == 0
        place(ctypes.c_uint32, "key").value = key.value
        place(ctypes.c_uint64, "barriers").value, place(ctypes.c_uint64, "slots").value = at, slots.ctypes.data
        numbers = place(ctypes.c_uint32 * 2, "numbers")
        numbers[0], numbers[1] = count, grid
        enter = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 4)(engine.get_function_address("enter"))
        codes = []

        def run(thread):
            for item in range(grid):
                lo, hi = (item, item + 1) if shape.kind == "block" else (0, n)
                codes.append(enter(block.ctypes.data, lo, hi, thread | item << 16))

        team = [threading.Thread(target=run, args=(k,), daemon=True) for k in range(count)]
        for one in team:
            one.start()
        for one in team:
            one.join(PATIENCE)
            assert not one.is_alive(), "threads wait for one another"
        _libc.pthread_key_delete(key)
        _kept.append((memory, slots) if len(_kept) < 1 else ())
        assert not any(codes)


class Kernels:
    """Stands for a GPU's kernels: a handle is what runs one here."""

    arch, multiprocessors = "sm_90a", 132

    @staticmethod
    def kernel(name, parameters):
        return Kernel(stub(name, parameters, "cuda" if policy.is_own(name) else "cpu"), policy.shape(name))

    @staticmethod
    def rendered(family, rule, *parameters):
        source = getattr(cuda_render if family in policy.RENDERED else render, family)(rule, *parameters)
        return Kernel(source, policy.rendered(family, *parameters))


def plan_of(planner, problem):
    """The plan of a problem for `run`."""
    with load.on(Kernels()):
        return planner(problem)


def run(plan, **tensors):
    """Run the launches in their order; arrays are written in place, workspaces begin with what is not a number."""
    memory = dict(tensors)
    for name, nbytes in plan.scratch:
        buffer = np.full(nbytes + 64, 255, np.uint8)
        memory[name] = buffer[-buffer.ctypes.data % 64 :][:nbytes]
    for one in plan.launches:
        block = np.array(one.values, np.int64)
        for place, name, offset in one.places:
            block[place] = memory[name].ctypes.data + offset
        one.kernel(block, one.n)
