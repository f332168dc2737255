"""Averages of weights beside PyTorch: SWA, EMA, the schedule, and batch norms made again."""

import numpy as np
import pytest

import infinicore as ic


def _run(lib, swa_utils, how):
    model = lib.nn.Sequential(lib.nn.Linear(3, 4), lib.nn.BatchNorm1d(4), lib.nn.Linear(4, 1))
    rng = np.random.default_rng(3)
    for p in model.parameters():
        p.data.copy_(lib.from_numpy(rng.standard_normal(tuple(p.shape)).astype(np.float32)))
    options = {
        "mean": {},
        "ema": {"multi_avg_fn": swa_utils.get_ema_multi_avg_fn(0.9), "use_buffers": True},
        "own": {"avg_fn": lambda average, new, n: (average * n + 2 * new) / (n + 2)},
    }[how]
    average = swa_utils.AveragedModel(model, **options)
    opt = lib.optim.SGD(model.parameters(), lr=0.1)
    scheduler = swa_utils.SWALR(opt, swa_lr=0.02, anneal_epochs=3, anneal_strategy="linear" if how == "own" else "cos")
    batches = [lib.from_numpy(rng.standard_normal((8, 3)).astype(np.float32)) for _ in range(6)]
    rates = []
    for x in batches:
        opt.zero_grad()
        model(x).square().mean().backward()
        opt.step()
        average.update_parameters(model)
        scheduler.step()
        rates.append(opt.param_groups[0]["lr"])
    swa_utils.update_bn([(x, 0) for x in batches], average)
    return rates, {name: t.detach().numpy() for name, t in average.state_dict().items()}


@pytest.mark.parametrize("how", ["mean", "ema", "own"])
def test_beside_torch(how):
    torch = pytest.importorskip("torch")
    from torch.optim import swa_utils

    rates, wanted = _run(torch, swa_utils, how)
    got_rates, got = _run(ic, ic.optim.swa_utils, how)
    np.testing.assert_allclose(got_rates, rates, rtol=1e-12)
    assert list(got) == list(wanted)
    for name, value in wanted.items():
        np.testing.assert_allclose(got[name], value, rtol=2e-4, atol=2e-6, err_msg=name)


def test_state_of_swalr_is_that_of_torch():
    """The names of a state, so that what PyTorch saved is what goes on here."""
    torch = pytest.importorskip("torch")
    one = ic.optim.swa_utils.SWALR(ic.optim.SGD([ic.nn.Parameter(ic.ones(1))], lr=0.1), 0.05, anneal_strategy="linear")
    other = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    wanted = torch.optim.swa_utils.SWALR(other, 0.05, anneal_strategy="linear").state_dict()
    assert set(wanted) - set(one.state_dict()) == {"_get_lr_called_within_step"}
    assert one.state_dict()["_anneal_strategy"] == wanted["_anneal_strategy"] == "linear"


def test_refused():
    swa = ic.optim.swa_utils
    opt = ic.optim.SGD(ic.nn.Linear(1, 1).parameters(), lr=0.1)
    for call in (
        lambda: swa.AveragedModel(ic.nn.Linear(1, 1), avg_fn=max, multi_avg_fn=max),
        lambda: swa.SWALR(opt, 0.1, anneal_strategy="none"),
        lambda: swa.SWALR(opt, 0.1, anneal_epochs=-1),
        lambda: swa.get_ema_avg_fn(1.5),
    ):
        with pytest.raises(ValueError, match=r"^`"):
            call()
