"""Distributions beside PyTorch's: densities, moments, divergences and their gradients; draws by their moments."""

import functools

import numpy as np
import pytest

import infinicore as ic

torch = pytest.importorskip("torch")

R = np.random.default_rng(3)
REAL, POSITIVE = R.standard_normal((3, 4)), R.uniform(0.4, 4, (3, 4))
CHANCE, SHARES = R.uniform(0.1, 0.9, (3, 4)), R.dirichlet(np.ones(4), 3)
MATRIX = np.tril(R.uniform(-1, 1, (3, 4, 4)), -1) + np.eye(4) * R.uniform(0.5, 2, (3, 4, 1))
PSD = MATRIX @ MATRIX.swapaxes(-1, -2)
# name -> (parameters, values in the support)
CASES = {
    "Normal": ({"loc": REAL, "scale": POSITIVE}, REAL + 1),
    "LogNormal": ({"loc": REAL, "scale": POSITIVE}, POSITIVE + 1),
    "HalfNormal": ({"scale": POSITIVE}, POSITIVE + 1),
    "Laplace": ({"loc": REAL, "scale": POSITIVE}, REAL + 1),
    "Cauchy": ({"loc": REAL, "scale": POSITIVE}, REAL + 1),
    "Gumbel": ({"loc": REAL, "scale": POSITIVE}, REAL + 1),
    "Uniform": ({"low": REAL, "high": REAL + POSITIVE}, REAL + 0.3 * POSITIVE),
    "Exponential": ({"rate": POSITIVE}, POSITIVE + 1),
    "Gamma": ({"concentration": POSITIVE, "rate": POSITIVE[::-1].copy()}, POSITIVE + 1),
    "Chi2": ({"df": POSITIVE}, POSITIVE + 1),
    "StudentT": ({"df": POSITIVE + 0.5, "loc": REAL, "scale": POSITIVE}, REAL + 1),
    "Beta": ({"concentration1": POSITIVE, "concentration0": POSITIVE[::-1].copy()}, CHANCE),
    "Dirichlet": ({"concentration": POSITIVE}, SHARES),
    "Bernoulli": ({"probs": CHANCE}, np.round(CHANCE)),
    "Bernoulli by logits": ({"logits": REAL}, np.round(CHANCE)),
    "Geometric": ({"probs": CHANCE}, np.floor(POSITIVE)),
    "Geometric by logits": ({"logits": REAL}, np.floor(POSITIVE)),
    "Binomial": ({"total_count": np.full((3, 4), 6.0), "probs": CHANCE}, np.floor(POSITIVE)),
    "Poisson": ({"rate": POSITIVE}, np.floor(POSITIVE)),
    "Categorical": ({"probs": POSITIVE}, np.array([3, 0, 1])),
    "Categorical by logits": ({"logits": REAL}, np.array([3, 0, 1])),
    "OneHotCategorical": ({"probs": POSITIVE}, np.eye(4)[[3, 0, 1]]),
    "MultivariateNormal by covariance": ({"loc": REAL, "covariance_matrix": PSD}, REAL + 1),
    "MultivariateNormal by precision": ({"loc": REAL, "precision_matrix": PSD}, REAL + 1),
    "MultivariateNormal by factor": ({"loc": REAL, "scale_tril": MATRIX}, REAL + 1),
}
FACTS = ("mean", "variance", "stddev", "mode")


def tensors(lib, arrays, grad=False):
    return {name: lib.from_numpy(x.copy()).requires_grad_(grad) for name, x in arrays.items()}


def made(lib, name, parameters):
    return getattr(lib.distributions, name.split()[0])(**parameters)


def close(y, z, limit=1e-9):
    a, b = y.detach().numpy(), z.detach().numpy()
    assert a.shape == b.shape and y.dtype.name == str(z.dtype).removeprefix("torch.")
    np.testing.assert_allclose(a, b, limit, limit)


def both(name, call, wrt=True):
    """A result of each library, and the gradients of its sum by the parameters."""
    found = []
    for lib in (ic, torch):
        given = tensors(lib, CASES[name][0], wrt)
        y = call(lib, made(lib, name, given), given)
        slopes = {}
        if wrt and y.requires_grad:
            y.sum().backward()
            slopes = {k: x.grad for k, x in given.items() if x.grad is not None}
        found.append((y, slopes))
    (y, slopes), (z, wanted) = found
    close(y, z)
    for k in wanted:
        close(slopes[k], wanted[k], 1e-7)


