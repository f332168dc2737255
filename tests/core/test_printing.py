"""Tensors as text: laid out as PyTorch's are."""

import re

import pytest

import infinicore as ic


@pytest.mark.parametrize(
    "x, text",
    [
        (ic.tensor([1.0, 2.5]), "tensor([1.0000, 2.5000])"),
        (ic.tensor([1.0, -0.0]), "tensor([1., -0.])"),
        (ic.tensor([1e-5, 1.0]), "tensor([1.0000e-05, 1.0000e+00])"),  # not [0.0000, 1.0000]
        (ic.tensor([1001.0, 1.0]), "tensor([1.0010e+03, 1.0000e+00])"),
        (ic.tensor([float("nan"), 1.5]), "tensor([   nan, 1.5000])"),
        (ic.zeros(0), "tensor([])"),
        (ic.zeros(2, 0, dtype="int64"), "tensor([], size=(2, 0), dtype=infinicore.int64)"),
        (ic.ones(1, dtype="float64"), "tensor([1.], dtype=infinicore.float64)"),
        (ic.tensor([1 + 2j, -3.5]), "tensor([ 1.0000+2.j, -3.5000+0.j])"),
        (ic.arange(2000), "tensor([   0,    1,    2,  ..., 1997, 1998, 1999])"),
        (ic.ones(2, requires_grad=True), "tensor([1., 1.], requires_grad=True)"),
        (ic.ones(2, requires_grad=True).sum() * 2, "tensor(4., grad_fn=<MulBackward0>)"),
    ],
)
def test_texts(x, text):
    assert repr(x) == text


NUMBERS = [
    "tensor([0.1, 100.0])", "tensor([0.001, 1.1])", "tensor([1e8 + 8, 1.0])", "tensor([1e8, 2.0])",
    "tensor([1e-5, 0.0])", "tensor([float('inf'), 1.0])", "tensor([123456.789])",
    "tensor([[0.1, 1000.0], [3.0, 4.0]])", "tensor(1e-8 + 2j)",
    "tensor([-1.0, 100.0])", "tensor([[1, -20], [300, 4]])", "tensor([True, False])", "tensor(5)", "zeros(0, 3)",
    "tensor([1e-300, 1e300], dtype={0}.float64)", "tensor([1 + 2j, 3 - 4.5j], dtype={0}.complex128)",
    "tensor([1.5, 3.0], dtype={0}.bfloat16)", "tensor([1.25], dtype={0}.float16)", "arange(30.0) / 7", "arange(60)",
    "arange(2000.0)", "zeros(40, 40)", "arange(4800).reshape(2, 40, 60)", "zeros(1200, 2)", "zeros(3, 2, 2) / 3",
    "complex({0}.arange(1200.0), -{0}.arange(1200.0))", "ones(30).requires_grad_()", "ones(30).requires_grad_() * 1.5",
    "ones(9, dtype={0}.float64).requires_grad_() * 1.5", "empty(0, dtype={0}.uint8)",
]  # fmt: skip


@pytest.mark.parametrize(
    "options",
    [{}, {"precision": 2}, {"sci_mode": True}, {"precision": 2, "sci_mode": False, "linewidth": 40},
     {"threshold": 5, "edgeitems": 1}, {"profile": "short"}, {"profile": "full"}],
)  # fmt: skip
def test_as_pytorch(options):
    torch = pytest.importorskip("torch")
    shown = NUMBERS if options.get("profile") != "full" else NUMBERS[:20]
    torch.set_printoptions(**options)
    try:
        with ic.printoptions(**options):
            for number in shown:
                texts = []
                for library in (torch, ic):
                    made = eval(f"{{0}}.{number}".format(library.__name__), {library.__name__: library})
                    text = repr(made).replace("torch.", "infinicore.")
                    texts.append(re.sub(r",\s+dtype", ", dtype", text))  # our name is longer, and may need a new line
                assert texts[0] == texts[1], number
    finally:
        torch.set_printoptions(profile="default")
