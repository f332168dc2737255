"""From rendered source to PTX: the only file that imports `numba.cuda`, whose front end types and lowers a kernel.

LLVM's own NVPTX backend, which is a part of llvmlite, makes the PTX. NVVM would take LLVM IR of 2018, which has no
`fneg`, no saturating conversions, no reductions of vectors and no maximum that keeps NaN: all that `kernels/lang` is
made of. So kernels compile where there is no GPU and no CUDA toolkit, in the time that the front end takes: 0.2 to
1 s a kernel, of which LLVM's part is a tenth.

A kernel is the same function as on the CPU, `kernel(args, lo, hi)`. Its entry point has one parameter, an array of
64-bit words in the constant bank: four of the launch (`HEAD`) and the argument block. What an item of the launch is
given to is the kernel's `kind`: a thread, all threads of a block together, or (all items) the whole grid.
"""

import re
import threading
from pathlib import Path

from ..build import frontend, jit

HEAD = 4  # words before the block: n, one that is free, the address of the error word, and the launch's number
MOST_WORDS = 512  # of a kernel's parameters: 4 KB
ARCHITECTURES = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_90a")

_lock = threading.Lock()

_ENTRY = """
target triple = "nvptx64-nvidia-cuda"
target datalayout = "{layout}"

declare i64 @body(i64, i64, i64)
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.ntid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.nctaid.x()
declare void @llvm.nvvm.barrier.cta.sync.aligned.all(i32)

define ptx_kernel void @kernel(ptr byval([{words} x i64]) align 8 "nvvm.grid_constant" %p) {attributes} {{
entry:
  %n = load i64, ptr %p, align 8
  %block.at = getelementptr i64, ptr %p, i64 {head}
  %args = ptrtoint ptr %block.at to i64
  %tid32 = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %ntid32 = call i32 @llvm.nvvm.read.ptx.sreg.ntid.x()
  %ctaid32 = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
  %nctaid32 = call i32 @llvm.nvvm.read.ptx.sreg.nctaid.x()
  %tid = zext i32 %tid32 to i64
  %ntid = zext i32 %ntid32 to i64
  %ctaid = zext i32 %ctaid32 to i64
  %nctaid = zext i32 %nctaid32 to i64
{first}
{begin}
  %any = icmp ult i64 %start, %n
  br i1 %any, label %loop, label %done
loop:
  %lo = {lo}
  %end = add i64 %lo, {per}
  %over = icmp ugt i64 %end, %n
  %hi = select i1 %over, i64 %n, i64 %end
  %code = call i64 @body(i64 %args, i64 %lo, i64 %hi)
  %wrong = icmp ne i64 %code, 0
  br i1 %wrong, label %report, label %again
report:
  %word.at = getelementptr i64, ptr %p, i64 2
  %word = load i64, ptr %word.at, align 8
  %number.at = getelementptr i64, ptr %p, i64 3
  %number = load i64, ptr %number.at, align 8
  %high = shl i64 %number, 16
  %value = or i64 %high, %code
  %error = inttoptr i64 %word to ptr
  %old = cmpxchg ptr %error, i64 0, i64 %value monotonic monotonic
  br label %again
again:
{again}
done:
  ret void
}}
"""

# Since sm_90 a launch may begin beside the one before it, when all blocks of that one have begun (`driver.overlap`).
_FOLLOWED = '  call void asm sideeffect "griddepcontrol.launch_dependents;", "~{memory}"()\n'
_AFTER = '  call void asm sideeffect "griddepcontrol.wait;", "~{memory}"()\n'

_TURNS = {
    "lo": "phi i64 [ %start, %entry ], [ %next, %again ]",
    "again": "  %next = add i64 %lo, %step\n  %more = icmp ult i64 %next, %n\n  br i1 %more, label %loop, label %done",
}
_KINDS = {
    # one thread does `per` items; there are threads for all
    "thread": {
        "first": "  %place = mul i64 %ctaid, %ntid\n  %index = add i64 %place, %tid\n  %start = mul i64 %index, {per}",
        "lo": "add i64 %start, 0",
        "again": "  br label %done",
        "per": "{per}",
    },
    # the threads of a block do an item together
    "block": {
        "first": "  %start = add i64 %ctaid, 0\n  %step = add i64 %nctaid, 0",
        "lo": _TURNS["lo"],
        "again": "  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)\n" + _TURNS["again"],
        "per": "1",
    },
    # all threads are called once, with all items, and share them out by themselves
    "grid": {
        "first": "  %start = add i64 0, 0\n  %step = add i64 %n, 0",
        **_TURNS,
        "per": "%n",
    },
}


def _front_end(kernel, block, arch):
    """The LLVM modules of a kernel and its helpers, as texts: `@body` is the kernel."""
    from numba import types
    from numba.cuda import dispatcher
    from numba.cuda.compiler import compile_cuda

    capability = int(arch[3:].rstrip("a")) // 10, int(arch[3:].rstrip("a")) % 10

    class Compiled:  # helpers ask for the device that they are compiled for: there may be none here
        compute_capability = capability

    asked, dispatcher.get_current_device = dispatcher.get_current_device, lambda: Compiled
    try:
        arguments = (block, types.int64, types.int64)
        found = compile_cuda(
            kernel, types.int64, arguments, nvvm_options={}, cc=capability, abi="c", abi_info={"abi_name": "body"}
        )
    finally:
        dispatcher.get_current_device = asked
    return found.library.llvm_strs