@pytest.mark.parametrize("name", CASES)
def test_log_prob(name):
    value = CASES[name][1]
    both(name, lambda lib, d, _: d.log_prob(lib.from_numpy(value.copy())))
    more = np.broadcast_to(value, (2, *value.shape)).copy()
    both(name, lambda lib, d, _: d.log_prob(lib.from_numpy(more)))


@pytest.mark.parametrize("name", CASES)
def test_facts(name):
    for fact in FACTS:
        try:
            getattr(made(torch, name, tensors(torch, CASES[name][0])), fact)
        except (NotImplementedError, AttributeError):
            continue
        both(name, lambda lib, d, _, fact=fact: getattr(d, fact), fact != "mode")


@pytest.mark.parametrize("name", [n for n in CASES if n.split()[0] != "Binomial"])
def test_entropy(name):
    if name.startswith("Poisson"):
        with pytest.raises(NotImplementedError, match="no `entropy`"):
            made(ic, name, tensors(ic, CASES[name][0])).entropy()
        return
    both(name, lambda lib, d, _: d.entropy())


@pytest.mark.parametrize(
    "name", ["Normal", "LogNormal", "HalfNormal", "Laplace", "Cauchy", "Gumbel", "Uniform", "Exponential"]
)
def test_cdf_and_back(name):
    value = CASES[name][1]
    both(name, lambda lib, d, _: d.cdf(lib.from_numpy(value.copy())))
    both(name, lambda lib, d, _: d.icdf(lib.from_numpy(CHANCE.copy())))
    d, x = made(ic, name, tensors(ic, CASES[name][0])), ic.from_numpy(value.copy())
    np.testing.assert_allclose(d.icdf(d.cdf(x)).numpy(), value, 1e-6)


def test_cdf_of_gamma():
    both("Gamma", lambda lib, d, _: d.cdf(lib.from_numpy(CASES["Gamma"][1].copy())), False)


@pytest.mark.parametrize("name", CASES)
def test_divergence(name):
    first = CASES[name][0]
    second = {k: x[::-1].copy() for k, x in first.items()}
    if name == "Uniform":
        second = {"low": REAL - 1, "high": REAL + POSITIVE + 1}
    try:
        torch.distributions.kl_divergence(*(made(torch, name, tensors(torch, x)) for x in (first, second)))
    except NotImplementedError:
        with pytest.raises(NotImplementedError, match="register_kl"):
            ic.distributions.kl_divergence(*(made(ic, name, tensors(ic, x)) for x in (first, second)))
        return
    both(name, lambda lib, d, _: lib.distributions.kl_divergence(d, made(lib, name, tensors(lib, second))))


def test_divergence_of_what_q_cannot_be():
    for name, p, q in (("Uniform", (0.0, 2.0), (0.0, 1.0)), ("Bernoulli", (0.5,), (1.0,))):
        found = [
            lib.distributions.kl_divergence(*(getattr(lib.distributions, name)(*x) for x in (p, q)))
            for lib in (ic, torch)
        ]
        assert found[0].item() == found[1].item() == np.inf
    p, q = ([0.5, 0.5], [1.0, 0.0]), 0
    found = [
        lib.distributions.kl_divergence(*(lib.distributions.Categorical(lib.tensor(x)) for x in p))
        for lib in (ic, torch)
    ]
    assert found[0].item() == found[1].item() == np.inf


