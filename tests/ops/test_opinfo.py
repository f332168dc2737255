"""PyTorch's own table of ops (`OpInfo`): its samples, called here and there; `python -m pytest --long`, half an hour.

An entry has a callable where our name, function or Tensor method, is PyTorch's; an entry that PyTorch writes as a lambda
runs that lambda with our modules in the place of `torch`. Values are compared with shapes and dtypes, and the gradients
of a weighted sum of the results; of random ops shapes and dtypes alone.
"""

import builtins
import functools
import types
import warnings
from collections import Counter

import numpy as np
import pytest

import infinicore as ic

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest", reason="PyTorch's table of ops needs it")
pytestmark = pytest.mark.long

RANDOM = """_native_batch_norm_legit_no_training bernoulli dropout normal multinomial rand randint randn rrelu
    alpha_dropout dropout2d dropout3d feature_alpha_dropout_with_train feature_alpha_dropout_without_train randn_like
    rand_like randint_like gumbel_softmax empty empty_like empty_permuted empty_strided new_empty new_empty_strided
    bernoulli_ cauchy exponential geometric log_normal uniform svd_lowrank pca_lowrank fractional_max_pool2d
    fractional_max_pool3d native_dropout""".split()
# Names that differ, as PyTorch's table writes in-place methods without their underscore.
RENAMED = {name: f"{name}_" for name in ("cauchy", "exponential", "geometric", "log_normal", "uniform")}
LIMITS = {"float16": 1e-2, "bfloat16": 3e-2, "float32": 1e-4, "complex64": 1e-4, "float64": 1e-7, "complex128": 1e-7}


@functools.cache
def table():
    """PyTorch's entries."""
    from torch.testing._internal.common_methods_invocations import op_db

    return op_db


def title(op):
    """The name of an entry."""
    return f"{op.name} {op.variant_test_name}".strip()


def rebound(function):
    """A function of PyTorch's test modules, with our modules in the place of `torch`."""
    if isinstance(function, functools.partial):
        return functools.partial(rebound(function.func), *map(ours, function.args), **ours(function.keywords))
    if not isinstance(function, types.FunctionType) or "torch.testing" not in function.__module__:
        return function
    if function.__name__ == "wrapper_set_seed":
        return lambda op, *args, **kwargs: op(*args, **kwargs)
    world = {k: rebound(v) if isinstance(v, types.FunctionType) and v is not function else v
             for k, v in function.__globals__.items() if k in function.__code__.co_names}  # fmt: skip
    cells = tuple(types.CellType(rebound(cell.cell_contents)) for cell in function.__closure__ or ())
    new = types.FunctionType(function.__code__, {**world, "torch": ic, "np": np, "__builtins__": builtins}, closure=cells)
    new.__defaults__, new.__kwdefaults__ = function.__defaults__, function.__kwdefaults__
    return new


def callable_of(op):
    """What stands here for an entry, or None."""
    name = RENAMED.get(op.name, op.name)
    found = functools.reduce(lambda at, part: getattr(at, part, None), name.split("."), ic)
    found = found if callable(found) else getattr(ic.Tensor, name.split(".")[-1], None)
    if found is not None and isinstance(op.op, types.FunctionType) and "torch.testing" in op.op.__module__:
        return rebound(op.op)
    return found


def ours(value):
    """A sample's argument as ours: tensors copied with their strides."""
    if isinstance(value, torch.Tensor):
        copy = value.detach().clone()
        made = ic.from_dlpack(copy) if value.dtype == torch.bfloat16 else ic.from_numpy(copy.resolve_conj().numpy())
        return made.requires_grad_(value.requires_grad)
    if isinstance(value, (torch.dtype, torch.memory_format, torch.layout)):
        return getattr(ic, str(value).removeprefix("torch."))
    if isinstance(value, torch.nn.PairwiseDistance):
        return ic.nn.PairwiseDistance()
    if isinstance(value, torch.device):
        return ic.device(str(value))
    if isinstance(value, (list, tuple)) and type(value) is not torch.Size:
        return type(value)(map(ours, value))
    if isinstance(value, torch.Size):
        return tuple(value)
    return {k: ours(v) for k, v in value.items()} if isinstance(value, dict) else value


def flat(value):
    """All tensors and numbers of a result, or of arguments, in order."""
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in flat(item)]
    return flat(list(value.values())) if isinstance(value, dict) else [value]


