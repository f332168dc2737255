"""What PyTorch's own tables of ops and of modules are called with here: arguments as ours, results compared."""

import importlib

import numpy as np
import torch

import infinicore as ic

LIMITS = {"float32": 1e-4, "float64": 1e-7, "complex64": 1e-4, "complex128": 1e-7}


def tables(name):
    """A module of PyTorch's own tests, which forbids flags of back ends to whoever imports it: here they stay free."""
    found = importlib.import_module(f"torch.testing._internal.{name}")
    torch.backends.flags_frozen.__globals__["__allow_nonbracketed_mutation_flag"] = True
    return found


def ours(value):
    """An argument of a sample as ours: a tensor as a copy with its strides."""
    if isinstance(value, torch.Tensor):
        copy = value.detach().clone()
        made = ic.from_dlpack(copy) if value.dtype == torch.bfloat16 else ic.from_numpy(copy.numpy(force=True))
        return made.requires_grad_(value.requires_grad)
    if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
        return getattr(ic, str(value).removeprefix("torch."))
    if isinstance(value, torch.nn.PairwiseDistance):
        return ic.nn.PairwiseDistance()
    if isinstance(value, torch.nn.TransformerEncoderLayer):
        return encoder_layer(value)
    if isinstance(value, torch.nn.utils.rnn.PackedSequence):
        return ic.nn.utils.rnn.PackedSequence(*map(ours, value))
    if isinstance(value, torch.device):
        return ic.device(str(value))
    if isinstance(value, (list, tuple)):
        return tuple(value) if isinstance(value, torch.Size) else type(value)(map(ours, value))
    if isinstance(value, dict):
        return {name: ours(v) for name, v in value.items()}
    if callable(value) and value is getattr(torch.nn.functional, getattr(value, "__name__", ""), None):
        return getattr(ic.nn.functional, value.__name__)
    return value


def encoder_layer(layer):
    """A layer of a Transformer with the options of PyTorch's; weights are its own."""
    attention, first = layer.self_attn, layer.linear1
    return ic.nn.TransformerEncoderLayer(
        attention.embed_dim,
        attention.num_heads,
        first.out_features,
        layer.dropout.p,
        ours(layer.activation),
        layer.norm1.eps,
        attention.batch_first,
        layer.norm_first,
        first.bias is not None,
        dtype=ours(first.weight.dtype),
    )


def flat(value):
    """All leaves of a result, or of arguments, in order."""
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in flat(item)]
    return flat(list(value.values())) if isinstance(value, dict) else [value]


def array(value):
    """A tensor of either library as a NumPy array."""
    value = value.detach()
    value = value.float() if value.dtype.is_floating_point and value.dtype.itemsize < 4 else value
    return value.numpy(force=True) if isinstance(value, torch.Tensor) else value.numpy()


def different(got, wanted, values=True):
    """What differs between two results, in words, or None."""
    got, wanted = flat(got), flat(wanted)
    if len(got) != len(wanted):
        return f"{len(got)} results, not {len(wanted)}"
    for y, z in zip(got, wanted):
        if isinstance(y, ic.Tensor) != isinstance(z, torch.Tensor):
            return f"{y!r}, not {z!r}"
        if not isinstance(y, ic.Tensor):
            y, z = (np.asarray(v) if isinstance(v, (bool, int, float, complex)) else np.zeros(1) for v in (y, z))
            name, a, b = str(z.dtype), y, z
        else:
            name, a, b = y.dtype.name, array(y), array(z)
            if a.shape != b.shape or name != str(z.dtype).removeprefix("torch."):
                return f"{name} {a.shape}, not {z.dtype} {b.shape}"
        limit = LIMITS.get(name, 3e-2 if name in ("bfloat16", "float16") else 0)
        most = float(np.abs(b[np.isfinite(b)]).max(initial=1)) if limit else 0
        if values and not np.allclose(a, b, rtol=limit, atol=limit / 5 * most, equal_nan=True):
            return f"{a.ravel()[:4]}, not {b.ravel()[:4]}"
    return None


def called(lib, call, process, args, kwargs, weights):
    """The result of a call, and the gradients of its weighted sum."""
    out = call(*args, **kwargs)
    traced = [y for y in flat(process(out)) if isinstance(y, lib.Tensor) and y.requires_grad]
    leaves = [x for x in flat([args, kwargs]) if isinstance(x, lib.Tensor) and x.requires_grad]
    total = 0
    for i, y in enumerate(traced):
        if i == len(weights):
            weights.append(np.random.default_rng(i).uniform(0.5, 1.5, tuple(y.shape)))
        total = total + (y * lib.from_numpy(weights[i]).to(y.dtype)).sum()
    for leaf in leaves:
        leaf.grad = None  # PyTorch's samples share leaves
    if traced and leaves:
        (total.real if total.dtype.is_complex else total).backward()
    return out, [lib.zeros_like(x.detach()) if x.grad is None else x.grad for x in leaves]
