"""PyTorch's own table of optimizers, `optim_db`: its options over ten steps here and there; needs `expecttest`.

Between the steps: parameters without a gradient, a closure, a group that comes later with options of its own, a new
rate, and PyTorch's state dict loaded into a new optimizer here. Parameters, keys of states and states are compared.
"""

import warnings

import pytest

import infinicore as ic
from infinicore import optim

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest", reason="PyTorch's table of optimizers needs expecttest")
from ..torch_tables import ours, tables
from .test_state_dict import to_torch
from .trajectories import SHAPES, Pair, assert_close

optim_db = tables("common_optimizers").optim_db
INFOS = {info.optim_cls.__name__: info for info in optim_db if hasattr(optim, info.optim_cls.__name__)}
RTOL = {"float32": 2e-5, "float64": 1e-12, "complex64": 2e-5, "complex128": 1e-12}
MATRICES = ((12, 8), (8, 12), (5, 5), (1, 7))
# Options of GPUs and of graphs, which change no step.
OTHER_WAYS = ("capturable", "fused", "foreach")


def compare(pair, mine, theirs, rtol):
    """Parameters, and of each its states: their keys, dtypes and values."""
    pair.compare(rtol)
    state = mine.state_dict()["state"]
    for index, values in theirs.state_dict()["state"].items():
        values = {k: v for k, v in values.items() if v is not None}
        if not all(isinstance(v, (torch.Tensor, int, float)) for v in values.values()):
            continue  # LBFGS's, which are lists
        assert set(values) <= set(state[index]), f"{set(values)} of PyTorch, {set(state[index])} here"
        for name, value in values.items():
            if isinstance(value, torch.Tensor):
                assert str(state[index][name].dtype).split(".")[-1] == str(value.dtype).split(".")[-1], name
            assert_close(state[index][name], value, 10 * rtol)


def later(pair, mine, theirs, options):
    """Add a parameter of its own group to both."""
    extra = Pair(torch, pair.dtype, [pair.ours[0].shape_], seed=5)
    mine.add_param_group({"params": extra.ours, **options})
    theirs.add_param_group({"params": extra.theirs, **options})
    pair.ours += extra.ours
    pair.theirs += extra.theirs


def reloaded(name, mine, theirs, kwargs, own):
    """New optimizers of both, each with the state dict of the other."""
    one = getattr(optim, name)([{"params": group["params"]} for group in mine.param_groups], **own)
    two = getattr(torch.optim, name)([{"params": group["params"]} for group in theirs.param_groups], **kwargs)
    saved = mine.state_dict()
    one.load_state_dict(ours(theirs.state_dict()))
    two.load_state_dict(to_torch(saved))
    return one, two


def parameters(value):
    """Parameters of a table as ours: the same tensor stays one."""
    made = {}

    def one(x):
        if isinstance(x, torch.Tensor):
            if id(x) not in made:
                made[id(x)] = ic.nn.Parameter(ours(x))
                made[id(x)].grad = None if x.grad is None else ours(x.grad)
            return made[id(x)]
        if isinstance(x, (list, tuple)):
            return type(x)(map(one, x))
        return {k: one(v) for k, v in x.items()} if isinstance(x, dict) else x

    return one(value)


def ten_steps(name, kwargs, dtype, rtol):
    """Ten steps of both."""
    shapes = MATRICES if name == "Muon" else SHAPES[:4] + ((300,), ())
    shapes += () if name in ("Muon", "Adafactor") else ((0, 3),)  # PyTorch's divide by their size
    pair = Pair(torch, dtype, shapes)
    own = ours(kwargs)
    mine = getattr(optim, name)([{"params": pair.ours[:2]}, {"params": pair.ours[2:], "lr": 0.02}], **own)
    theirs = getattr(torch.optim, name)(
        [{"params": pair.theirs[:2]}, {"params": pair.theirs[2:], "lr": 0.02}], **kwargs
    )
    seen = []
    for optimizer in (mine, theirs):
        optimizer.register_step_pre_hook(lambda *args: seen.append(len(args)))
        optimizer.register_step_post_hook(lambda *args: seen.append(len(args)))
    for step in range(10):
        pair.gradients(rest={2: (0,), 3: (1, 2), 5: range(len(pair.ours))}.get(step, ()))
        if step == 4:
            later(pair, mine, theirs, {"lr": 0.03, "weight_decay": 0.2} if "weight_decay" in mine.defaults else {})
            pair.gradients()
        if step == 6:
            compare(pair, mine, theirs, rtol)
            mine, theirs = reloaded(name, mine, theirs, kwargs, own)
        if step == 7:
            for group, other in zip(mine.param_groups, theirs.param_groups):
                group["lr"], other["lr"] = group["lr"] * 0.5, other["lr"] * 0.5
        results = mine.step(lambda: 3.0), theirs.step(lambda: 3.0)
        assert results == (3.0, 3.0)
        compare(pair, mine, theirs, rtol)
    assert seen == [3, 3] * (len(seen) // 2)


def cases():
    """(name, number of its options, dtype), of which the first of each name in double precision are quick."""
    for name, info in INFOS.items():
        for i in range(len(info.optim_inputs_func("cpu"))):
            for dtype in RTOL if info.supports_complex else ("float32", "float64"):
                quick = i == 0 and dtype in ("float64", "complex128")
                if info.supports_param_groups:  # all but LBFGS, whose own test has its options
                    yield pytest.param(name, i, dtype, marks=() if quick else pytest.mark.long)


@pytest.mark.parametrize("name, index, dtype", list(cases()))
@pytest.mark.filterwarnings("ignore")
def test_ten_steps_of_the_table(name, index, dtype):
    case = INFOS[name].optim_inputs_func("cpu")[index]
    kwargs = {k: v for k, v in case.kwargs.items() if k not in OTHER_WAYS}
    ten_steps(name, kwargs, dtype, 0.02 if name == "Muon" else RTOL[dtype])


@pytest.mark.parametrize("name", INFOS)
@pytest.mark.filterwarnings("ignore")
def test_wrong_arguments(name):
    taken = []
    for wrong in INFOS[name].optim_error_inputs_func("cpu", torch.float32):
        given = wrong.optimizer_error_input
        params = given.params if given.params is not None else [torch.nn.Parameter(torch.randn(2, 3))]
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                optimizer = getattr(optim, name)(parameters(params), **ours(given.kwargs))
                optimizer.step()
            except (ValueError, TypeError):
                continue
        if not said and not given.kwargs.get("foreach"):  # which changes nothing here, also beside tensors as options
            taken.append((given.desc, given.kwargs))
    assert not taken, taken
