"""`copy`, `deepcopy`, DLPack with strides, and `vmap`."""

import copy
import subprocess
import sys

import numpy as np
import pytest

import infinicore as ic


def test_copy_shares_memory_and_deepcopy_does_not():
    x = ic.arange(4.0).requires_grad_()
    one, other = copy.copy(x), copy.deepcopy(x)
    with ic.no_grad():
        x.fill_(7)
    assert one.tolist() == [7.0] * 4 and other.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert one.requires_grad and other.requires_grad and one.is_leaf
    weight = ic.nn.Parameter(ic.ones(2))
    assert type(copy.copy(weight)) is ic.nn.Parameter and copy.copy(weight).data_ptr() == weight.data_ptr()


def test_dlpack_keeps_strides():
    x = ic.arange(12.0).view(3, 4)
    array = np.from_dlpack(x.T[1:, ::2])
    assert array.strides == (4, 32) and np.array_equal(array, x.numpy().T[1:, ::2])
    back = ic.from_dlpack(np.arange(12.0).reshape(3, 4).T[::2])
    assert back.strides == (2, 4) and back.tolist() == [[0.0, 4.0, 8.0], [2.0, 6.0, 10.0]]


@pytest.mark.parametrize("where", ["infinicore", "infinicore.utils.dlpack", "infinicore.interop.array_api"])
def test_what_a_process_takes_first_is_a_tensor(where):
    code = f"import numpy as np, {where} as m; print(m.from_dlpack(np.arange(6.0)).view(2, 3).ndim)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "2\n"


def test_vmap():
    x, w = ic.arange(6.0).view(2, 3).requires_grad_(), ic.arange(3.0)
    y = ic.vmap(lambda row, w: (row * w, row.sum()), in_dims=(0, None))(x, w)
    assert y[0].tolist() == [[0.0, 1.0, 4.0], [0.0, 4.0, 10.0]] and y[1].tolist() == [3.0, 12.0]
    y[0].sum().backward()
    assert x.grad.tolist() == [[0.0, 1.0, 2.0]] * 2
    assert ic.vmap(lambda a: a * 2, in_dims=1, out_dims=1)(w.view(1, 3)).shape == (1, 3)
    with pytest.raises(ValueError, match="`in_dims` of `vmap` has 1 entries for 2 arguments"):
        ic.vmap(lambda a, b: a, in_dims=(0,))(w, w)


def test_alpha_of_sums():
    a, b = ic.tensor([1.0, 2.0]).requires_grad_(), ic.tensor([3.0, 5.0])
    for y in (ic.add(a, b, alpha=2), a.add(b, alpha=2), ic.sub(a, b, alpha=-2)):
        assert y.tolist() == [7.0, 12.0] and y.requires_grad
    assert ic.tensor([1, 2]).add_(ic.tensor([1, 1]), alpha=3).tolist() == [4, 5]
    half = ic.add(ic.tensor([1.0], dtype="bfloat16"), ic.tensor([3.0], dtype="bfloat16"), alpha=0.337)
    assert half.dtype is ic.bfloat16 and half.tolist() == [2.015625]
    with pytest.raises(TypeError, match="`alpha` of `add` must be an integer beside integer tensors"):
        ic.tensor([1]).add(ic.tensor([2]), alpha=0.5)
