"""PyTorch's own table of ops, `OpInfo`: its samples called here and there, and its wrong calls; needs `expecttest`.

An entry has a callable where a function or method here has its name; an entry that PyTorch writes as a lambda runs
that lambda with our modules in the place of `torch`. Compared are dtypes, shapes and values, then the gradients of a
weighted sum of all results; of random draws dtypes and shapes alone. `python -m pytest --long`: five minutes.
"""

import builtins
import functools
import types
from collections import Counter

import numpy as np
import pytest

import infinicore as ic

torch = pytest.importorskip("torch")

from ..torch_tables import called, different, flat, ours, tables

pytest.importorskip("expecttest", reason="PyTorch's table of ops needs expecttest")
pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]

# PyTorch's table writes in-place methods without their underscore.
RENAMED = {name: f"{name}_" for name in ("cauchy", "exponential", "geometric", "log_normal", "uniform")}
RANDOM = {*RENAMED} | set(
    "alpha_dropout bernoulli dropout dropout2d dropout3d empty empty_like empty_permuted empty_strided "
    "feature_alpha_dropout fractional_max_pool2d fractional_max_pool3d multi_head_attention_forward multinomial "
    "native_dropout new_empty new_empty_strided normal pca_lowrank rand rand_like randint randint_like randn "
    "randn_like rrelu svd_lowrank".split()
)
# Where something else is meant to come out, and why.
OTHER = {
    "as_strided partial_views": "its samples look beyond their tensors, and tensors are copied here",
    "as_strided_scatter": "a gradient of 0 where `src` was written, as docs/from-pytorch.md says",
    "histogramdd": "edges of bins that do not rise",
    **dict.fromkeys(("cov", "native_layer_norm", "nn.functional.layer_norm"), "what is left of a gradient that is 0"),
    **dict.fromkeys(("argsort", "kthvalue", "mode", "sort", "topk"), "another one of equal elements"),
}


@functools.cache
def table():
    """PyTorch's entries."""
    return tables("common_methods_invocations").op_db


def title(op):
    """The name of an entry."""
    return f"{op.name} {op.variant_test_name}".strip()


def rebound(function):
    """A function of PyTorch's test modules with our modules in the place of `torch`; any other as it is."""
    if not isinstance(function, types.FunctionType) or "torch.testing" not in function.__module__:
        return function
    if function.__name__ == "wrapper_set_seed":
        return lambda op, *args, **kwargs: op(*args, **kwargs)
    names = {name: value for name, value in function.__globals__.items() if name in function.__code__.co_names}
    names = {name: value if value is function else rebound(value) for name, value in names.items()}
    names |= {"torch": ic, "np": np, "__builtins__": builtins}
    cells = tuple(types.CellType(rebound(cell.cell_contents)) for cell in function.__closure__ or ())
    found = types.FunctionType(function.__code__, names, closure=cells)
    found.__defaults__, found.__kwdefaults__ = function.__defaults__, function.__kwdefaults__
    return found


def callable_of(op):
    """What stands here for an entry, or None."""
    name = RENAMED.get(op.name, op.name)
    found = functools.reduce(lambda at, part: getattr(at, part, None), name.split("."), ic)
    found = found if callable(found) else getattr(ic.Tensor, name.split(".")[-1], None)
    own = rebound(op.op)
    return found if found is None or own is op.op else own


