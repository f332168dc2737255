"""Kullback-Leibler divergences: the mean under p of log p(x) - log q(x), in closed form."""

import infinicore

from .continuous import Cauchy, Exponential, Gumbel, HalfNormal, Laplace, Normal, Uniform
from .discrete import Bernoulli, Binomial, Categorical, Geometric, OneHotCategorical, Poisson
from .gamma import Beta, Dirichlet, Gamma
from .multivariate import Independent, MultivariateNormal
from .transformed import TransformedDistribution

_rules = {}  # (class of p, class of q) -> function


def register_kl(type_p, type_q):
    """A decorator: `function(p, q)` is the divergence of these classes, and of those made of them."""

    def register(function):
        _rules[type_p, type_q] = function
        return function

    return register


def kl_divergence(p, q):
    """KL(p || q) for each distribution of the batch; NotImplementedError for classes that have no rule."""
    for a in type(p).__mro__:
        for b in type(q).__mro__:
            if (a, b) in _rules:
                return _rules[a, b](p, q)
    raise NotImplementedError(
        f"there is no divergence of {type(p).__name__} from {type(q).__name__}: give one to `register_kl`, or take the "
        "mean of p.log_prob(x) - q.log_prob(x) over draws"
    )


@register_kl(Normal, Normal)
def _(p, q):
    ratio, apart = (p.scale / q.scale).square(), ((p.loc - q.loc) / q.scale).square()
    return 0.5 * (ratio + apart - 1 - ratio.log())


@register_kl(HalfNormal, HalfNormal)
def _(p, q):
    ratio = (p.scale / q.scale).square()
    return 0.5 * (ratio - 1 - ratio.log())


@register_kl(Laplace, Laplace)
def _(p, q):
    ratio, apart = p.scale / q.scale, (p.loc - q.loc).abs()
    return -ratio.log() + apart / q.scale + ratio * (-apart / p.scale).exp() - 1


@register_kl(Cauchy, Cauchy)
def _(p, q):
    top = ((p.scale + q.scale).square() + (p.loc - q.loc).square()).log()
    return top - (4 * p.scale * q.scale).log()


@register_kl(Gumbel, Gumbel)
def _(p, q):
    ratio, apart = p.scale / q.scale, (q.loc - p.loc) / q.scale
    euler = 0.5772156649015329
    return -ratio.log() - apart + ratio * euler + (apart + infinicore.lgamma(1 + ratio)).exp() - (1 + euler)


@register_kl(Uniform, Uniform)
def _(p, q):
    inside = (q.low <= p.low).logical_and(q.high >= p.high)
    return infinicore.where(inside, ((q.high - q.low) / (p.high - p.low)).log(), infinicore.inf)


@register_kl(Exponential, Exponential)
def _(p, q):
    ratio = q.rate / p.rate
    return -ratio.log() + ratio - 1


@register_kl(Gamma, Gamma)
def _(p, q):
    a, b = p.concentration, q.concentration
    own = b * (p.rate / q.rate).log() + infinicore.lgamma(b) - infinicore.lgamma(a)
    return own + (a - b) * infinicore.digamma(a) + (q.rate - p.rate) * (a / p.rate)


@register_kl(Beta, Beta)
def _(p, q):
    pairs = [(x.concentration1, x.concentration0) for x in (p, q)]
    return kl_divergence(*(Dirichlet(infinicore.stack(pair, -1), validate_args=False) for pair in pairs))


@register_kl(Dirichlet, Dirichlet)
def _(p, q):
    a, b, total = p.concentration, q.concentration, p.concentration.sum(-1)
    apart = (a - b) * (infinicore.digamma(a) - infinicore.digamma(total).unsqueeze(-1))
    return q._log_norm() - p._log_norm() + apart.sum(-1)


@register_kl(Bernoulli, Bernoulli)
def _(p, q):
    yes = p.probs * (infinicore.logsigmoid(p.logits) - infinicore.logsigmoid(q.logits))
    no = (1 - p.probs) * (infinicore.logsigmoid(-p.logits) - infinicore.logsigmoid(-q.logits))
    possible = ((q.probs > 0) | (p.probs == 0)).logical_and((q.probs < 1) | (p.probs == 1))
    return infinicore.where(possible, yes + no, infinicore.inf)


@register_kl(Geometric, Geometric)
def _(p, q):
    return -p.entropy() - infinicore.log1p(-q.probs) / p.probs - q.logits


@register_kl(Binomial, Binomial)
def _(p, q):
    if (p.total_count != q.total_count).any().item():
        raise NotImplementedError("the divergence of binomial distributions needs one `total_count`")
    yes = p.probs * (infinicore.logsigmoid(p.logits) - infinicore.logsigmoid(q.logits))
    return p.total_count * (yes + (1 - p.probs) * (infinicore.logsigmoid(-p.logits) - infinicore.logsigmoid(-q.logits)))


@register_kl(Poisson, Poisson)
def _(p, q):
    return infinicore.xlogy(p.rate, p.rate / q.rate) - (p.rate - q.rate)


@register_kl(Categorical, Categorical)
@register_kl(OneHotCategorical, OneHotCategorical)
def _(p, q):
    each = p.probs * (p.logits - q.logits)
    each = infinicore.where(p.probs == 0, 0.0, infinicore.where(q.probs == 0, infinicore.inf, each))
    return each.sum(-1)


@register_kl(MultivariateNormal, MultivariateNormal)
def _(p, q):
    shape = infinicore.broadcast_shapes(tuple(p.batch_shape), tuple(q.batch_shape))
    size = p.event_shape[0]
    own, other = (x._factor.expand(*shape, size, size) for x in (p, q))
    apart = (q.loc - p.loc).expand(*shape, size).unsqueeze(-1)
    spread = infinicore.linalg.solve_triangular(other, infinicore.cat([own, apart], -1), upper=False)
    return q._half_log_det() - p._half_log_det() + 0.5 * (spread.square().sum((-2, -1)) - size)


@register_kl(Independent, Independent)
def _(p, q):
    if p.reinterpreted_batch_ndims != q.reinterpreted_batch_ndims:
        raise NotImplementedError("the divergence of Independents needs one `reinterpreted_batch_ndims`")
    return p._summed(kl_divergence(p.base_dist, q.base_dist))


@register_kl(TransformedDistribution, TransformedDistribution)
def _(p, q):
    if list(map(type, p.transforms)) != list(map(type, q.transforms)) or any(
        vars(t) for t in p.transforms + q.transforms
    ):
        raise NotImplementedError("the divergence of transformed distributions needs the same transforms")
    return kl_divergence(p.base_dist, q.base_dist)
