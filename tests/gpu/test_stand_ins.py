"""Functions in place of what GPUs alone have are in the kernels that are asked for with them, and in no others."""

import sys
from pathlib import Path

import pytest
from infinicore.kernels import cuda
from infinicore.kernels.build import disk, jit, render
from infinicore.kernels.cuda.conv import direct

from .. import stand_ins
from . import emulated


def waits(source):
    """Whether threads wait for one another in the code of a kernel, as this process compiles it now."""
    return "llvm.nvvm.barrier" in str(jit._link(Path("kernel.py"), source)[1]._final_module)


@pytest.mark.parametrize("lanes, order", [(2, (True, False, True)), (16, (False, True, False))])
def test_code_of_one_thread_is_not_that_of_many(lanes, order):
    """Compiled by one process, in either order: a cache kept the wrong code under the right name."""
    name, types = "conv.direct.weight", {"T": "float32", "A": "float32", "N": lanes}
    sources = emulated.ALONE.source(name, types), render.stub(name, types, "cuda")
    assert [waits(sources[many]) for many in order] == list(order)


def test_names_of_kernels_mean_what_they_meant():
    assert direct is cuda.conv.direct and direct.thread is not stand_ins.first
    assert direct.sums is not emulated.ALONE.modules["direct"].sums


def test_other_functions_are_other_kernels(tmp_path, monkeypatch):
    """What stands in is a part of the key: its text, and that of all that it imports."""
    name, types = "conv.direct.weight", {"T": "float32", "A": "float32", "N": 4}
    file, paths = tmp_path / "ours.py", []
    for text in ("", "# other"):
        file.write_text(text)
        ours = stand_ins.StandIns(file, (direct, "thread", stand_ins.first))
        paths.append(disk.path_of(name, ours.source(name, types)))
        monkeypatch.delitem(sys.modules, "stand_ins_of_ours")
    assert paths[0] != paths[1]