def walk(op, dtype, reference=False):
    """Of each sample of an entry (kind, why): "equal", "raised" or "wrong", the same of its gradient.

    With `reference`, of the larger and odder samples that PyTorch holds against NumPy, values alone.
    """
    call, traced = callable_of(op), dtype.is_floating_point and op.supports_autograd and not reference
    theirs = op.op
    if "masked" not in op.name:  # whose wrapper hides what no mask shows by private functions of PyTorch
        theirs = functools.partial(op.gradcheck_wrapper, theirs)
        call = functools.partial(rebound(op.gradcheck_wrapper), call)
    for sample in (op.reference_inputs if reference else op.sample_inputs)("cpu", dtype, requires_grad=traced):
        args, kwargs, weights = (sample.input, *sample.args), sample.kwargs, []
        random = op.name.split(".")[-1] in RANDOM or kwargs.get("dropout_p", 0) > 0
        process, own = sample.output_process_fn_grad, rebound(sample.output_process_fn_grad)
        mine = ours(args), ours(kwargs)
        said = f"{args} {kwargs}"[:300].replace("\n", "")
        try:
            wanted, slopes = called(torch, theirs, process, args, kwargs, weights)
        except (RuntimeError, ValueError, TypeError, IndexError):
            continue
        try:
            got, found = called(ic, call, own, *mine, weights)
        except Exception as error:  # of any kind: it is reported
            yield "raised", f"{type(error).__name__}: {error} | {said}"
            continue
        what = different(got, wanted, False) or (None if random else different(own(got), process(wanted)))
        yield ("wrong", f"{what} | {said}") if what else ("equal", said)
        if slopes and not what and not random:
            what = next(filter(None, map(different, found, slopes)), None)
            yield ("gradient wrong", f"{what} | {said}") if what else ("gradient equal", said)


def refused(op):
    """Of each call that PyTorch's table says is an error (kind, why): "refused" by us too, "raw" or "accepted".

    "taken" are numbers for tensors, 16-bit windows, and an `out` that overlaps, which its copy here does not.
    """
    for wrong in op.error_inputs("cpu") if op.error_inputs_func is not None else ():
        sample = wrong.sample_input
        if torch.sparse_coo in sample.kwargs.values() or any(getattr(x, "is_meta", 0) for x in flat([sample.kwargs])):
            continue  # which no tensor here can be
        said = f"{(sample.input, *sample.args)} {sample.kwargs} ({wrong.error_regex})"[:300].replace("\n", "")
        try:
            callable_of(op)(*ours((sample.input, *sample.args)), **ours(sample.kwargs))
        except (ValueError, TypeError, IndexError, NotImplementedError) as error:
            yield "refused", f"{error} | {said}"
        except Exception as error:
            yield "raw", f"{type(error).__name__}: {error} | {said}"
        else:
            numbers = any(type(x) is int for x in (sample.input, *sample.args[:1]))
            narrow = sample.kwargs.get("dtype") in (torch.bfloat16, torch.float16)
            yield "taken" if numbers or narrow or "out" in sample.kwargs else "accepted", said


# Of 16-bit floats besides: results and gradients that rounding decides, of which ours is in float32 throughout.
ROUNDED = {
    "grid_sampler_2d": "a gradient of the place, which is a difference",
    "histc": "elements at an edge, which PyTorch rounds to 16 bits",
    "logcumsumexp": "a gradient beside infinite sums",
    "matrix_exp": "terms that are infinite in 16 bits, of which PyTorch makes NaN",
    "msort": "another one of equal elements",
    "nn.functional.grid_sample": "a gradient of the place, which is a difference",
    "nn.functional.scaled_dot_product_attention": "gradients that are made of the rounded result",
    "nn.functional.soft_margin_loss": "exponentials that are infinite in 16 bits",
    **dict.fromkeys(("masked.normalize", "nn.functional.normalize"), "what is left of a gradient that is 0"),
    **dict.fromkeys(
        ("polygamma polygamma_n_0", "pow", "special.polygamma special_polygamma_n_0"), "the largest number"
    ),
}


