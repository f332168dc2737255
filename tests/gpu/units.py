"""What Hopper's copy engine, barriers in shared memory and matrix units of warps do, on the host: for `threads.py`.

Shared memory lies where 32 bits reach it. Copies are there at once; a product of a warp waits for its 32 threads.
"""

import ctypes
import itertools
import mmap

import numpy as np

BYTES = 1 << 18
_LOW = 0x40  # MAP_32BIT
_memory = mmap.mmap(-1, BYTES + 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _LOW)
_whole = np.frombuffer(_memory, np.uint8)
SHARED = -(-_whole.ctypes.data // 1024) * 1024  # the address of dynamic shared memory
_shared = _whole[SHARED - _whole.ctypes.data :]

RUNTIME = """
declare void @py_new(i32, i32)
declare i32 @py_done(i32, i32)
declare void @py_expect(i32, i32)
declare void @py_tile(i32, i64, i32, i32, i32, i32, i32)
declare void @py_bytes(i32, i64, i32, i32)
declare void @py_end(i32)
declare void @py_mma(i32, i32, ptr, i32)
declare i32 @py_narrow(i32, float, float)
declare i32 @py_fma(i32, i32, i32, i32)

define void @sim_new(i32 %at, i32 %count) {
  call void @py_new(i32 %at, i32 %count)
  ret void
}
define void @sim_wait(i32 %at, i32 %parity) {
  call void @sim_wait_either(i32 %at, i32 %at, i32 %parity)
  ret void
}
define void @sim_wait_either(i32 %at, i32 %other, i32 %parity) {
entry:
  br label %ask
ask:
  %one = call i32 @py_done(i32 %at, i32 %parity)
  %two = call i32 @py_done(i32 %other, i32 %parity)
  %done = or i32 %one, %two
  %over = icmp ne i32 %done, 0
  br i1 %over, label %end, label %stay
stay:
  call void @stay_for_shared()
  br label %ask
end:
  ret void
}
define i32 @sim_over(i32 %at, i32 %other, i32 %parity) {
  %one = call i32 @py_done(i32 %at, i32 %parity)
  %two = call i32 @py_done(i32 %other, i32 %parity)
  %done = and i32 %one, %two
  ret i32 %done
}
define void @sim_expect(i32 %at, i32 %nbytes) {
  call void @py_expect(i32 %at, i32 %nbytes)
  call void @tell()
  ret void
}
define void @sim_arrive(i32 %at) {
  call void @py_expect(i32 %at, i32 0)
  call void @tell()
  ret void
}
define void @sim_tile(i32 %to, i64 %map, i32 %i, i32 %j, i32 %k, i32 %l, i32 %at) {
  call void @py_tile(i32 %to, i64 %map, i32 %i, i32 %j, i32 %k, i32 %l, i32 %at)
  call void @tell()
  ret void
}
define void @sim_bytes(i32 %to, i64 %from, i32 %count, i32 %at) {
  call void @py_bytes(i32 %to, i64 %from, i32 %count, i32 %at)
  call void @tell()
  ret void
}
define void @sim_end(i32 %at) {
  call void @py_end(i32 %at)
  ret void
}
define void @sim_clear(i32 %at) noinline {
  %p = inttoptr i32 %at to ptr
  store volatile <4 x i32> zeroinitializer, ptr %p, align 16
  ret void
}
define void @sim_fetch(i64 %map) {
  ret void
}
define void @sim_copy4(i32 %to, i64 %from, i32 %valid) noinline {
  %some = icmp ne i32 %valid, 0
  %p = inttoptr i64 %from to ptr
  %zero = alloca i64
  store i64 0, ptr %zero
  %source = select i1 %some, ptr %p, ptr %zero
  %v = load volatile i32, ptr %source
  %q = inttoptr i32 %to to ptr
  store volatile i32 %v, ptr %q
  ret void
}
define void @sim_copy8(i32 %to, i64 %from, i32 %valid) noinline {
  %some = icmp ne i32 %valid, 0
  %p = inttoptr i64 %from to ptr
  %zero = alloca i64
  store i64 0, ptr %zero
  %source = select i1 %some, ptr %p, ptr %zero
  %v = load volatile i64, ptr %source
  %q = inttoptr i32 %to to ptr
  store volatile i64 %v, ptr %q
  ret void
}
define void @sim_nothing() {
  ret void
}
define i32 @sim_lds(i32 %at) noinline {
  %p = inttoptr i32 %at to ptr
  %a = load volatile i32, ptr %p
  ret i32 %a
}
define {i32, i32} @sim_lds2(i32 %at) noinline {
  %p = inttoptr i32 %at to ptr
  %v = load volatile <2 x i32>, ptr %p, align 4
  %a = extractelement <2 x i32> %v, i32 0
  %b = extractelement <2 x i32> %v, i32 1
  %s = insertvalue {i32, i32} undef, i32 %a, 0
  %t = insertvalue {i32, i32} %s, i32 %b, 1
  ret {i32, i32} %t
}
define {i32, i32, i32, i32} @sim_lds4(i32 %at) noinline {
  %p = inttoptr i32 %at to ptr
  %v = load volatile <4 x i32>, ptr %p, align 4
  %w = call {i32, i32, i32, i32} @four_i32(<4 x i32> %v)
  ret {i32, i32, i32, i32} %w
}
define void @sim_sts4(i32 %at, i32 %a, i32 %b, i32 %c, i32 %d) noinline {
  %p = inttoptr i32 %at to ptr
  %s = insertelement <4 x i32> undef, i32 %a, i32 0
  %t = insertelement <4 x i32> %s, i32 %b, i32 1
  %u = insertelement <4 x i32> %t, i32 %c, i32 2
  %w = insertelement <4 x i32> %u, i32 %d, i32 3
  store volatile <4 x i32> %w, ptr %p, align 4
  ret void
}
define float @sim_ldf(i32 %at) noinline {
  %p = inttoptr i32 %at to ptr
  %a = load volatile float, ptr %p
  ret float %a
}
define {float, float} @sim_ldf2(i32 %at) noinline {
  %p = inttoptr i32 %at to ptr
  %v = load volatile <2 x float>, ptr %p, align 4
  %a = extractelement <2 x float> %v, i32 0
  %b = extractelement <2 x float> %v, i32 1
  %s = insertvalue {float, float} undef, float %a, 0
  %t = insertvalue {float, float} %s, float %b, 1
  ret {float, float} %t
}
define {float, float, float, float} @sim_ldf4(i32 %at) noinline {
  %p = inttoptr i32 %at to ptr
  %v = load volatile <4 x float>, ptr %p, align 16
  %w = call {float, float, float, float} @four_float(<4 x float> %v)
  ret {float, float, float, float} %w
}
define {float, float, float, float} @sim_ldg4(i64 %at, i64 %wanted) noinline {
  %some = icmp ne i64 %wanted, 0
  %p = inttoptr i64 %at to ptr
  %zero = alloca <4 x float>
  store <4 x float> zeroinitializer, ptr %zero
  %source = select i1 %some, ptr %p, ptr %zero
  %v = load volatile <4 x float>, ptr %source, align 16
  %w = call {float, float, float, float} @four_float(<4 x float> %v)
  ret {float, float, float, float} %w
}
define void @sim_stf4(i32 %at, float %a, float %b, float %c, float %d) noinline {
  %p = inttoptr i32 %at to ptr
  %s = insertelement <4 x float> undef, float %a, i32 0
  %t = insertelement <4 x float> %s, float %b, i32 1
  %u = insertelement <4 x float> %t, float %c, i32 2
  %w = insertelement <4 x float> %u, float %d, i32 3
  store volatile <4 x float> %w, ptr %p, align 16
  ret void
}
define void @sim_stf(i32 %at, float %a) noinline {
  %p = inttoptr i32 %at to ptr
  store volatile float %a, ptr %p
  ret void
}
define void @sim_copy16(i32 %to, i64 %from, i32 %valid) noinline {
  %none = icmp eq i32 %valid, 0
  %q = inttoptr i64 %from to ptr
  %p = inttoptr i32 %to to ptr
  br i1 %none, label %zero, label %read
zero:
  store volatile <4 x i32> zeroinitializer, ptr %p, align 16
  ret void
read:
  %v = load volatile <4 x i32>, ptr %q, align 16
  store volatile <4 x i32> %v, ptr %p, align 16
  ret void
}
define i32 @sim_tf32(float %x) {
  %bits = bitcast float %x to i32
  %more = add i32 %bits, 4096
  %all = and i32 %more, -8192
  ret i32 %all
}
define i32 @sim_same(i32 %a) {
  ret i32 %a
}
define i32 @sim_low_halves(i32 %a, i32 %b) {
  %low = and i32 %a, 65535
  %high = shl i32 %b, 16
  %all = or i32 %low, %high
  ret i32 %all
}
define i32 @sim_high_halves(i32 %a, i32 %b) {
  %low = lshr i32 %a, 16
  %high = and i32 %b, -65536
  %all = or i32 %low, %high
  ret i32 %all
}
define i32 @sim_low_bytes(i32 %a) {
  %low = and i32 %a, 255
  %second = and i32 %a, 65280
  %high = shl i32 %second, 8
  %all = or i32 %low, %high
  ret i32 %all
}
define i32 @sim_high_bytes(i32 %a) {
  %moved = lshr i32 %a, 16
  %all = call i32 @sim_low_bytes(i32 %moved)
  ret i32 %all
}
define i32 @sim_halves_below(i32 %a) {
  %halves = bitcast i32 %a to <2 x i16>
  %signs = ashr <2 x i16> %halves, <i16 15, i16 15>
  %all = bitcast <2 x i16> %signs to i32
  ret i32 %all
}
define i32 @sim_masked(i32 %a, i32 %mask, i32 %base) {
  %some = and i32 %a, %mask
  %all = or i32 %some, %base
  ret i32 %all
}
define i32 @sim_masked_not(i32 %a, i32 %mask, i32 %base) {
  %not = xor i32 %a, -1
  %all = call i32 @sim_masked(i32 %not, i32 %mask, i32 %base)
  ret i32 %all
}
define i32 @sim_fma_bf16(i32 %a, i32 %b, i32 %c) {
  %v = call i32 @py_fma(i32 1, i32 %a, i32 %b, i32 %c)
  ret i32 %v
}
define i32 @sim_narrow_bf16(float %a, float %b) {
  %v = call i32 @py_narrow(i32 1, float %a, float %b)
  ret i32 %v
}
define i32 @sim_narrow_f16(float %a, float %b) {
  %v = call i32 @py_narrow(i32 0, float %a, float %b)
  ret i32 %v
}
define i32 @sim_fma_f16(i32 %a, i32 %b, i32 %c) {
  %v = call i32 @py_fma(i32 0, i32 %a, i32 %b, i32 %c)
  ret i32 %v
}
define {float, float, float, float} @sim_mma(i32 %kind, PARAMETERS) noinline {
  %m = alloca [10 x i32], align 16
STORES  %tid = call i32 @sim_tid()
  call void @py_mma(i32 %tid, i32 %kind, ptr %m, i32 0)
  call void @sim_warp()
  call void @py_mma(i32 %tid, i32 %kind, ptr %m, i32 1)
  call void @sim_warp()
  %v = load <4 x float>, ptr %m
  %d0 = extractelement <4 x float> %v, i32 0
  %d1 = extractelement <4 x float> %v, i32 1
  %d2 = extractelement <4 x float> %v, i32 2
  %d3 = extractelement <4 x float> %v, i32 3
  %s = insertvalue {float, float, float, float} undef, float %d0, 0
  %t = insertvalue {float, float, float, float} %s, float %d1, 1
  %u = insertvalue {float, float, float, float} %t, float %d2, 2
  %w = insertvalue {float, float, float, float} %u, float %d3, 3
  ret {float, float, float, float} %w
}
"""
_WORDS = [("float", f"%c{i}") for i in range(4)]
_WORDS += [("i32", f"%{name}{i}") for name, count in (("a", 4), ("b", 2)) for i in range(count)]
_STORES = "".join(
    f"  %p{k} = getelementptr i32, ptr %m, i32 {k}\n  store {kind} {name}, ptr %p{k}\n"
    for k, (kind, name) in enumerate(_WORDS)
)
_MMA = """
define {float, float, float, float} @sim_mma_NAME(PARAMETERS) {
  %v = call {float, float, float, float} @sim_mma(i32 KIND, PARAMETERS)
  ret {float, float, float, float} %v
}
"""


def _mma_of_bytes(name, kind):
    """The same of bytes: their sums are int32, whose bits lie in floats on the way."""
    words = [f"%c{i}" for i in range(4)]
    lines = [f"  %f{i} = bitcast i32 {word} to float" for i, word in enumerate(words)]
    given = ", ".join([f"float %f{i}" for i in range(4)] + [" ".join(word) for word in _WORDS[4:]])
    lines.append(f"  %v = call {{float, float, float, float}} @sim_mma(i32 {kind}, {given})")
    last = "undef"
    for i in range(4):
        lines.append(f"  %e{i} = extractvalue {{float, float, float, float}} %v, {i}")
        lines.append(f"  %s{i} = bitcast float %e{i} to i32")
        lines.append(f"  %r{i} = insertvalue {{i32, i32, i32, i32}} {last}, i32 %s{i}, {i}")
        last = f"%r{i}"
    parameters = ", ".join(f"i32 {word}" for _, word in _WORDS)
    body = "\n".join([*lines, f"  ret {{i32, i32, i32, i32}} {last}"])
    return f"define {{i32, i32, i32, i32}} @sim_mma_{name}({parameters}) {{\n{body}\n}}\n"


def _mma_of_floats():
    """The product of TF32, of which there are too many for Python: each thread adds up its four sums itself."""
    lines, put = [], "%at{0} = getelementptr [8192 x i32], ptr @held, i64 0, i32 %n{0}"
    lines += ["  %tid = call i32 @sim_tid()", "  %own = shl i32 %tid, 3"]
    for k, (_, name) in enumerate(_WORDS[4:]):
        lines += [f"  %n{k} = add i32 %own, {k}", f"  {put.format(k)}", f"  store volatile i32 {name}, ptr %at{k}"]
    lines += ["  call void @sim_warp()", "  %group = and i32 %own, -32", "  %warp = and i32 %own, -256"]
    lines += ["  %two = and i32 %own, 24", "  %columns = shl i32 %two, 3", "  %column = add i32 %columns, %warp"]
    for k in range(8):  # row g of a: words of the threads 4 g + k % 4; column n of b: of 4 n + k % 4
        places = {"a": ("group", 8 * (k % 4) + k // 4 * 2), "e": ("group", 8 * (k % 4) + k // 4 * 2 + 1)}
        places |= {"b": ("column", 8 * (k % 4) + 4 + k // 4), "f": ("column", 32 + 8 * (k % 4) + 4 + k // 4)}
        for name, (start, more) in places.items():
            lines.append(f"  %n{name}{k} = add i32 %{start}, {more}")
            lines.append(f"  {put.format(f'{name}{k}')}")
            lines.append(f"  %v{name}{k} = load volatile float, ptr %at{name}{k}")
    for i, (row, column) in enumerate(("ab", "af", "eb", "ef")):
        total = f"%c{i}"
        for k in range(8):
            lines.append(f"  %p{i}{k} = fmul float %v{row}{k}, %v{column}{k}")
            lines.append(f"  %s{i}{k} = fadd float {total}, %p{i}{k}")
            total = f"%s{i}{k}"
    lines.append("  call void @sim_warp()")
    made = "undef"
    for i in range(4):
        lines.append(f"  %r{i} = insertvalue {{float, float, float, float}} {made}, float %s{i}7, {i}")
        made = f"%r{i}"
    head = "@held = global [8192 x i32] zeroinitializer\ndefine {float, float, float, float} @sim_mma_tf32(PARAMETERS)"
    body = "\n".join(lines)
    return f"{head} noinline {{\n{body}\n  ret {{float, float, float, float}} {made}\n}}\n"


def _matrices(name, turned):
    """Words of four tiles of 8 x 8 halves, whose rows lie where eight threads each say (ldmatrix)."""
    lines = ["  %tid = call i32 @sim_tid()", "  %base = and i32 %tid, -32", "  %lane = and i32 %tid, 31"]
    lines += ["  %group = lshr i32 %lane, 2", "  %four = and i32 %lane, 3", "  %two = shl i32 %four, 1"]
    if turned:  # the same half of two neighbouring rows
        lines += ["  %row = add i32 %base, %two", "  %behind = shl i32 %group, 1"]
    else:
        lines += ["  %row = add i32 %base, %group", "  %behind = shl i32 %four, 2"]
    kind, made = "i16" if turned else "i32", "undef"
    for k in range(4):
        for i in range(1 + turned):
            n = f"{k}{i}"
            lines += [f"  %n{n} = add i32 %row, {8 * k + i}", f"  %r{n} = call i32 @exchange(i32 %at, i32 %n{n})"]
            lines += [f"  %a{n} = add i32 %r{n}, %behind", f"  %p{n} = inttoptr i32 %a{n} to ptr"]
            lines += [f"  %v{n} = load volatile {kind}, ptr %p{n}"]
        if turned:
            lines += [f"  %l{k} = zext i16 %v{k}0 to i32", f"  %m{k} = zext i16 %v{k}1 to i32"]
            lines += [f"  %h{k} = shl i32 %m{k}, 16", f"  %w{k} = or i32 %l{k}, %h{k}"]
        value = f"%w{k}" if turned else f"%v{k}0"
        lines += [f"  %s{k} = insertvalue {{i32, i32, i32, i32}} {made}, i32 {value}, {k}"]
        made = f"%s{k}"
    body = "\n".join(lines)
    four = "{i32, i32, i32, i32}"
    return f"define {four} @{name}(i32 %at) noinline {{\n{body}\n  ret {four} {made}\n}}\n"


_FOUR = """
define {TYPE, TYPE, TYPE, TYPE} @four_TYPE(<4 x TYPE> %v) {
  %a = extractelement <4 x TYPE> %v, i32 0
  %b = extractelement <4 x TYPE> %v, i32 1
  %c = extractelement <4 x TYPE> %v, i32 2
  %d = extractelement <4 x TYPE> %v, i32 3
  %s = insertvalue {TYPE, TYPE, TYPE, TYPE} undef, TYPE %a, 0
  %t = insertvalue {TYPE, TYPE, TYPE, TYPE} %s, TYPE %b, 1
  %u = insertvalue {TYPE, TYPE, TYPE, TYPE} %t, TYPE %c, 2
  %w = insertvalue {TYPE, TYPE, TYPE, TYPE} %u, TYPE %d, 3
  ret {TYPE, TYPE, TYPE, TYPE} %w
}
"""
RUNTIME += "".join(_FOUR.replace("TYPE", kind) for kind in ("i32", "float"))
RUNTIME += _mma_of_floats() + _matrices("sim_matrices", False) + _matrices("sim_matrices_turned", True)
RUNTIME += "".join(_MMA.replace("NAME", name).replace("KIND", kind) for name, kind in (("bf16", "1"), ("f16", "0")))
RUNTIME += "".join(_mma_of_bytes(name, kind) for name, kind in (("u8", 2), ("s8", 3)))
RUNTIME = RUNTIME.replace("STORES", _STORES).replace("PARAMETERS", ", ".join(map(" ".join, _WORDS)))
_COPY = "{\\0A.reg .pred no;\\0Asetp.eq.u32 no, $2, 0;\\0Acp.async.ca.shared.global [$0], [$1], "
ASM = {
    _COPY + "4": "sim_copy4", _COPY + "8": "sim_copy8", "cp.async.commit": "sim_nothing",
    "cp.async.wait": "sim_nothing",
    "ldmatrix.sync.aligned.m8n8.x4.shared": "sim_matrices",
    "ldmatrix.sync.aligned.m8n8.x4.trans": "sim_matrices_turned", "st.shared.v2.b64 [$0], {0, 0}": "sim_clear",
    "cp.async.bulk.shared": "sim_bytes", "mbarrier.inval": "sim_end",
    "mbarrier.init": "sim_new", "{\\0A.reg .pred p;\\0AWAIT": "sim_wait", "mbarrier.arrive.expect_tx": "sim_expect",
    "{\\0A.reg .pred p, q;\\0AEITHER": "sim_wait_either", "{\\0A.reg .pred p, q;\\0A// OVER": "sim_over",
    "mbarrier.arrive.shared": "sim_arrive", "cp.async.bulk.tensor.4d": "sim_tile", "{\\0A.reg .b64 once": "sim_tile",
    "prefetch.tensormap": "sim_fetch", "prefetch.global": "sim_fetch",
    "fence.": "sim_nothing", "griddepcontrol.wait": "sim_nothing", "ld.shared.u32": "sim_lds",
    "ld.shared.v2.u32": "sim_lds2", "ld.shared.v4.u32": "sim_lds4", "st.shared.v4.b32": "sim_sts4",
    "mov.b32 $0, $1": "sim_same",
    "prmt.b32 $0, $1, $2, 0x5410": "sim_low_halves", "prmt.b32 $0, $1, $2, 0x7632": "sim_high_halves",
    f"prmt.b32 $0, $1, 0, {0x4140}": "sim_low_bytes", f"prmt.b32 $0, $1, 0, {0x4342}": "sim_high_bytes",
    f"prmt.b32 $0, $1, 0, {0xBB99}": "sim_halves_below",
    f"lop3.b32 $0, $1, $2, $3, {0xEA}": "sim_masked", f"lop3.b32 $0, $1, $2, $3, {0xAE}": "sim_masked_not",
    "cvt.rn.bf16x2.f32": "sim_narrow_bf16", "cvt.rn.f16x2.f32": "sim_narrow_f16",
    "fma.rn.bf16x2": "sim_fma_bf16", "fma.rn.f16x2": "sim_fma_f16",
    "mma.sync.aligned.m16n8k16.row.col.f32.bf16": "sim_mma_bf16",
    "mma.sync.aligned.m16n8k16.row.col.f32.f16": "sim_mma_f16",
    "mma.sync.aligned.m16n8k8.row.col.f32.tf32": "sim_mma_tf32",
    "mma.sync.aligned.m16n8k32.row.col.s32.u8": "sim_mma_u8",
    "mma.sync.aligned.m16n8k32.row.col.s32.s8": "sim_mma_s8",
    "{\\0A.reg .pred no;\\0Asetp.eq.u32 no, $2, 0;\\0Acp.async.cg.shared.global [$0], [$1], 16": "sim_copy16",
    "cp.async.commit_group": "sim_nothing", "cp.async.wait_group": "sim_nothing",
    "ld.shared.f32": "sim_ldf", "ld.shared.v2.f32": "sim_ldf2", "st.shared.f32": "sim_stf",
    "ld.shared.v4.f32": "sim_ldf4", "st.shared.v4.f32": "sim_stf4",
    "{\\0A.reg .pred p;\\0Asetp.ne.b64 p, $5, 0;\\0Amov.f32 $0": "sim_ldg4",
    "cvt.rna.tf32.f32": "sim_tf32",
}  # fmt: skip

_barriers = {}  # shared address -> [arrivals of a phase, those that are missing, bytes that are missing, phases so far]
_maps, _numbers = {}, itertools.count(1)
_warps = {}  # first thread -> what its threads hold
_size = {"int8": 1, "float16": 2, "bfloat16": 2}


def tensor_map(dtype, sizes, strides, box, swizzled=True):
    """The words of a map: its address, which is open, and its number here."""
    number = next(_numbers)
    _maps[number] = _size[dtype], sizes, (_size[dtype], *strides), box, swizzled
    return (0, number, *[0] * 14)


def _count(at, arrivals, nbytes):
    state = _barriers[at]
    state[1] -= arrivals
    state[2] += nbytes
    if state[1] == state[2] == 0:
        state[1], state[3] = state[0], state[3] + 1


def _new(at, count):
    _barriers[at] = [count, count, 0, 0]


def _end(at):
    state = _barriers.pop(at)
    assert state[1:3] == [state[0], 0], "a barrier ends amid a phase"


def _bytes(to, source, count, at):
    assert to % 16 == source % 16 == count % 16 == 0 < count
    ctypes.memmove(to, source, count)
    _count(at, 0, -count)


def _done(at, parity):
    return _barriers[at][3] & 1 != parity


def _tile(to, tensor, *rest):
    *places, at = rest
    words = (ctypes.c_int64 * 2).from_address(tensor)
    size, sizes, strides, box, swizzled = _maps[words[1]]
    length, first = box[0] * size, to - SHARED
    assert words[0] % 16 == 0 and (not swizzled or length == 128)
    lines = np.zeros((box[3], box[2], box[1], length), np.uint8)
    inside = max(0, min(box[0], sizes[0] - places[0])) * size
    for l, k, j in itertools.product(*map(range, lines.shape[:3])):
        where = places[1] + j, places[2] + k, places[3] + l
        if all(0 <= place < limit for place, limit in zip(where, sizes[1:])):
            address = words[0] + places[0] * size + sum(map(int.__mul__, where, map(int, strides[1:])))
            lines[l, k, j, :inside] = np.frombuffer(ctypes.string_at(address, inside), np.uint8)
    lines = lines.reshape(-1, length)
    if swizzled:
        pieces = lines.reshape(-1, 8, 16)
        turn = (first // 128 + np.arange(len(lines))) & 7
        lines = pieces[np.arange(len(lines))[:, None], np.arange(8) ^ turn[:, None]]
    _shared[first : first + lines.size] = lines.reshape(-1)
    _count(at, 0, -lines.size)


def _floats(words, bf16):
    """The 16-bit floats of words, the low ones first."""
    halves = np.asarray(words, np.uint32).reshape(-1).view(np.uint16)
    if bf16:
        return (halves.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return halves.view(np.float16).astype(np.float64)


def _fma(bf16, a, b, c):
    """Exact results alone, and infinity: those of small integers and of powers of 2 are."""
    with np.errstate(invalid="ignore", over="ignore"):
        found = np.prod([_floats([v & 0xFFFFFFFF], bf16) for v in (a, b)], axis=0) + _floats([c & 0xFFFFFFFF], bf16)
        found = found.astype(np.float32 if bf16 else np.float16)
    bits = found.view(np.uint32) >> 16 if bf16 else found.view(np.uint16)
    np.testing.assert_array_equal(_floats([int(bits[0]) | int(bits[1]) << 16], bf16), found)
    return ctypes.c_int32(int(bits[0]) | int(bits[1]) << 16).value


def _narrow(bf16, high, low):
    """Two floats as halves of a word, rounded to the nearest, which of two is even."""
    values = np.array([low, high], np.float32)
    if bf16:
        bits = values.view(np.uint32)
        halves = np.where(np.isnan(values), 0x7FFF, (bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    else:
        with np.errstate(over="ignore"):
            halves = values.astype(np.float16).view(np.uint16)
    return ctypes.c_int32(int(halves[0]) | int(halves[1]) << 16).value


def _mma(tid, kind, at, given):
    """First each thread gives what it holds, the last one of them multiplies, and then each takes its part."""
    first, lane = tid & ~31, tid & 31
    held, those = _warps.setdefault(first, (np.zeros((32, 10), np.uint32), set()))
    own = np.frombuffer((ctypes.c_uint32 * 10).from_address(at), np.uint32)
    if given:
        own[:4] = held[lane, :4]
        return
    held[lane] = own
    those.add(lane)
    if len(those) == 32:
        those.clear()
        if kind > 1:
            _multiply_bytes(held, np.int8 if kind == 3 else np.uint8)
        else:
            _multiply(held, kind)


def _multiply_bytes(held, kind):
    a, b, row, four = np.zeros((16, 32)), np.zeros((32, 8)), np.arange(32) // 4, 4 * (np.arange(32) % 4)
    for word, (down, right) in enumerate(((0, 0), (8, 0), (0, 16), (8, 16))):
        values = held[:, 4 + word].copy().view(kind).reshape(32, 4)
        for i in range(4):
            a[row + down, four + right + i] = values[:, i]
    for word in range(2):
        values = held[:, 8 + word].copy().view(np.int8).reshape(32, 4)
        for i in range(4):
            b[four + 16 * word + i, row] = values[:, i]
    sums = (a @ b).astype(np.int64)
    for k, (down, right) in enumerate(((0, 0), (0, 1), (8, 0), (8, 1))):
        found = held[:, k].copy().view(np.int32) + sums[row + down, 2 * (np.arange(32) % 4) + right]
        held[:, k] = found.astype(np.int32).view(np.uint32)


def _multiply(held, bf16):
    sums = np.zeros((16, 8))
    a, b, row, two = np.zeros((16, 16)), np.zeros((16, 8)), np.arange(32) // 4, 2 * (np.arange(32) % 4)
    for word, (down, right) in enumerate(((0, 0), (8, 0), (0, 8), (8, 8))):
        values = _floats(held[:, 4 + word].copy(), bf16).reshape(32, 2)
        a[row + down, two + right], a[row + down, two + right + 1] = values.T
    for word in range(2):
        values = _floats(held[:, 8 + word].copy(), bf16).reshape(32, 2)
        b[two + 8 * word, row], b[two + 8 * word + 1, row] = values.T
    c = held[:, :4].copy().view(np.float32)
    for k, (down, right) in enumerate(((0, 0), (0, 1), (8, 0), (8, 1))):
        sums[row + down, two + right] = c[:, k]
    with np.errstate(invalid="ignore", over="ignore"):  # of rows that are not there
        sums = (sums + a @ b).astype(np.float32)
    for k, (down, right) in enumerate(((0, 0), (0, 1), (8, 0), (8, 1))):
        held[:, k] = sums[row + down, two + right].view(np.uint32)


_I32, _I64 = ctypes.c_int32, ctypes.c_int64
_CALLS = {
    "py_new": (_new, None, _I32, _I32), "py_done": (_done, _I32, _I32, _I32),
    "py_expect": (lambda at, nbytes: _count(at, 1, nbytes), None, _I32, _I32),
    "py_bytes": (_bytes, None, _I32, _I64, _I32, _I32), "py_end": (_end, None, _I32),
    "py_tile": (_tile, None, _I32, _I64, *[_I32] * 5), "py_mma": (_mma, None, _I32, _I32, _I64, _I32),
    "py_fma": (_fma, _I32, *[_I32] * 4), "py_narrow": (_narrow, _I32, _I32, *[ctypes.c_float] * 2),
}  # fmt: skip
_kept = {name: ctypes.CFUNCTYPE(result, *kinds)(function) for name, (function, result, *kinds) in _CALLS.items()}
SYMBOLS = {name: ctypes.cast(function, ctypes.c_void_p).value for name, function in _kept.items()}
SYMBOLS["dynamic_shared"] = SHARED