@pytest.mark.parametrize("name", CASES)
def test_draws(name):
    """Shapes and dtypes are PyTorch's; means and variances of 40,000 draws lie within six standard errors."""
    ic.manual_seed(0)
    mine, theirs = (made(lib, name, tensors(lib, CASES[name][0])) for lib in (ic, torch))
    x, n = mine.sample((40000,)), 40000
    wanted = theirs.sample((2,))
    assert x.dtype.name == str(wanted.dtype).removeprefix("torch.") and tuple(x.shape[1:]) == tuple(wanted.shape[1:])
    assert mine.sample().shape == theirs.sample().shape and mine.sample((2, 3)).shape == theirs.sample((2, 3)).shape
    assert (mine.batch_shape, mine.event_shape) == (theirs.batch_shape, theirs.event_shape)
    if name.startswith("Categorical"):
        counts = np.stack([(x.numpy() == k).mean(0) for k in range(4)], -1)
        p = mine.probs.numpy()
        assert (np.abs(counts - p) < 6 * np.sqrt(p * (1 - p) / n)).all()
        return
    if name in ("Cauchy", "StudentT", "LogNormal"):  # whose moments do not settle
        below = (x <= mine.loc if name != "LogNormal" else x <= mine.loc.exp()).double().mean(0).numpy()
        assert np.abs(below - 0.5).max() < 6 * 0.5 / np.sqrt(n)
        return
    a = x.double().numpy()
    mean, variance = mine.mean.numpy(), mine.variance.numpy()
    assert (np.abs(a.mean(0) - mean) < 6 * np.sqrt(variance / n)).all()
    kurtosis = ((a - mean) ** 4).mean(0)
    assert (np.abs(a.var(0) - variance) < 6 * np.sqrt(kurtosis / n)).all()


def test_draws_of_gamma_follow_their_cdf():
    """Kolmogorov and Smirnov's distance of 20,000 draws, for concentrations below 1 and above."""
    from scipy import stats

    ic.manual_seed(1)
    for a in (0.05, 0.5, 1.0, 3.0, 100.0):
        x = ic.distributions.Gamma(ic.tensor(a, dtype="float64"), 2.0).sample((20000,)).numpy()
        assert stats.kstest(x, stats.gamma(a, scale=0.5).cdf).statistic < 1.63 / np.sqrt(20000)


def test_slope_of_gamma():
    """The gradient of a draw by its concentration, beside PyTorch's for the same draws."""
    from infinicore.distributions.gamma import gamma_slope

    a = np.repeat([0.1, 0.7, 1.0, 2.5, 9.0, 60.0, 2000.0], 40)
    x = R.gamma(a)
    keep = x > 1e-30
    got = gamma_slope(*(ic.from_numpy(v[keep]) for v in (a, x))).numpy()
    # PyTorch's own is an approximation, good to about 1e-3 for large concentrations.
    np.testing.assert_allclose(
        got, torch._standard_gamma_grad(*(torch.from_numpy(v[keep]) for v in (a, x))).numpy(), 4e-3
    )
    exact = [_slope_by_quantile(*pair) for pair in zip(a[keep][::7], x[keep][::7])]
    np.testing.assert_allclose(got[::7], exact, 2e-5)


def _slope_by_quantile(a, x):
    """By the quantiles of neighbouring concentrations, in SciPy."""
    from scipy import special

    h, lower = 1e-4 * a, x < a
    at, back = (special.gammainc, special.gammaincinv) if lower else (special.gammaincc, special.gammainccinv)
    p = at(a, x)
    return (8 * (back(a + h, p) - back(a - h, p)) - (back(a + 2 * h, p) - back(a - 2 * h, p))) / (12 * h)


RSAMPLES = [
    n
    for n in CASES
    if n.split()[0] not in ("Bernoulli", "Geometric", "Binomial", "Poisson", "Categorical", "OneHotCategorical")
]


@pytest.mark.parametrize("name", RSAMPLES)
def test_gradients_of_draws(name):
    """The mean slope of a function of draws is the slope of its mean: here that of tanh, by the score function."""
    ic.manual_seed(2)
    n = 200_000
    parameters = tensors(ic, {k: x[:1] for k, x in CASES[name][0].items()}, True)
    d = made(ic, name, parameters)
    assert d.has_rsample
    x = d.rsample((n,))
    by_draws = ic.autograd.grad(ic.tanh(x).mean(0).sum(), list(parameters.values()), retain_graph=True)
    y = x.detach()
    inside = getattr(d, "support", None)
    d._validates = False
    score = ic.tanh(y) - ic.tanh(y).mean(0)
    if name == "Uniform":  # whose score is not that of its ends
        one = ic.from_numpy(np.array(0.0))
        low, high = (parameters[k].detach() for k in ("low", "high"))
        mean = lambda low, high: ((ic.cosh(high).log() - ic.cosh(low).log()) / (high - low)).sum()
        low, high = (v.clone().requires_grad_() for v in (low, high))
        wanted = ic.autograd.grad(mean(low, high) + one, [low, high])
    else:
        log = d.log_prob(y)
        score = score.reshape(*log.shape, -1).sum(-1)
        wanted = ic.autograd.grad((score * log).mean(0).sum(), list(parameters.values()))
    assert inside is not None
    for a, b in zip(by_draws, wanted):
        scale = max(1.0, float(np.abs(b.numpy()).max()))
        assert np.abs(a.numpy() - b.numpy()).max() < 0.03 * scale, (a, b)


