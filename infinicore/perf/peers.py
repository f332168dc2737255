"""What each side calls for a case of the suites `kernels` and `dispatch`: one table per side.

A row is the statement that is timed, as text over the case's inputs by name, so that a reader can
judge whether a comparison is fair: every side gets contiguous inputs in its favourite layout, `out=`
where each side has it, and its fastest spelling that we know. `timeit` runs the statement, without a
Python call around it.
"""

import numpy as np

from . import op_sides
from .timed import Call, NewProcess, Timed, TimedOnGpu

MODULES = {
    "ours": "infinicore",
    "numpy": "numpy",
    "torch": "torch",
    "transformers": "transformers",
    "llama.cpp": "llama_cpp",
    "mpi4py": "mpi4py",
    "gloo": "torch",
    "nccl": "nccl",
    "write": "numpy",
}
DISTRIBUTIONS = {name: name for name in ("numpy", "torch", "transformers", "mpi4py")}
DISTRIBUTIONS["llama.cpp"] = "llama-cpp-python"
_REPLAYED = 100  # operations in a recorded graph

# Forward and backward, by names that both libraries have.
_LOSS_STEP = """
x.requires_grad_(True)
def step():
    with {library}.enable_grad():
        loss = {F}.cross_entropy(x, index)
    return {library}.autograd.grad(loss, (x,))[0]
"""
_ATTENTION_STEP = """
q, k, v = (t.transpose(1, 2).contiguous().requires_grad_(True) for t in (q, k, v))
upstream = {library}.ones_like(q)
def step():
    with {library}.enable_grad():
        attended = {F}.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
    return {library}.autograd.grad(attended, (q, k, v), upstream)
"""


def _step(setup, library, F):
    return setup.format(library=library, F=F)


NUMPY = {
    "matmul": Call("np.matmul(a, b, out=out)"),
    "linear": Call("np.matmul(x, weight_t, out=out)", setup="weight_t = weight.T"),
    "add": Call("np.add(x, y, out=out)"),
    "mul": Call("np.multiply(x, y, out=out)"),
    "exp": Call("np.exp(x, out=out)"),
    "tanh": Call("np.tanh(x, out=out)"),
    "where": Call("np.where(mask, x, y)"),
    "sum": Call("np.sum(x)"),
    "mean": Call("np.mean(x)"),
    "max": Call("np.max(x)"),
    "argmax": Call("np.argmax(x)"),
    "cat": Call("np.concatenate((x, y))"),
    "add_new": Call("np.add(x, y)"),
    "graph": Call(
        "for _ in repeat: np.add(x, y, out=out)",
        setup=f"repeat = range({_REPLAYED}); out = np.add(x, y)",
        result="out",
        calls=_REPLAYED,
    ),
}

TORCH = {
    "matmul": Call("torch.matmul(a, b, out=out)"),
    "linear": Call("F.linear(x, weight)"),
    "add": Call("torch.add(x, y, out=out)"),
    "mul": Call("torch.mul(x, y, out=out)"),
    "exp": Call("torch.exp(x, out=out)"),
    "tanh": Call("torch.tanh(x, out=out)"),
    "sigmoid": Call("torch.sigmoid(x, out=out)"),
    "silu": Call("F.silu(x)"),
    "gelu": Call("F.gelu(x)"),
    "swiglu": Call("x * F.silu(y)"),
    "where": Call("torch.where(mask, x, y)"),
    "cast": Call("x.to(target)", setup="target = getattr(torch, target)"),
    "sum": Call("torch.sum(x)"),
    "mean": Call("torch.mean(x)"),
    "max": Call("torch.max(x)"),
    "argmax": Call("torch.argmax(x)"),
    "softmax": Call("torch.softmax(x, -1)"),
    "causal_softmax": Call(
        "torch.softmax(x + mask, -1)",
        setup="mask = torch.full(x.shape, -torch.inf, dtype=x.dtype).triu(1 + x.shape[1] - x.shape[0])",
    ),
    "rms_norm": Call("F.rms_norm(x, (n,), weight, 1e-5)"),
    "add_rms_norm": Call("F.rms_norm(torch.add(x, y, out=total), (n,), weight, 1e-5)", setup="total = x + y"),
    "layer_norm": Call("F.layer_norm(x, (n,), weight, bias, 1e-5)"),
    "embedding": Call("F.embedding(index, weight)"),
    "cat": Call("torch.cat((x, y))"),
    # the rotation as model code writes it: x * cos + rotate_half(x) * sin
    "rope": Call(
        "x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin",
        setup="half = x.shape[-1] // 2; wide = torch.cat((angle, angle), -1).float()[:, None]; "
        "cos = wide.cos().to(x.dtype); sin = wide.sin().to(x.dtype)",
    ),
    "attention_prefill": Call(
        "F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=True)",
        setup="q, k, v = (t.transpose(1, 2).contiguous() for t in (q, k, v))",
        result="_.transpose(1, 2)",
    ),
    # A loop over dense caches, and the query heads of a group as rows of one head: 2.4 (float32) and 17 (bfloat16)
    # times as fast as enable_gqa=True with torch 2.13 on two Zen 4 cores.
    "paged_attention": Call(
        "for k, v in caches: out = F.scaled_dot_product_attention(q, k, v, scale=scale)",
        setup="q, shape = q.view(groups), q.shape; "
        "caches = [[x[t].transpose(1, 2).reshape(dense) for x in (k, v)] for t in tables]",
        result="out.view(shape)",
        calls="turns",
    ),
    "copy": Call("torch.clone(x)"),
    "cross_entropy": Call("F.cross_entropy(x, index)"),
    "cross_entropy_step": Call("step()", setup=_step(_LOSS_STEP, "torch", "F")),
    "attention_step": Call("step()", setup=_step(_ATTENTION_STEP, "torch", "F"), result="_[0]"),
    "add_new": Call("torch.add(x, y)"),
    "graph": Call(
        "for _ in repeat: torch.add(x, y, out=out)",
        setup=f"repeat = range({_REPLAYED}); out = torch.add(x, y)",
        result="out",
        calls=_REPLAYED,
    ),
}

