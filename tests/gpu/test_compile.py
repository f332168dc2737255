"""Kernels for GPUs compile where there is none: to PTX, and by ptxas, where that is installed."""

import importlib.util
import os
import re
import subprocess
import sys

import pytest

pytest.importorskip("numba_cuda", reason="needs numba-cuda")

from infinicore.kernels import OPS as TABLE
from infinicore.kernels.blocks.comm import AVG, SUM
from infinicore.kernels.build import render
from infinicore.kernels.cuda import load, policy

from infinicore import cache

from .without import assembled, ptxas

# A kernel of each kind: elementwise (contiguous, strided), reductions in one and two launches, rows for a block,
# products with an epilogue, attention and its derivative, and CPU kernels with a thread for each item.
OPS = ("add", "erf", "sum", "softmax", "rms_norm", "linear", "scaled_dot_product_attention", "embedding")


@pytest.fixture(scope="module", params=["sm_80", "sm_90a"])
def compiled(request, tmp_path_factory):
    """(architecture, folder of PTX)."""
    folder = tmp_path_factory.mktemp(request.param)
    names = cache.compile_for_gpu(request.param, OPS, ["bfloat16"], folder)
    wanted = {
        "add-bfloat16-bfloat16-bfloat16-strided",
        "erf-bfloat16-bfloat16",
        "norm.softmax.softmax_narrow-bfloat16-32-4-False",
        "norm.softmax.softmax_narrow-bfloat16-256-3-False",
        "norm.softmax.softmax_narrow-bfloat16-32-2-True",
    }
    assert wanted <= set(names) and len(names) > 14 and any("rms_norm-bfloat16-bfloat16-" in x for x in names)
    return request.param, folder


def test_ptx_is_for_the_architecture_and_reads_its_block_from_the_parameters(compiled):
    arch, folder = compiled
    for path in folder.glob("*.ptx"):
        text = path.read_text()
        assert f".target {arch}" in text and f".visible .entry infinicore_{re.sub('[.-]', '_', path.stem)}(" in text
        assert re.search(r"ld\.param\.b64\s+\S+ \[(kernel_param_0|%rd\d+)", text), path.name
    add = (folder / "add-bfloat16-bfloat16-bfloat16.ptx").read_text()
    accesses = [re.findall(rf"{way}\.(?:global\.)?v4\.b32", add) for way in ("ld", "st")]
    assert [len(found) for found in accesses] == [2, 1]  # of 16 bytes


def test_registers_are_enough(compiled):
    arch, folder = compiled
    if ptxas() is None:
        pytest.skip("ptxas is not installed")
    for path in folder.glob("*.ptx"):
        found = assembled(path.read_bytes(), arch)
        assert found.spilled <= 16, f"{path.name}: {found.said}"  # masks of a few branches, outside of loops


@pytest.mark.parametrize(
    "columns, dtype, result, instruction",
    [
        (256, "float32", "float32", "m64n256k8.f32.tf32.tf32"),
        (256, "float8_e4m3", "bfloat16", "m64n128k32.f32.e4m3.e4m3"),  # half of the columns of a tile at a time
        (192, "float8_e4m3", "float32", "m64n192k32.f32.e4m3.e4m3"),
        (256, "int8", "int32", "m64n256k32.s32.s8.s8"),
        (256, "int8", "float16", "m64n256k32.s32.s8.s8"),
        (256, "bfloat16", "float32", "m64n256k16.f32.bf16.bf16"),
    ],
)
def test_products_by_the_type_of_operands(columns, dtype, result, instruction):
    name, types = f"gemm.wgmma.nt_{columns}", {"T": dtype, "R": result, "ACT": None}
    label = "-".join([name, dtype, result, "None"])
    _, _, ptx = load.compiled(label, render.stub(name, types, "cuda"), "sm_90a", policy.shape(name))
    found = re.findall(r"wgmma\.mma_async\.sync\.aligned\.(\S+)", ptx.decode())
    assert set(found) == {instruction} and len(found) == columns // int(re.search(r"n(\d+)k", instruction)[1]) * 4
    assert (b", part0;" in ptx) == ("e4m3" in dtype)  # sums of 128 of k are added to those of float32
    if found := assembled(ptx):
        assert "C75" not in found.said, found.said  # products are not serialised
        assert found.spilled <= (100 if "n128" in instruction else 0), found.said