def test_independent_and_expanded():
    for lib in (ic, torch):
        d = lib.distributions
        base = d.Normal(lib.zeros(3, 4), lib.ones(4) * 2)
        both_dims = d.Independent(base, 1)
        assert tuple(both_dims.batch_shape) == (3,) and tuple(both_dims.event_shape) == (4,)
        assert tuple(both_dims.log_prob(lib.ones(5, 3, 4)).shape) == (5, 3) and tuple(both_dims.entropy().shape) == (3,)
        assert tuple(both_dims.expand((2, 3)).sample().shape) == (2, 3, 4)
        assert tuple(d.Categorical(lib.ones(4)).expand((3,)).sample((2,)).shape) == (2, 3)
        assert tuple(d.Bernoulli(logits=lib.zeros(())).expand((3,)).sample().shape) == (3,)
        assert tuple(d.Dirichlet(lib.ones(4)).expand((3, 2)).mean.shape) == (3, 2, 4)
        normal = d.MultivariateNormal(lib.zeros(4), lib.eye(4)).expand((3,))
        assert tuple(normal.sample((2,)).shape) == (2, 3, 4)
        assert (
            abs(float(d.kl_divergence(both_dims, d.Independent(d.Normal(0.0, lib.ones(3, 4)), 1))[0]) - 3.2274113)
            < 1e-5
        )


def test_transformed():
    """The squashed normal distribution of soft actor-critic, an affine one that falls, and a chain."""
    value = np.tanh(REAL)
    found = []
    for lib in (ic, torch):
        d = lib.distributions
        t = d.transforms
        own = tensors(lib, CASES["Normal"][0], True)
        for transforms in (
            t.TanhTransform(),
            [t.AffineTransform(1.0, -2.0)],
            [t.SigmoidTransform(), t.AffineTransform(-1.0, 2.0)],
        ):
            chain = d.TransformedDistribution(d.Normal(**own), transforms, validate_args=False)
            y = chain.log_prob(lib.from_numpy(value.copy()))
            slopes = lib.autograd.grad(y.sum(), list(own.values()))
            found.append((lib, [y, *slopes, chain.cdf(lib.from_numpy(value.copy())) if len(found) % 3 else y]))
    for (_, mine), (_, theirs) in zip(found[:3], found[3:]):
        for y, z in zip(mine, theirs):
            close(y, z, 1e-6)
    kept = ic.distributions.TanhTransform(cache_size=1)
    chain = ic.distributions.TransformedDistribution(ic.distributions.Normal(8.0, 1.0), kept)
    y = chain.rsample((64,))
    assert np.isfinite(chain.log_prob(y).numpy()).all()  # where atanh(y) would be infinite


def test_mixture():
    found = []
    for lib in (ic, torch):
        d = lib.distributions
        mixture = d.Categorical(lib.from_numpy(SHARES.copy()))
        parts = d.Normal(*tensors(lib, CASES["Normal"][0]).values())
        whole = d.MixtureSameFamily(mixture, parts)
        x = lib.from_numpy(REAL[:, 0].copy())
        vectors = d.MixtureSameFamily(d.Categorical(lib.ones(3).double()), d.Independent(parts, 1))
        found.append([whole.log_prob(x), whole.cdf(x), whole.mean, whole.variance,
                      vectors.log_prob(lib.from_numpy(REAL.copy())), vectors.mean, vectors.variance])  # fmt: skip
        assert tuple(whole.sample((5,)).shape) == (5, 3) and tuple(vectors.sample((2,)).shape) == (2, 4)
    for y, z in zip(*found):
        close(y, z)
    ic.manual_seed(0)
    d = ic.distributions
    draws = d.MixtureSameFamily(d.Categorical(ic.tensor([0.25, 0.75])), d.Normal(ic.tensor([-5.0, 5.0]), 0.1)).sample(
        (20000,)
    )
    assert abs((draws > 0).float().mean().item() - 0.75) < 0.02