# Weights of 8 bits with a scale for each row, and of 4 bits with a scale and a zero for 32, as both kernels want them.
_TORCH_INT8 = """
scales = [w.float().abs().amax(-1) / 127 for w in weights]
parts = [((w.float() / s[:, None]).round().to(torch.int8), s.to(w.dtype)) for w, s in zip(weights, scales)]
"""
_TORCH_INT4 = """
parts = []
for w in weights:
    groups = w.float().view(len(w), -1, 32)
    scale = groups.abs().amax(-1) / 7
    q = ((groups / scale[..., None]).round() + 8).clamp(0, 15).to(torch.uint8).view(w.shape)
    packed = torch._convert_weight_to_int4pack(q[:, ::2] << 4 | q[:, 1::2], 8)
    parts.append((packed, torch.stack((scale.T, torch.zeros_like(scale.T)), -1).to(w.dtype).contiguous()))
"""


def _torch_turns(setup, product):
    """All products in a graph, once each; the first ones outside of it, where libraries make what they need."""
    each = f"for part in parts: out = {product}"
    record = f"graph = torch.cuda.CUDAGraph()\nwith torch.cuda.graph(graph):\n    {each}"
    return Call("graph.replay()", setup=f"{setup}\n{each}\n{record}", result="out", calls="turns")


TORCH_ON_GPU = {  # what is written in another way there
    "linear_turns": _torch_turns("parts = list(weights)", "F.linear(x, part)"),
    "linear_int8_turns": _torch_turns(_TORCH_INT8, "torch._weight_int8pack_mm(x, *part)"),
    "linear_int4_turns": _torch_turns(_TORCH_INT4, "torch._weight_int4pack_mm(x, part[0], 32, part[1])"),
    "graph": Call(
        "graph.replay()",
        setup="out = torch.add(x, y); graph = torch.cuda.CUDAGraph()\n"
        f"with torch.cuda.graph(graph):\n    for _ in range({_REPLAYED}): torch.add(x, y, out=out)",
        result="out",
        calls=_REPLAYED,
    ),
}

_RECORD = f"""
out = infinicore.add(x, y)
infinicore.start_graph_recording(x.device)
for _ in range({_REPLAYED}):
    infinicore.add(x, y, out=out)
graph = infinicore.stop_graph_recording()
"""


def _our_turns(setup, product):
    """All products in a graph, once each."""
    each = f"for part in parts: out = {product}"
    record = f"infinicore.start_graph_recording(x.device)\n{each}\ngraph = infinicore.stop_graph_recording()"
    return Call("graph.run()", setup=f"{setup}\n{each}\n{record}", result="out", calls="turns")


def _our_quantized_turns(format):
    return _our_turns(
        f"parts = [infinicore.quantize_weight(w, {format!r}) for w in weights]",
        "infinicore.linear_quantized(x, part, activations='float')",
    )