@pytest.mark.in_turn("arch")
@pytest.mark.parametrize(
    "name, types",
    [
        ("comm.peers.all_reduce", {"T": "bfloat16", "HOW": SUM, "SIZE": 3}),
        ("comm.peers.all_gather", {"T": "uint64", "SIZE": 2}),
        ("comm.peers.all_gather", {"T": "uint8", "SIZE": 3}),
    ],
)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_what_other_gpus_see(name, types, arch):
    """Flags are stored with release and loaded with acquire, for all GPUs, between barriers of the block."""
    label, shape = "-".join([name, *map(str, types.values())]), policy.shape(name)
    _, _, ptx = load.compiled(label, render.stub(name, types, "cuda"), arch, shape)
    text = ptx.decode()
    store, wait = text.index("st.release.sys.u64"), text.index("ld.acquire.sys.u64", text.index("st.release.sys"))
    assert store < wait and "bar.sync" in text[:store] and "bar.sync" in text[wait:]
    # it may begin beside the launch before it, whose result it gives away
    assert arch == "sm_80" or text.index("griddepcontrol.wait") < text.index("bar.sync")
    assembled(ptx, arch)


@pytest.mark.in_turn("arch")
@pytest.mark.parametrize(
    "name, types",
    [
        ("comm.copies.meet", {"SIZE": 2}),
        ("comm.copies.meet", {"SIZE": 8}),
        ("comm.copies.whole", {"T": "float32", "HOW": AVG, "SIZE": 2, "PULLED": True}),
        ("comm.copies.whole", {"T": "bfloat16", "HOW": AVG, "SIZE": 2, "PULLED": True}),
        ("comm.copies.whole", {"T": "float32", "HOW": SUM, "SIZE": 2, "PULLED": False}),
        ("comm.copies.ragged", {"T": "bfloat16", "HOW": SUM, "SIZE": 3, "PULLED": True}),
    ],
)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_what_runs_beside_copy_engines(name, types, arch):
    """Warps, but of what is ragged, that find room beside a product with 64,512 of 65,536 registers."""
    label, shape = "-".join([name, *map(str, types.values())]), policy.shape(name)
    _, words, ptx = load.compiled(label, render.stub(name, types, "cuda"), arch, shape)
    text = ptx.decode()
    assert words > 0  # of the block: none is looked up by a number that is known only when it runs
    if name.endswith("meet"):
        assert text.index("st.release.sys.u64") < text.index("ld.acquire.sys.u64")
    elif name.endswith("whole"):
        assert text.count("ld.v4.b32") == 2 and "bar.sync" not in text
    if found := assembled(ptx, arch):
        assert found.spilled == 0, found.said
        assert name.endswith("ragged") or found.registers * shape.threads <= 1024


@pytest.mark.parametrize("name, kind", [("all_reduce_few", "v2.b64"), ("all_reduce_packets", "b128")])
def test_what_says_its_round(name, kind):
    """Pairs of 64 bits, each stored and loaded as a whole, or 128 bits; nothing waits for other threads' stores."""
    types, name = {"T": "bfloat16", "HOW": SUM, "SIZE": 2}, f"comm.peers.{name}"
    label = "-".join([name, *map(str, types.values())])
    _, _, ptx = load.compiled(label, render.stub(name, types, "cuda"), "sm_90a", policy.shape(name))
    text = ptx.decode()
    places = [text.index(f"{what}.relaxed.sys.global.{kind}") for what in ("st", "ld")]
    assert text.index("griddepcontrol.wait") < min(places) and "fence" not in text and "membar" not in text
    if found := assembled(ptx):
        assert found.spilled == 0, found.said


@pytest.mark.parametrize("name", ["attend_bulk_64", "attend_128"])
def test_dynamic_memory_begins_at_a_multiple_of_1024(name):
    """Behind what a kernel has of its own, where the driver's linker puts it (`target._with_aligned_memory`)."""
    types, name = {"T": "bfloat16"}, f"attention.grouped.{name}"
    source = render.stub(name, types, "cuda")
    _, _, ptx = load.compiled(f"{name}-bfloat16", source, "sm_90a", policy.shape(name))
    own = re.findall(r"\.shared \.align \d+ \.b8 \w+\[(\d+)\]", ptx.decode())
    assert sum(map(int, own)) == 1024 and ".extern .shared .align 1024" in ptx.decode()
    if found := assembled(ptx):
        assert found.spilled <= 8, found.said


