"""PyTorch's own table of modules, `ModuleInfo`: each built, loaded, called and copied here and there.

Of every sample: `repr`, `state_dict` (names, order, dtypes, shapes), results, gradients of a weighted sum of them by
inputs and parameters, buffers after the call; the same of inputs that are not contiguous, and of copies by `deepcopy`
and `pickle`. Gradients of 16-bit floats, which PyTorch rounds at every step, by dtype and shape alone. Then the wrong
calls of the table. Needs `expecttest`; `python -m pytest --long`: half an hour.
"""

import copy
import functools
import pickle
from collections import Counter

import pytest

import infinicore as ic

torch = pytest.importorskip("torch")

from ..torch_tables import called, different, flat, ours, tables

pytest.importorskip("expecttest", reason="PyTorch's table of modules needs expecttest")
pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]

REFUSED = RuntimeError, ValueError, TypeError, IndexError, NotImplementedError
# Where something else is meant to come out, and why.
OTHER = {
    ("CTCLoss", "apart result"): "of 1-d targets with gaps PyTorch reads what lies between them",
    ("CTCLoss", "apart gradients"): "of 1-d targets with gaps PyTorch reads what lies between them",
    ("RNNCell", "raised"): "recurrent layers of complex numbers are refused",
    ("RNN", "raised"): "recurrent layers of complex numbers are refused",
}
# Of 16-bit floats besides: results that rounding decides, of which ours is in float32 throughout.
ROUNDED = {
    "CosineEmbeddingLoss": "sums of squares that are infinite in 16 bits",
    "FractionalMaxPool3d": "places of windows, which PyTorch computes in 16 bits",
    "RNN": "steps that are rounded one after another",
}
# Wrong calls that are taken, and why.
TAKEN = {"NLLLoss": "a weight of another dtype is converted"}
RANDOM = ("FractionalMaxPool2d", "FractionalMaxPool3d")


@functools.cache
def table():
    """PyTorch's entries of which we have a module."""
    return [entry for entry in tables("common_modules").module_db if hasattr(ic.nn, title(entry))]


def title(entry):
    """The name of a module."""
    return entry.module_cls.__name__


def apart(lib, value):
    """A tensor with gaps between its elements."""
    return lib.stack([value, value], -1)[..., 0] if isinstance(value, lib.Tensor) else value


def dense(lib, value):
    """A copy, which a module that works in place may change."""
    return value.clone() if isinstance(value, lib.Tensor) else value


def spread(lay, lib, value):
    """All tensors of arguments, laid out by `lay`."""
    if isinstance(value, (list, tuple)):
        return value if hasattr(value, "batch_sizes") else type(value)(spread(lay, lib, item) for item in value)
    if isinstance(value, dict):
        return {name: spread(lay, lib, item) for name, item in value.items()}
    return lay(lib, value)


def described(module):
    """Names, shapes and dtypes of what a module keeps, in order, and which are parameters."""
    rows = [(name, tuple(t.shape), str(t.dtype).split(".")[-1]) for name, t in module.state_dict().items()]
    return rows, [(name, p.requires_grad) for name, p in module.named_parameters()]


def built(entry, sample, dtype, training):
    """(PyTorch's module, ours) with the same values."""
    made = sample.constructor_input
    theirs = entry.module_cls(*made.args, **made.kwargs).to(dtype).train(training)
    mine = getattr(ic.nn, title(entry))(*ours(made.args), **ours(made.kwargs)).to(ours(dtype)).train(training)
    return theirs, mine


def leaf(lib, value):
    """A tensor as one that its gradient arrives at."""
    return value.detach().requires_grad_(value.requires_grad) if isinstance(value, lib.Tensor) else value


def outcome(lib, module, lay, sample_input, convert, weights):
    """(result, gradients of inputs and parameters) of one call."""

    def call(args, kwargs, parameters):
        return module(*spread(lay, lib, args), **spread(lay, lib, kwargs))

    given = convert(sample_input.args), convert(sample_input.kwargs), list(module.parameters())
    return called(lib, call, lambda y: y, given, {}, weights)