OURS = {
    "matmul": Call("infinicore.matmul(a, b, out=out)"),
    "linear": Call("infinicore.linear(x, weight)"),
    "linear_turns": _our_turns("parts = list(weights)", "infinicore.linear(x, part)"),
    "linear_int8_turns": _our_quantized_turns("int8"),
    "linear_int4_turns": _our_quantized_turns("int4"),
    "add": Call("infinicore.add(x, y, out=out)"),
    "mul": Call("infinicore.mul(x, y, out=out)"),
    "exp": Call("infinicore.exp(x, out=out)"),
    "tanh": Call("infinicore.tanh(x, out=out)"),
    "sigmoid": Call("infinicore.sigmoid(x, out=out)"),
    "silu": Call("infinicore.silu(x)"),
    "gelu": Call("infinicore.gelu(x)"),
    "swiglu": Call("infinicore.swiglu(x, y)"),
    "where": Call("infinicore.where(mask, x, y)"),
    "cast": Call("x.to(target)", setup="target = getattr(infinicore, target)"),
    "sum": Call("infinicore.sum(x)"),
    "mean": Call("infinicore.mean(x)"),
    "max": Call("infinicore.max(x)"),
    "argmax": Call("infinicore.argmax(x)"),
    "softmax": Call("infinicore.softmax(x, -1)"),
    "causal_softmax": Call("infinicore.causal_softmax(x)"),
    "rms_norm": Call("infinicore.rms_norm(x, weight, 1e-5)"),
    "add_rms_norm": Call("infinicore.add_rms_norm(x, y, weight, 1e-5)", result="_[0]"),
    "layer_norm": Call("infinicore.layer_norm(x, (n,), weight, bias, 1e-5)"),
    "embedding": Call("infinicore.embedding(index, weight)"),
    "cat": Call("infinicore.cat([x, y])"),
    "rope": Call(
        "infinicore.rope(x, positions, sin, cos)",
        setup="positions = infinicore.arange(x.shape[1], device=x.device); "
        "sin = infinicore.sin(angle); cos = infinicore.cos(angle)",
    ),
    "attention_prefill": Call("infinicore.mha(q, k, v, scale=scale, is_causal=True)"),
    "paged_attention": Call(
        "for table in tables: infinicore.paged_attention(q, k, v, table, lengths, scale=scale, out=out)",
        setup="tables = [tables[i].contiguous() for i in range(turns)]; "
        "lengths = infinicore.full((len(q),), length, device=q.device); out = infinicore.empty_like(q)",
        calls="turns",
    ),
    "copy": Call("x.clone()"),
    "cross_entropy": Call("infinicore.nn.functional.cross_entropy(x, index)"),
    "cross_entropy_step": Call("step()", setup=_step(_LOSS_STEP, "infinicore", "infinicore.nn.functional")),
    "attention_step": Call(
        "step()", setup=_step(_ATTENTION_STEP, "infinicore", "infinicore.nn.functional"), result="_[0]"
    ),
    "add_new": Call("infinicore.add(x, y)"),
    "graph": Call("graph.run()", setup=_RECORD, result="out", calls=_REPLAYED),
}


def _timed(call, names, to_array, library, case):
    if case.device == "cpu":
        return Timed(call, names, to_array)
    return TimedOnGpu(call, names, to_array, library, case.calls_from_python)


_FIRST_ADD = {
    "ours": "import infinicore as m; m.add(m.ones(64), m.ones(64))",
    "numpy": "import numpy as m; m.add(m.ones(64), m.ones(64))",
    "torch": "import torch as m; m.add(m.ones(64), m.ones(64))",
}


def _numpy(case):
    names = {"np": np, **case.options, **case.arrays()}
    return Timed(NUMPY[case.op], names, np.asarray)


def _torch(case):
    import torch
    import torch.nn.functional as F

    torch.set_grad_enabled(False)

    def tensor(array):
        value = torch.from_numpy(array).to(case.device)
        return value.to(getattr(torch, case.dtype)) if value.is_floating_point() else value

    names = {"torch": torch, "F": F, **case.options}
    names.update({name: _in_layout(tensor(array), case.inputs[name]) for name, array in case.arrays().items()})
    if case.op == "table":
        return op_sides.torch_call(case, names)
    table = TORCH if case.device == "cpu" else TORCH | TORCH_ON_GPU
    return _timed(table[case.op], names, lambda value: value.double().cpu().numpy(), torch, case)


def _ours(case):
    import infinicore

    def tensor(array):
        value = infinicore.from_numpy(array).to(case.device)
        return value.to(getattr(infinicore, case.dtype)) if array.dtype == np.float32 else value

    names = {"infinicore": infinicore, "np": np, **case.options}
    names.update({name: _in_layout(tensor(array), case.inputs[name]) for name, array in case.arrays().items()})
    if case.op == "table":
        return op_sides.our_call(case, names)
    to_array = lambda value: np.asarray(value.cpu().numpy(), np.float64)
    return _timed(OURS[case.op], names, to_array, infinicore, case)


def _in_layout(value, given):
    """A tensor with the same values in the layout that its input asks for."""
    if given.layout == "contiguous" or len(given.shape) < 2:
        return value
    if given.layout == "transposed":
        return value.transpose(-1, -2).contiguous().transpose(-1, -2)
    wide = value.repeat(*[1] * (len(given.shape) - 1), 2)  # every row twice
    return wide[..., : given.shape[-1]]


_SIDES = {"ours": _ours, "numpy": _numpy, "torch": _torch}


def prepare(side, case):
    """The case, ready to be measured on `side` in this process; it has been run once."""
    if case.op == "import":
        return NewProcess(side, f"import {MODULES[side]}")
    if case.op == "first_add":
        return NewProcess(side, _FIRST_ADD[side])
    return _SIDES[side](case)