# Of bfloat16 besides: sums of 8 bits, which broadcasting or a mean makes of gradients.
OF_8_BITS = dict.fromkeys(
    (
        "addcdiv div grid_sampler_3d fmod ldexp native_batch_norm native_group_norm nextafter xlogy special.xlog1py "
        "nn.functional.batch_norm nn.functional.group_norm nn.functional.hinge_embedding_loss "
        "nn.functional.poisson_nll_loss"
    ).split(),
    "sums and quotients that PyTorch rounds to 8 bits on the way",
)
OF_8_BITS["div trunc_rounding"] = "a quotient that PyTorch rounds before it cuts it"
OF_8_BITS |= dict.fromkeys(("mvlgamma mvlgamma_p_3", "mvlgamma mvlgamma_p_5"), "terms that PyTorch rounds to 8 bits")
# Of the larger samples besides: what extreme values give.
INFINITE = {
    **dict.fromkeys(("byte", "char", "int", "long", "short"), "integers of what is infinite or NaN"),
    **dict.fromkeys(
        "i0 special.i1 special.modified_bessel_i0 special.modified_bessel_i1 special.bessel_j0 special.bessel_j1 "
        "special.bessel_y0 special.bessel_y1 special.zeta".split()
        + [f"polygamma polygamma_n_{n}" for n in (1, 2, 3, 4)],
        "the limit at infinity, as SciPy's; PyTorch has NaN",
    ),
    **dict.fromkeys(("igamma", "igammac"), "NaN of NaN; PyTorch has 0 or 1"),
    **dict.fromkeys(
        [
            f"special.{kind}"
            for kind in (
                *(f"{shift}chebyshev_polynomial_{letter}" for shift in ("", "shifted_") for letter in "tuvw"),
                *("hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l", "legendre_polynomial_p"),
            )
        ],
        "NaN of NaN, and infinity where terms pass the largest number; PyTorch has numbers and NaN",
    ),
    "special.airy_ai": "PyTorch's is off by 2e-3 at -1113; ours is SciPy's",
    "special.bessel_j1": "PyTorch's is off by 1e-5 at 501; ours is SciPy's",
    "signal.windows.kaiser": "PyTorch's is 0 where its Bessel function passes the largest float32",
    "__rsub__": "Python's own method of a number, which knows no tensor",
}
# Of complex numbers: the parts of infinite ones, of which PyTorch's vectors and single numbers differ themselves.
INFINITE_PARTS = dict.fromkeys(
    (
        "add sub mul rsub __radd__ __rmul__ __rpow__ cos cosh exp2 float_power log10 logaddexp pow sigmoid square "
        "tan tanh"
    ).split()
    + ["nn.functional.silu complex"],
    "infinite and NaN parts",
)


@pytest.mark.parametrize("name", ["float32", "int64", "bool", "complex64", "bfloat16"])
def test_reference_samples(name):
    """The larger and odder samples, of entries that have some: broadcasting, strides, extreme values, mixed dtypes."""
    dtype, counts, wrong = getattr(torch, name), Counter(), []
    torch.manual_seed(0)
    meant = OTHER | INFINITE | (ROUNDED | OF_8_BITS if dtype.itemsize == 2 else {})
    meant |= INFINITE_PARTS if dtype.is_complex else {}
    for op in table():
        more = getattr(op, "reference_inputs_func", None) is not None or type(op).__name__ != "OpInfo"
        if not more or dtype not in op.dtypes or callable_of(op) is None or op.name == "sparse.mm":
            continue
        found = list(walk(op, dtype, reference=True))
        counts.update(kind for kind, _ in found)
        wrong += [(title(op), kind, what) for kind, what in found if kind == "wrong" and title(op) not in meant]
        # two numbers and no tensor are refused
        wrong += [(title(op), kind, what) for kind, what in found if kind == "raised" and "needs a tensor" not in what]
    print(f"{name}: {dict(counts)}")
    assert not wrong, wrong[:20]
    assert counts["equal"] > 6000


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16", "int64", "bool", "complex64"])
def test_samples(name):
    dtype, counts, wrong = getattr(torch, name), Counter(), []
    torch.manual_seed(0)
    entries = [op for op in table() if dtype in op.dtypes and op.name != "sparse.mm"]
    there = [op for op in entries if callable_of(op) is not None]
    for op in there:
        found = list(walk(op, dtype))
        counts.update(kind for kind, _ in found)
        meant = OTHER | ROUNDED if dtype.itemsize == 2 else OTHER
        meant = meant | OF_8_BITS if name == "bfloat16" else meant
        wrong += [(title(op), kind, what) for kind, what in found if "wrong" in kind and title(op) not in meant]
    print(f"{name}: {len(there)} of {len(entries)} entries, {dict(counts)}")
    assert not wrong, wrong[:20]
    assert len(there) >= 0.95 * len(entries)
    assert counts["equal"] >= 0.98 * sum(n for kind, n in counts.items() if "gradient" not in kind)


def test_wrong_calls():
    found = [(title(op), kind, what) for op in table() if callable_of(op) for kind, what in refused(op)]
    print(dict(Counter(kind for _, kind, _ in found)))
    assert not [entry for entry in found if entry[1] in ("raw", "accepted")]