def compile_ptx(name, source, arch, kind="thread", threads=None, blocks=0, cluster=1, early=False, per=1, inline=False):
    """(PTX, words of the parameters that it reads) of rendered source; the entry point is `entry_name(name)`.

    `threads` is the size of a block where the kernel counts on it, `blocks` how many should fit into a multiprocessor,
    `cluster` how many run as a cluster, and `per` the items of a thread; `early` and `inline` as in a `Shape`. 0 words:
    some are read by places that are known only when it runs.
    """
    import llvmlite.binding as llvm

    with _lock:
        rendered = jit._import_source(name, f"<{name}>", source)
        with frontend.lean("cuda"):
            texts = _front_end(rendered.kernel, rendered.BLOCK, arch)
        machine = _machine(arch)
        attributes = f'"nvvm.maxntid"="{threads}"' if threads else ""
        attributes += f' "nvvm.minctasm"="{blocks}"' if blocks else ""
        attributes += f' "nvvm.cluster_dim"="{cluster},1,1"' if cluster > 1 else ""
        shape = {key: text.format(per=per) for key, text in _KINDS[kind].items()}
        shape |= {"layout": str(machine.target_data), "attributes": attributes}
        shape["begin"] = "" if arch < "sm_90" else _FOLLOWED if early else _FOLLOWED + _AFTER
        module = llvm.parse_assembly(_ENTRY.format(words=MOST_WORDS, head=HEAD, **shape))
        for text in texts:
            text = re.sub(r'^target (triple|datalayout) = ".*"$', "", text, flags=re.MULTILINE)
            module.link_in(llvm.parse_assembly(text))
        _link_libdevice(module)
        for function in module.functions:
            if not function.is_declaration and function.name != "kernel":
                function.linkage = "internal"
                if inline or kind == "grid":  # whatever its size: products in flight may not cross a call
                    function.add_function_attribute("alwaysinline")
        for variable in module.global_variables:
            if variable.name.startswith("_ZN08NumbaEnv"):  # of exceptions, which kernels lack
                variable.linkage = "internal"
        options = llvm.create_pipeline_tuning_options(speed_level=3)
        options.inlining_threshold = 100000  # a call would keep the block in local memory
        options.loop_vectorization = False
        builder = llvm.create_pass_builder(machine, options)
        builder.getModulePassManager().run(module, builder)
        ptx, words = _with_own_size(machine.emit_assembly(module))
        if kind == "grid":  # may have maps of tensors; LLVM must not know, since the parameter's address is an offset
            ptx = ptx.replace(".param .align 8 .b8 kernel_param_0", ".param .align 64 .b8 kernel_param_0")
        if ".b128 " in ptx:  # which LLVM puts through as it stands: CUDA 12.4 and later have it
            ptx = re.sub(r"\.version 8\.[0-3]\b", ".version 8.4", ptx, count=1)
        return _with_aligned_memory(ptx).replace(".entry kernel(", f".entry {entry_name(name)}("), words


def entry_name(name):
    """What profilers and debuggers call the kernel `name`: letters, digits and underscores."""
    return re.sub(r"\W", "_", f"infinicore_{name}")


def _machine(arch):
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple("nvptx64-nvidia-cuda")
    return target.create_target_machine(cpu=arch, features="+ptx80", opt=3)


def _link_libdevice(module):
    """Add what is called of NVIDIA's library of elementary functions, if anything is."""
    import llvmlite.binding as llvm

    if any(f.is_declaration and f.name.startswith("__nv_") for f in module.functions):
        from cuda.pathfinder import find_bitcode_lib  # in a wheel, or in an installed toolkit

        module.link_in(llvm.parse_bitcode(Path(find_bitcode_lib("device")).read_bytes()))


_SHARED = re.compile(r"(\.shared \.align (\d+) \.b8 \w+\[)(\d+)(\];)")


def _with_aligned_memory(ptx):
    """PTX whose own shared memory ends at a multiple of 1024: dynamic memory lies behind it, where the driver's linker
    puts it without regard to its alignment, of which LLVM has made use.
    """
    own = list(_SHARED.finditer(ptx)) if ".extern .shared" in ptx else []
    if not own:
        return ptx
    *_, last = own
    end = 0
    for one in own:
        end = -(-end // int(one[2])) * int(one[2]) + int(one[3])
    return ptx[: last.start()] + f"{last[1]}{int(last[3]) + -end % 1024}{last[4]}" + ptx[last.end() :]


_SIZE = re.compile(r"(\.param \.align 8 \.b8 kernel_param_0\[)\d+(\])")
_BASE = re.compile(r"mov\.b64 \t(%rd\d+), kernel_param_0;")


def _with_own_size(ptx):
    """(PTX whose parameter is as long as what is read of it, its words; 0 where a place is known only at run time)."""
    names = ["kernel_param_0", *(re.escape(base) for base in _BASE.findall(ptx))]
    uses = sum(len(re.findall(rf"{name}\b(?!\[)", ptx)) for name in names) - 2 * (len(names) - 1)
    reads = re.findall(rf"ld\.param\.b64 \t%rd\d+, \[(?:{'|'.join(names)})(?:\+(\d+))?\]", ptx)
    if len(reads) < uses:
        return ptx, 0
    words = max([HEAD, *(int(offset or 0) // 8 + 1 for offset in reads)])
    return _SIZE.sub(rf"\g<1>{8 * words}\g<2>", ptx), words