HALVES = {"T": "bfloat16", "R": "bfloat16", "ACT": None}
PANELS = {"F": "int4", "T": "bfloat16", "SLABS": 8, "PARAMS": 512}
TURNED = {"T": "bfloat16", "C": "float32", "P": "int64", "U": "uint16"}


@pytest.mark.parametrize(
    "name, types",
    [
        ("gemm.stream.product_16_4", HALVES),
        ("gemm.stream.normed_8_4", HALVES | {"TEAM": 128, "PIECES": 4}),
        ("gemm.stream.gated_8_4", HALVES | {"RULE": TABLE["swiglu"]}),
        ("gemm.stream.telling_8_4", HALVES | {"SIZE": 2}),
        ("gemm.stream.heard_gating_8_4", HALVES | {"TEAM": 256, "PIECES": 3, "GATE": TABLE["swiglu"], "SIZE": 3}),
        ("quant.stream.normed_gating_2_7", PANELS | {"TEAM": 128, "PIECES": 4, "GATE": TABLE["swiglu"]}),
        ("quant.floats.product_8_7", PANELS),
        ("quant.stream.product_2_7", PANELS),
        ("quant.stream.product_2_2", PANELS | {"F": "uint8"}),
        ("quant.stream.normed_2_7", PANELS | {"TEAM": 128, "PIECES": 4}),
        ("quant.stream.gated_2_7", PANELS | {"RULE": TABLE["swiglu"]}),
        ("quant.floats.product_16_7", PANELS | {"SLABS": 4, "PARAMS": 256}),
        ("quant.floats.product_16_3", {"F": "q4_k", "T": "float16", "SLABS": 8, "PARAMS": 640}),
        ("attention.rope.rope_halves_write", TURNED),
        ("attention.grouped.turned_halves_128", TURNED),
        ("attention.grouped.turned_interleaved_64", TURNED),
        ("attention.grouped.turned_halves_256", TURNED),
    ],
)
def test_who_waits_for_the_launches_before(name, types):
    """Kernels say at once that the next one may begin; early ones bring their matrix before they wait."""
    label = "-".join([name, *(str(getattr(value, "name", value)) for value in types.values())])
    shape = policy.shape(name)
    _, _, ptx = load.compiled(label, render.stub(name, types, "cuda"), "sm_90a", shape)
    text = ptx.decode()
    first, wait = text.index("griddepcontrol.launch_dependents"), text.index("griddepcontrol.wait")
    early = name.startswith(("gemm.stream", "quant.stream", "quant.floats"))
    assert first < wait and shape.early == early and shape.early == ("bar.sync" in text[:wait])
    write, source = "attention.kvcache.write", render.stub("attention.kvcache.write", {"T": "uint16"}, "cuda")
    _, _, older = load.compiled(f"{write}-uint16", source, "sm_80", policy.shape(write))
    assert b"griddepcontrol" not in older
    if found := assembled(ptx):
        assert found.spilled == 0, found.said


PLACED = {"DIMS": 2, "WIDE": False}