def compared(entry, sample, dtype, training):
    """Of one sample (what, why it differs or None)."""
    theirs, mine = built(entry, sample, dtype, training)
    if entry.is_lazy:
        yield "lazy repr", None if repr(theirs) == repr(mine) else f"{mine!r}, not {theirs!r}"
        theirs(*sample.forward_input.args, **sample.forward_input.kwargs)
    else:
        rows, wanted = described(mine), described(theirs)
        yield "state", None if rows == wanted else f"{rows}, not {wanted}"
    mine.load_state_dict({name: ours(t) for name, t in theirs.state_dict().items()})
    if entry.is_lazy:
        rows, wanted = described(mine), described(theirs)
        yield "state", None if rows == wanted else f"{rows}, not {wanted}"
    for lay in (dense, apart):
        weights = []
        try:
            wanted, slopes = outcome(
                torch, theirs, lay, sample.forward_input, lambda x: spread(leaf, torch, x), weights
            )
        except REFUSED:
            return
        got, found = outcome(ic, mine, lay, sample.forward_input, ours, weights)
        random = title(entry) in RANDOM and "_random_samples" not in sample.constructor_input.kwargs
        how = lay.__name__
        yield f"{how} result", different(got, wanted, not random)
        yield f"{how} gradients", None if random else different(found, slopes, dtype.itemsize > 2)
        after, before = list(mine.buffers()), list(theirs.buffers())
        yield f"{how} buffers", different(after, before)
    yield "repr", None if repr(theirs) == repr(mine) else f"{mine!r}, not {theirs!r}"
    for how, copied in (("deepcopy", copy.deepcopy), ("pickle", lambda m: pickle.loads(pickle.dumps(m)))):
        second = copied(mine)
        args, kwargs = ours(sample.forward_input.args), ours(sample.forward_input.kwargs)
        if training:  # buffers change
            mine.eval(), second.eval()
        y, z = (m(*spread(dense, ic, args), **spread(dense, ic, kwargs)) for m in (mine, second))
        same = random or all(a is b or a.tolist() == b.tolist() or (a != a).any() for a, b in zip(flat(y), flat(z)))
        yield how, None if same and described(second) == described(mine) else f"{z}, not {y}"


def walk(entry, dtype, training):
    """Of each sample of an entry (what, why it differs or None, the sample)."""
    try:
        samples = entry.module_inputs_func(entry, "cpu", dtype, dtype.is_floating_point, training)
    except REFUSED:
        return
    for sample in samples:
        said = f"{sample.constructor_input.args} {sample.constructor_input.kwargs} | {sample.desc}"
        given = [
            tuple(x.shape) if isinstance(x, torch.Tensor) else x
            for x in flat([sample.forward_input.args, sample.forward_input.kwargs])
        ]
        said = f"{said} {given}"[:400].replace("\n", "")
        try:
            for what, why in compared(entry, sample, dtype, training):
                yield what, why, said
        except Exception as error:  # of any kind: it is reported
            yield "raised", f"{type(error).__name__}: {error}", said


@pytest.mark.parametrize("name", ["float32", "float64", "bfloat16", "float16", "complex64"])
def test_samples(name):
    dtype, counts, wrong = getattr(torch, name), Counter(), []
    torch.manual_seed(0)
    for entry in table():
        for training in (True, False):
            for what, why, said in walk(entry, dtype, training):
                counts[what if why is None else f"{what} WRONG"] += 1
                meant = (title(entry), what) in OTHER or (dtype.itemsize == 2 and title(entry) in ROUNDED)
                if why is not None and not meant:
                    wrong.append((title(entry), training, what, why, said))
    print(f"{name}: {dict(counts)}")
    assert not wrong, wrong[:20]


def refused(entry):
    """Of each call that PyTorch's table says is an error (kind, why): "refused" by us too, "raw" or "accepted"."""
    if entry.module_error_inputs_func is None:
        return
    for wrong in entry.module_error_inputs_func(entry, "cpu", torch.float32, False, True):
        made, given = wrong.module_error_input.constructor_input, wrong.module_error_input.forward_input
        said = f"{made.args} {made.kwargs} ({wrong.error_regex})"[:300].replace("\n", "")
        construction = wrong.error_on.name == "CONSTRUCTION_ERROR"
        at = "construction"
        try:
            module = getattr(ic.nn, title(entry))(*ours(made.args), **ours(made.kwargs))
            if not construction:
                at = "call"
                module(*ours(given.args), **ours(given.kwargs))
        except (ValueError, TypeError, IndexError, NotImplementedError) as error:
            early = at == "construction" and not construction
            yield "early" if early else "refused", f"{error} | {said}"
        except Exception as error:
            yield "raw", f"{type(error).__name__}: {error} | {said}"
        else:
            yield "taken" if title(entry) in TAKEN else "accepted", said


def test_wrong_calls():
    found = [(title(entry), kind, why) for entry in table() for kind, why in refused(entry)]
    print(dict(Counter(kind for _, kind, _ in found)))
    assert not [entry for entry in found if entry[1] not in ("refused", "taken")]