def different(got, wanted, values=True):
    """What differs between two results, in words, or None."""
    got, wanted = flat(got), flat(wanted)
    if len(got) != len(wanted):
        return f"{len(got)} results, not {len(wanted)}"
    for y, z in zip(got, wanted):
        if not isinstance(z, torch.Tensor):
            if isinstance(y, ic.Tensor) or (y != y if z != z else not np.allclose(y, z)) if _number(z) else False:
                return f"{y}, not {z}"
            continue
        if not isinstance(y, ic.Tensor):
            return f"a {type(y).__name__}, not a tensor"
        if tuple(y.shape) != tuple(z.shape) or y.dtype.name != str(z.dtype).removeprefix("torch."):
            return f"{y.dtype.name} {tuple(y.shape)}, not {z.dtype} {tuple(z.shape)}"
        if values:
            a, b = array(y), array(z.resolve_conj().resolve_neg())
            limit = LIMITS.get(y.dtype.name, 0)
            finite = np.abs(b[np.isfinite(b)]).max(initial=0) if limit else 0
            if not np.allclose(a, b, rtol=limit, atol=limit * float(finite) / 10 + limit / 10, equal_nan=True):
                return f"values: {a.ravel()[:3]}, not {b.ravel()[:3]}; apart by {np.abs(a - b).max() if limit else ''}"
    return None


def _number(value):
    return isinstance(value, (bool, int, float, complex))


def array(value):
    """A tensor of either library as a NumPy array."""
    value = value.detach()
    return (value.float() if value.dtype.is_floating_point and value.dtype.itemsize < 4 else value).numpy()


def gradients(call, process, args, kwargs, lib, weights):
    """The result of a call, and the gradients of its weighted sum."""
    out = call(*args, **kwargs)
    traced = [y for y in flat(process(out)) if isinstance(y, lib.Tensor) and y.requires_grad]
    total = 0
    for i, y in enumerate(traced):
        if i == len(weights):
            weights.append(np.random.default_rng(i).uniform(0.5, 1.5, tuple(y.shape)))
        total = total + (y * lib.from_numpy(weights[i]).to(y.dtype)).sum()
    leaves = [x for x in flat([args, kwargs]) if isinstance(x, lib.Tensor) and x.requires_grad]
    for leaf in leaves:
        leaf.grad = None  # PyTorch's samples share leaves
    if traced and leaves:
        (total.real if total.dtype.is_complex else total).backward()
    return out, [x.grad for x in leaves]


def walk(op, dtype):
    """Of each sample of an entry: what came of it ("equal", "raised", "wrong", "accepted"), and what, in words."""
    call, traced = callable_of(op), dtype.is_floating_point and op.supports_autograd
    random = op.name.split(".")[-1] in RANDOM
    wrapped = op.op, call
    if "masked" not in op.name:  # whose wrapper hides what no mask shows by private functions of PyTorch
        wrapped = functools.partial(op.gradcheck_wrapper, op.op), functools.partial(rebound(op.gradcheck_wrapper), call)
    for sample in op.sample_inputs("cpu", dtype, requires_grad=traced):
        process, weights = sample.output_process_fn_grad, []
        args, kwargs = (sample.input, *sample.args), sample.kwargs
        mine = ours(args), ours(kwargs)
        said = f"{str([_short(a) for a in args])[1:-1]} {_short(kwargs)}"
        try:
            wanted, slopes = gradients(wrapped[0], process, args, kwargs, torch, weights)
        except (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError):
            continue
        try:
            got, mines = gradients(wrapped[1], rebound(process), *mine, ic, weights)
            what = different(got, wanted, False) or (None if random else
                                                     different(rebound(process)(got), process(wanted)))  # fmt: skip
        except Exception as error:
            yield "raised", f"{type(error).__name__}: {error}", said
            continue
        yield ("wrong", what, said) if what else ("equal", "", said)
        if not what and slopes and not random:
            bad = list(filter(None, map(_unlike, mines, slopes)))
            yield ("gradient wrong", bad[0], said) if bad else ("gradient equal", "", said)


def _unlike(mine, slope):
    """How two gradients differ, in words; None is zeros."""
    if mine is None or slope is None:
        there = mine if slope is None else slope
        return "None on one side" if there is not None and np.any(array(there)) else None
    return different(mine, slope)


def refused(op):
    """Of each call that PyTorch's table says is an error: whether it is one here, by a sentence of ours, and which."""
    call = callable_of(op)
    for wrong in op.error_inputs("cpu") if op.error_inputs_func is not None else ():
        sample = wrong.sample_input
        said = f"{_short([sample.input, *sample.args])} {_short(sample.kwargs)}: {wrong.error_regex}"
        try:
            call(*ours((sample.input, *sample.args)), **ours(sample.kwargs))
        except (ValueError, TypeError, IndexError, NotImplementedError, RuntimeError) as error:
            yield "refused", str(error), said
        except Exception as error:
            yield "raw error", f"{type(error).__name__}: {error}", said
        else:
            yield "accepted", "", said


def _short(value):
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, (list, tuple)):
        return [_short(v) for v in value]
    return {k: _short(v) for k, v in value.items()} if isinstance(value, dict) else value