@pytest.mark.in_turn("arch")
@pytest.mark.parametrize(
    "name, types, instructions",
    [
        ("array.elements.gather", {"T": "uint32", "V": "uint32", "I": "int64"} | PLACED, ()),
        ("array.elements.scatter_rows", {"T": "uint16", "I": "int64"} | PLACED, ()),
        ("array.elements.scatter_add", {"T": "float32", "V": "bfloat16", "I": "int64"} | PLACED, ("global.add.f32",)),
        ("array.elements.scatter_add", {"T": "int64", "V": "bool", "I": "int32"} | PLACED, ("global.add.u64",)),
        ("array.elements.scatter_multiply", {"T": "float64", "V": "float64", "I": "int64"} | PLACED, ("cas.b64",)),
        ("array.elements.scatter_larger", {"T": "float32", "V": "float32", "I": "int64"} | PLACED,
         ("max.s32", "min.u32")),
        ("array.elements.scatter_smaller", {"T": "float16", "V": "float16", "I": "int64"} | PLACED, ("cas.b32",)),
        ("array.counts.count", {"T": "int64", "V": "int64", "I": "int64"}, ("shared.add.u32", "global.add.u64")),
        ("array.counts.bins", {"T": "float32", "SHARED": True}, ("shared.add.u32", "global.add.u64")),
        ("array.scatter.add_few", {"T": "float32", "V": "float32", "A": "float64", "C": "float32", "I": "int64"}, ()),
        ("array.gather.gather_rows", {"E": "uint16", "I": "int64", "WIDE": False}, ()),
        ("array.repeats.repeated", {"I": "int64"}, ()),
    ],
)  # fmt: skip
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_elements_by_index(name, types, instructions, arch):
    """What several threads do to the same element are single instructions of memory, where there are such."""
    label = "-".join([name, *map(str, types.values())])
    _, _, ptx = load.compiled(label, render.stub(name, types, "cuda"), arch, policy.shape(name, types))
    found = set(re.findall(r"atom\.(\S+)", ptx.decode()))
    assert all(any(one.endswith(wanted) for one in found) for wanted in instructions), found
    if found := assembled(ptx, arch):
        assert found.spilled == 0, found.said


@pytest.mark.in_turn("arch")
@pytest.mark.parametrize(
    "name, types",
    [
        ("reduce.sweep.count", {"E": "uint32", "KIND": 2, "DIGIT_COUNT": 4}),
        ("reduce.sweep.move", {"E": "uint32", "KIND": 2, "I": "int32", "K": 16, "FIRST": False, "LAST": False}),
        ("reduce.sweep.move", {"E": "uint16", "KIND": 2, "I": "int64", "K": 16, "FIRST": False, "LAST": True}),
        ("reduce.sweep.move", {"E": "uint64", "KIND": 1, "I": "int32", "K": 8, "FIRST": True, "LAST": False}),
        ("reduce.radix.rows_8192", {"E": "uint32", "KIND": 2, "BYTES": 4}),
        ("reduce.first.first", {"E": "uint32", "KIND": 2, "BYTES": 4, "FIRST": True, "LAST": True}),
        ("array.firsts.first_of_runs", {"T": "bfloat16", "E": "uint16"}),
        ("array.firsts.first_of_runs", {"T": "float32", "E": "uint32"}),
        ("array.firsts.first_of_runs", {"T": "float64", "E": "uint64"}),
    ],
)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_sorts(name, types, arch):
    """Votes leave room for other predicates; of memory, nobody asks which kind it is, where that is written."""
    label = "-".join([name, *map(str, types.values())])
    _, _, ptx = load.compiled(label, render.stub(name, types, "cuda"), arch, policy.shape(name, types))
    text = ptx.decode()
    if name == "reduce.sweep.move":
        assert not re.findall(r"\b(?:ld|st)\.(?:b|u)(?:8|16|32)\b", text)
        assert text.count("ld.shared.b32") > types["K"] and text.count("vote.sync.ballot.b32") == 8 * types["K"]
    if found := assembled(ptx, arch):
        assert found.spilled <= (0 if "first.first" not in name else 200), found.said


@pytest.mark.parametrize(
    "name, types, most",
    [
        *((f"conv.units.sums_{size}", {"T": "bfloat16", "VOLUME": True, "WHOLE": True}, 0) for size in ("1_4", "2_4")),
        ("conv.units.sums_4_4", {"T": "float16", "VOLUME": False, "WHOLE": False}, 0),
        ("attention.tiles.attend_32_64_few", dict.fromkeys(("T", "C"), "float32"), 64),
    ],
)
def test_products_of_warps_stay_in_registers(name, types, most):
    """Of several blocks of a multiprocessor, whose warps hide one another's waits."""
    if "attend" in name:
        types |= dict.fromkeys(("SCALED", "MASK", "DROPOUT"), 0)
    label = "-".join([name, *map(str, types.values())])
    _, _, ptx = load.compiled(label, render.stub(name, types, "cuda"), "sm_90a", policy.shape(name, types))
    assert "mma.sync.aligned.m16n8k" in ptx.decode()
    if ptxas() is None:
        pytest.skip("ptxas is not installed")
    found = assembled(ptx)
    assert found.spilled <= most, found.said