def test_draws_of_reinforcement_learning():
    """REINFORCE: the gradient of the mean reward by log-probabilities of actions."""
    ic.manual_seed(0)
    logits = ic.zeros(3).requires_grad_()
    optimizer = ic.optim.SGD([logits], lr=0.5)
    rewards = ic.tensor([0.0, 1.0, 0.2])
    for _ in range(200):
        policy = ic.distributions.Categorical(logits=logits)
        action = policy.sample((32,))
        loss = -(policy.log_prob(action) * (rewards[action] - rewards[action].mean())).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert ic.distributions.Categorical(logits=logits).mode.item() == 1
    assert ic.distributions.Categorical(logits=logits).probs[1].item() > 0.9


def test_enumerated():
    for name in ("Bernoulli", "Categorical", "OneHotCategorical"):
        for expand in (True, False):
            close(*(made(lib, name, tensors(lib, CASES[name][0])).enumerate_support(expand) for lib in (ic, torch)))


REFUSED = {
    "a scale of 0": lambda d: d.Normal(0.0, 0.0),
    "a location that is NaN": lambda d: d.Normal(float("nan"), 1.0),
    "chances above 1": lambda d: d.Bernoulli(1.5),
    "both": lambda d: d.Bernoulli(0.5, 0.0),
    "neither": lambda d: d.Categorical(),
    "negative shares": lambda d: d.Categorical(ic.tensor([0.5, -0.1])),
    "a number of classes": lambda d: d.Categorical(ic.tensor(0.5)),
    "ends in the wrong order": lambda d: d.Uniform(1.0, 0.0),
    "a matrix that is not definite": lambda d: d.MultivariateNormal(ic.zeros(2), -ic.eye(2)),
    "two matrices": lambda d: d.MultivariateNormal(ic.zeros(2), ic.eye(2), ic.eye(2)),
    "a class that is not there": lambda d: d.Categorical(ic.ones(3)).log_prob(ic.tensor(3)),
    "half a success": lambda d: d.Bernoulli(0.5).log_prob(ic.tensor(0.5)),
    "a negative time": lambda d: d.Exponential(1.0).log_prob(ic.tensor(-1.0)),
    "a value of another size": lambda d: d.Dirichlet(ic.ones(3)).log_prob(ic.ones(2) / 2),
    "too many dims": lambda d: d.Independent(d.Normal(0.0, 1.0), 1),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    with pytest.raises(ValueError, match="`"):
        REFUSED[name](ic.distributions)


def test_checks_can_be_left_out():
    d = ic.distributions
    assert d.Normal(0.0, -1.0, validate_args=False).scale.item() == -1
    with pytest.raises(NotImplementedError, match="`rsample`"):
        d.Poisson(1.0).rsample()
    with pytest.raises(TypeError, match="numbers or tensors"):
        d.Normal("0", 1.0)
    try:
        d.Distribution.set_default_validate_args(False)
        assert d.Normal(0.0, -1.0).scale.item() == -1
    finally:
        d.Distribution.set_default_validate_args(True)


def test_a_rule_of_ones_own():
    class Mine(ic.distributions.Normal):
        pass

    @ic.distributions.register_kl(Mine, ic.distributions.Laplace)
    def _(p, q):
        return p.loc + q.scale

    assert ic.distributions.kl_divergence(Mine(1.0, 1.0), ic.distributions.Laplace(0.0, 2.0)).item() == 3
    assert (
        functools.reduce(
            lambda a, b: a + b, ic.distributions.kl_divergence(Mine(1.0, 1.0), Mine(1.0, 1.0)).reshape(1).tolist()
        )
        == 0
    )


def test_words():
    d = ic.distributions
    assert repr(d.Normal(0.0, 1.0)) == "Normal(loc: 0.0, scale: 1.0)"
    assert repr(d.Normal(ic.zeros(3), 1.0)) == "Normal(loc: (3,), scale: (3,))"
    assert d.Normal(0.0, 1.0).perplexity().item() == pytest.approx(np.exp(0.5 + 0.5 * np.log(2 * np.pi)), rel=1e-6)
    assert d.Normal(0.0, 1.0).sample_n(3).shape == [3]
