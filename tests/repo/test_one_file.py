"""A new op is one file: its function, `out=`, method, derivative, stub, page and example follow from it."""

import subprocess
import sys
import textwrap

import pytest

FILES = {
    "elementwise": '''
        from infinicore.kernels.lang import scalar_math as m
        from infinicore.kernels.table.registry import elementwise

        @elementwise(ref=lambda x: x / (1 + abs(x)), dtypes=("float32",))
        def tested_op(input):
            """x / (1 + |x|)."""
            return input / (1.0 + m.abs(input))

        @tested_op.grad("input")
        def _(g, input):
            d = 1.0 + m.abs(input)
            return g / (d * d)
    ''',
    "reduction": '''
        import numpy as np
        from infinicore.kernels.lang import scalar_math as m
        from infinicore.kernels.ops._rules import reduction, restored

        @reduction(start=0, ref=lambda x, **o: np.sum(abs(x), **o), dtypes=("float32",))
        def tested_op(x):
            """The sum of magnitudes."""
            return m.abs(x)

        @tested_op.join
        def _(a, b):
            return a + b

        @tested_op.grad("input")
        def _(f, g, input, dim, keepdim):
            return f.mul(f.sign(input), restored(g, input.shape_, dim, keepdim))
    ''',
    "loss": '''
        from infinicore.kernels.table.loss import loss

        @loss(ref=lambda x, y: (x - y) ** 4)
        def tested_op(input, target):
            """The fourth power of the difference."""
            d = input - target
            return d * d * d * d

        @tested_op.grad("input")
        def _(g, input, target):
            d = input - target
            return 4.0 * g * d * d * d
    ''',
    "composite": '''
        import numpy as np
        from infinicore.kernels.table.composite import composite

        @composite(ref=lambda x, by=2.0: np.maximum(x * by, 0), samples=lambda rng: [((rng.standard_normal(5),), {})])
        def tested_op(f, input, by: float = 2.0):
            """max(by x, 0)."""
            return f.relu(input * by)
    ''',
}
CALLS = {
    "elementwise": "tested_op(x)",
    "reduction": "tested_op(x, dim=0)",
    "loss": "tested_op(x, -x.detach(), reduction='sum')",
    "composite": "tested_op(x, by=3.0)",
}
CHECK = """
import importlib.util, inspect, sys
import numpy as np
import infinicore.kernels

spec = importlib.util.spec_from_file_location("row", sys.argv[1])
spec.loader.exec_module(sys.modules.setdefault("row", importlib.util.module_from_spec(spec)))

import infinicore as ic
from infinicore import operator_pages, reference
from infinicore.kernels import OPS

call = sys.argv[2]
x = ic.tensor([0.5, -1.5, 2.0]).requires_grad_()
y = eval("ic." + call)
assert "tested_op" in dir(ic) and isinstance(y, ic.Tensor)
method = eval(call.replace("tested_op(x", "x.tested_op(").replace("(, ", "("))
assert np.array_equal(y.detach().numpy(), method.detach().numpy())
y.sum().backward()
assert x.grad is not None and np.all(np.isfinite(x.grad.numpy())) and x.grad.abs().sum().item() > 0
out = ic.empty(y.shape)
assert eval("ic." + call.replace("(x", "(x.detach()")[:-1] + ", out=out)") is out
assert np.array_equal(out.numpy(), y.detach().numpy())
assert "def tested_op(" in reference.package_stub() and "def tested_op(" in reference.tensor_stub()
pages = operator_pages.pages(reference.plain_signature)
assert "## `tested_op(" in pages["row.md"] and OPS["tested_op"].doc in pages["row.md"]
assert "| `tested_op` |" in pages["README.md"]
exec("\\n".join(operator_pages.example_of(OPS["tested_op"])), {})
"""


@pytest.mark.parametrize("kind", FILES)
def test_an_op_is_one_file(kind, tmp_path, root):
    path = tmp_path / "row.py"
    path.write_text(textwrap.dedent(FILES[kind]))
    done = subprocess.run(
        [sys.executable, "-c", CHECK, str(path), CALLS[kind]], capture_output=True, text=True, cwd=root, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