@pytest.mark.parametrize("name", ["positions_backward", "max_pool_backward", "mean_pool_backward"])
def test_cpu_kernels_with_scratch_of_a_thread(name):
    """A thread of a GPU does one plane, so that its number is the plane's."""
    types = {"thread": True, "T": "float32"}
    types |= {"ADAPTIVE": False, "VOLUME": False} if "mean" in name else {"I": "int64"}
    types |= {"VOLUME": False} if "max" in name else {}
    source = render.stub(f"conv.pooling.{name}", types, thread="lo")
    _, _, ptx = load.compiled(f"conv.pooling.{name}-float32", source, "sm_90a", policy.shape(name))
    assert b".entry infinicore_conv_pooling_" + name.encode() in ptx


def test_names_of_kernels_that_graphs_join(tmp_path):
    """`fuse.py` reads the types of kernels off their names."""
    ops = ("add_rms_norm", "rope_qk", "paged_caching", "silu_and_mul")
    names = cache.compile_for_gpu("sm_90a", ops, ["bfloat16"], tmp_path)
    assert "attention.rope.rope_halves_write-bfloat16-float32-int64-uint16" in names
    assert any(name.startswith("swiglu-bfloat16-bfloat16-bfloat16") for name in names)
    for start in ("norm.rows.add_rms_norm-bfloat16-bfloat16", "attention.rope.rope_halves-bfloat16-"):
        assert any(name.startswith(start) for name in names), (start, names)
    (rope,) = {name.count("-") for name in names if name.startswith("attention.rope.rope_halves-")}
    assert rope == 3 and "attention.kvcache.write-uint16" in names


@pytest.mark.slow
def test_kernels_that_graphs_of_models_join_are_compiled_ahead():
    names = cache.compile_for_gpu("sm_90a", ["linear", "silu_and_mul"], ["bfloat16"])
    gated = {f"gemm.stream.gated_8_{bands}-bfloat16-bfloat16-None-swiglu" for bands in (1, 2, 3, 4)}
    assert gated <= set(names) and not any("normed" in name for name in names)
    older = cache.compile_for_gpu("sm_80", ["linear", "silu_and_mul"], ["bfloat16"])
    assert not any("gated" in name for name in older)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_products_of_float64(arch):
    """Whose vectors have two lanes, in the epilogue that all products share as well."""
    names = cache.compile_for_gpu(arch, ["linear", "matmul"], ["float64"])
    assert any(name.startswith("gemm.fma.float64" if arch == "sm_90a" else "gemm.tiled") for name in names)


def test_a_kernel_of_ones_own(root):
    """That of the example, through the same compiler."""
    spec = importlib.util.spec_from_file_location("own_cuda_kernel", root / "examples" / "own_cuda_kernel.py")
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    own = example.softmax_rows
    _, words, ptx = load.compiled("own.softmax_rows", own._source, "sm_90a", own.shape)
    assert words == 4 + example.ROWS.WIDTH and b"ex2.approx" in ptx and b".maxntid 256" in ptx


def test_what_lies_in_the_current_folder_compiles_nothing(tmp_path):
    (tmp_path / "infinicore.py").write_text("raise RuntimeError('not this one')")
    code = "from pathlib import Path; from infinicore import cache; "
    code += "print(*cache.compile_for_gpu('sm_80', ['add'], ['float32'], Path('ptx')))"
    environment = dict(os.environ, INFINICORE_CACHE_DIR=str(tmp_path / "cache"))
    line = [sys.executable, "-P", "-c", code]
    done = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert "add-float32-float32-float32" in done.stdout.split(), done.stderr


def test_an_architecture_that_does_not_exist():
    with pytest.raises(ValueError, match="`arch` must be one of sm_80"):
        cache.compile_for_gpu("sm_1", ["add"])
    with pytest.raises(ValueError, match="`ops` must be names of the op table"):
        cache.compile_for_gpu("sm_80", ["add", "nothing"])
