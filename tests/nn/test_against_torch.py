"""Every module against PyTorch's of the same name: state, text, output, and all gradients."""

import copy

import numpy as np
import pytest

import infinicore as ic
from infinicore import nn

torch = pytest.importorskip("torch")


class Ids:
    """Integers below `high`."""

    def __init__(self, high, *shape):
        self.high, self.shape = high, shape

    def draw(self, rng):
        return rng.integers(0, self.high, self.shape)


class Signs:
    """Numbers 1 and -1."""

    def __init__(self, *shape):
        self.shape = shape

    def draw(self, rng):
        return rng.integers(0, 2, self.shape) * 2 - 1


class Chances:
    """Probabilities, which want no gradient."""

    def __init__(self, *shape, axis=None, log=False):
        self.shape, self.axis, self.log = shape, axis, log

    def draw(self, rng):
        p = rng.uniform(0.05, 0.95, self.shape)
        if self.axis is not None:
            p = p / p.sum(self.axis, keepdims=True)
        return np.log(p) if self.log else p


class Inputs(Chances):
    """Probabilities, or their logarithms, that want a gradient."""


class Mask:
    """A bool mask that hides some columns, never the first."""

    def __init__(self, *shape):
        self.shape = shape

    def draw(self, rng):
        mask = rng.integers(0, 2, self.shape).astype(bool)
        mask[..., 0] = False
        return mask


class Causal:
    """The causal mask of floats."""

    def __init__(self, size):
        self.size = size

    def draw(self, rng):
        return np.triu(np.full((self.size, self.size), -np.inf), 1)


X = (3, 4)
IMAGE, SIGNAL, VOLUME = (2, 4, 7, 6), (2, 4, 9), (2, 3, 5, 6, 7)
ACTIVATIONS = [
    ("ReLU", {}),
    ("ReLU6", {}),
    ("LeakyReLU", {}),
    ("LeakyReLU", {"negative_slope": -0.3}),
    ("PReLU", {}),
    ("PReLU", {"num_parameters": 4}),
    ("ELU", {"alpha": 0.7}),
    ("SELU", {}),
    ("CELU", {"alpha": 0.5}),
    ("GELU", {}),
    ("GELU", {"approximate": "tanh"}),
    ("SiLU", {}),
    ("Mish", {}),
    ("Softplus", {}),
    ("Softplus", {"beta": 3, "threshold": 4}),
    ("Softsign", {}),
    ("Sigmoid", {}),
    ("LogSigmoid", {}),
    ("Tanh", {}),
    ("Tanhshrink", {}),
    ("Hardtanh", {"min_val": -0.5}),
    ("Hardswish", {}),
    ("Hardsigmoid", {}),
    ("Hardshrink", {}),
    ("Softshrink", {"lambd": 0.3}),
    ("Threshold", {"threshold": 0.2, "value": -3.0}),
    ("GLU", {"dim": 1}),
    ("Softmax", {"dim": 1}),
    ("Softmin", {"dim": 0}),
    ("LogSoftmax", {"dim": -1}),
]
CASES = [(name, (), options, [(5, 4)]) for name, options in ACTIVATIONS]
CASES += [
    ("Identity", (), {}, [X]),
    ("Linear", (4, 5), {}, [X]),
    ("Linear", (4, 5), {"bias": False}, [(2, 3, 4)]),
    ("Bilinear", (4, 3, 5), {}, [(2, 6, 4), (2, 6, 3)]),
    ("Conv1d", (4, 6, 3), {"stride": 2, "padding": 1}, [SIGNAL]),
    ("Conv1d", (4, 6, 3), {"padding": "same", "padding_mode": "circular", "bias": False}, [SIGNAL]),
    ("Conv2d", (4, 6, 3), {}, [IMAGE]),
    ("Conv2d", (4, 6, (3, 2)), {"padding": "same", "dilation": (1, 2), "groups": 2}, [IMAGE]),
    ("Conv2d", (4, 6, 3), {"padding": (1, 2), "padding_mode": "reflect"}, [IMAGE]),
    ("Conv2d", (4, 4, 3), {"groups": 4, "stride": (2, 1)}, [IMAGE[1:]]),
    ("LayerNorm", (4,), {}, [X]),
    ("LayerNorm", ((7, 6),), {"bias": False}, [IMAGE]),
    ("LayerNorm", (4,), {"elementwise_affine": False}, [X]),
    ("RMSNorm", (4,), {"eps": 1e-4}, [X]),
    ("RMSNorm", ((7, 6),), {"eps": 1e-4}, [IMAGE]),
    ("RMSNorm", (4,), {"eps": 1e-4, "elementwise_affine": False}, [X]),
    ("GroupNorm", (2, 4), {}, [IMAGE]),
    ("GroupNorm", (4, 4), {"affine": False}, [SIGNAL]),
    ("BatchNorm1d", (4,), {}, [(6, 4)]),
    ("BatchNorm1d", (4,), {"momentum": None}, [SIGNAL]),
    ("BatchNorm2d", (4,), {"affine": False}, [IMAGE]),
    ("BatchNorm2d", (4,), {"track_running_stats": False}, [IMAGE]),
    ("MaxPool1d", (3,), {"stride": 2}, [SIGNAL]),
    ("MaxPool2d", (2,), {}, [IMAGE]),
    ("MaxPool2d", ((3, 2),), {"stride": 1, "padding": 1, "ceil_mode": True}, [IMAGE]),
    ("AvgPool1d", (3,), {"padding": 1}, [SIGNAL]),
    ("AvgPool2d", (3,), {"padding": 1, "count_include_pad": False}, [IMAGE]),
    ("AdaptiveAvgPool1d", (4,), {}, [SIGNAL]),
    ("AdaptiveAvgPool2d", (1,), {}, [IMAGE]),
    ("AdaptiveAvgPool2d", ((3, None),), {}, [IMAGE]),
    ("AdaptiveMaxPool1d", (2,), {}, [SIGNAL]),
    ("AdaptiveMaxPool2d", (3,), {}, [IMAGE]),
    ("MaxPool3d", (2,), {"padding": 1}, [VOLUME]),
    ("AvgPool3d", (3,), {"stride": 2, "count_include_pad": False, "padding": (1, 0, 1)}, [VOLUME]),
    ("AdaptiveAvgPool3d", ((2, None, 3),), {}, [VOLUME]),
    ("AdaptiveMaxPool3d", (2,), {}, [VOLUME]),
    ("Embedding", (7, 4), {}, [Ids(7, 3, 5)]),
    ("Embedding", (7, 4), {"padding_idx": -2}, [Ids(7, 3, 9)]),
    ("Flatten", (), {}, [IMAGE]),
    ("Unflatten", (1, (2, 2)), {}, [SIGNAL]),
    ("PixelShuffle", (2,), {}, [IMAGE]),
    ("PixelUnshuffle", (2,), {}, [(2, 3, 4, 6)]),
    ("CosineSimilarity", (), {"dim": 1}, [X, X]),
    ("PairwiseDistance", (), {"keepdim": True}, [X, X]),
    ("CrossEntropyLoss", (), {}, [X, Ids(4, 3)]),
    ("CrossEntropyLoss", (), {"ignore_index": 2, "label_smoothing": 0.1}, [(2, 4, 5), Ids(4, 2, 5)]),
    ("CrossEntropyLoss", (), {"reduction": "sum"}, [X, Chances(3, 4, axis=1)]),
    ("NLLLoss", (), {"reduction": "none"}, [X, Ids(4, 3)]),
    ("MSELoss", (), {}, [X, X]),
    ("L1Loss", (), {"reduction": "sum"}, [X, X]),
    ("SmoothL1Loss", (), {"beta": 0.6}, [X, X]),
    ("HuberLoss", (), {"delta": 0.6, "reduction": "none"}, [X, X]),
    ("BCELoss", (), {}, [Inputs(3, 4), Chances(3, 4)]),
    ("BCEWithLogitsLoss", (), {}, [X, Chances(3, 4)]),
    ("KLDivLoss", (), {"reduction": "batchmean"}, [Inputs(3, 4, axis=1, log=True), Chances(3, 4, axis=1)]),
    (
        "KLDivLoss",
        (),
        {"reduction": "sum", "log_target": True},
        [Inputs(3, 4, axis=1, log=True), Inputs(3, 4, axis=1, log=True)],
    ),
    ("PoissonNLLLoss", (), {"full": True}, [X, Ids(5, 3, 4)]),
    ("PoissonNLLLoss", (), {"log_input": False}, [Inputs(3, 4), Ids(5, 3, 4)]),
    ("GaussianNLLLoss", (), {"full": True}, [X, X, Inputs(3, 1)]),
    ("CosineEmbeddingLoss", (), {"margin": 0.1}, [X, X, Signs(3)]),
    ("MarginRankingLoss", (), {"margin": 0.2}, [(5,), (5,), Signs(5)]),
    ("HingeEmbeddingLoss", (), {}, [X, Signs(3, 4)]),
    ("SoftMarginLoss", (), {}, [X, Signs(3, 4)]),
    ("TripletMarginLoss", (), {"swap": True}, [X, X, X]),
]
NAMES = [f"{name}-{'-'.join(map(str, options.values())) or i}" for i, (name, _, options, _) in enumerate(CASES)]


def twins(name, args, options, dtype, **extra):
    """Our module and PyTorch's with the same parameters."""
    theirs = getattr(torch.nn, name)(*args, **options).to(getattr(torch, dtype))
    ours = getattr(nn, name)(*args, **options)
    if dtype == "float64":
        ours.double()
    copy_state(ours, theirs)
    return ours, theirs


def copy_state(ours, theirs):
    state = {k: ic.from_numpy(v.detach().numpy().copy()) for k, v in theirs.state_dict().items()}
    assert list(ours.state_dict()) == list(state)
    ours.load_state_dict(state)


def pairs(rng, kinds, dtype):
    """Inputs for both: floats of a plain shape want gradients."""
    ours, theirs = [], []
    for kind in kinds:
        array = rng.standard_normal(kind) if isinstance(kind, tuple) else kind.draw(rng)
        if array.dtype.kind == "f":
            array = array.astype(dtype)
        wanted = isinstance(kind, (tuple, Inputs))
        ours.append(ic.tensor(array).requires_grad_(wanted))
        theirs.append(torch.tensor(array).requires_grad_(wanted))
    return ours, theirs


TOLERANCE = {"float32": (2e-5, 2e-6), "float64": (1e-10, 1e-11)}
SINGLE = {"Hardsigmoid"}  # PyTorch's derivative multiplies by 1/6 of float32 whatever the dtype


def same(ours, theirs, dtype, what):
    rtol, atol = TOLERANCE[dtype]
    np.testing.assert_allclose(ours.detach().numpy(), theirs.detach().numpy(), rtol=rtol, atol=atol, err_msg=what)
    assert ours.dtype.name == str(theirs.dtype).removeprefix("torch."), what


def compare(ours, theirs, inputs, rng, dtype, **kwargs):
    """Outputs and all gradients of two modules on `pairs`."""
    (x, y) = inputs
    our_kwargs = {k: v[0] if isinstance(v, tuple) else v for k, v in kwargs.items()}
    their_kwargs = {k: v[1] if isinstance(v, tuple) else v for k, v in kwargs.items()}
    a, b = ours(*x, **our_kwargs), theirs(*y, **their_kwargs)
    a = [v for v in (a if isinstance(a, tuple) else (a,)) if v is not None]
    b = [v for v in (b if isinstance(b, tuple) else (b,)) if v is not None]
    assert len(a) == len(b)
    for left, right in zip(a, b):
        assert left.shape == tuple(right.shape)
        same(left, right, dtype, "output")
    losses = [0.0, 0.0]
    for left, right in zip(a, b):
        weight = rng.standard_normal(tuple(right.shape)).astype(dtype)
        losses = [losses[0] + (left * ic.tensor(weight)).sum(), losses[1] + (right * torch.tensor(weight)).sum()]
    losses[0].backward()
    losses[1].backward()
    for i, (left, right) in enumerate(zip(x, y)):
        if right.requires_grad:
            same(left.grad, right.grad, dtype, f"gradient of input {i}")
    for (name, left), right in zip(ours.named_parameters(), theirs.parameters()):
        same(left.grad, right.grad, dtype, f"gradient of {name}")
    for (name, left), right in zip(ours.named_buffers(), theirs.buffers()):
        np.testing.assert_allclose(left.numpy(), right.numpy(), rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name, args, options, kinds", CASES, ids=NAMES)
def test_module(name, args, options, kinds, dtype, rng):
    if name in SINGLE and dtype == "float64":
        pytest.skip("PyTorch computes this in float32")
    ours, theirs = twins(name, args, options, dtype)
    assert repr(ours) == repr(theirs)
    compare(ours, theirs, pairs(rng, kinds, dtype), rng, dtype)
    again = copy.deepcopy(ours)
    assert [p.shape for p in again.parameters()] == [p.shape for p in ours.parameters()]


@pytest.mark.parametrize("name", ["BatchNorm1d", "BatchNorm2d"])
def test_batch_norm_in_evaluation(name, rng):
    ours, theirs = twins(name, (4,), {}, "float32")
    kinds = [SIGNAL if name == "BatchNorm1d" else IMAGE]
    for _ in range(3):
        compare(ours, theirs, pairs(rng, kinds, "float32"), rng, "float32")
        ours.zero_grad()
        theirs.zero_grad()
    compare(ours.eval(), theirs.eval(), pairs(rng, kinds, "float32"), rng, "float32")


@pytest.mark.parametrize("name", ["CrossEntropyLoss", "NLLLoss", "BCELoss", "BCEWithLogitsLoss"])
def test_weighted_losses(name, rng):
    weight = rng.uniform(0.5, 2, 4).astype("float32")
    kinds = [X, Ids(4, 3)] if name in ("CrossEntropyLoss", "NLLLoss") else [Inputs(3, 4), Chances(3, 4)]
    extra = {"pos_weight": weight + 1} if name == "BCEWithLogitsLoss" else {}
    ours = getattr(nn, name)(weight=ic.tensor(weight), **{k: ic.tensor(v) for k, v in extra.items()})
    theirs = getattr(torch.nn, name)(weight=torch.tensor(weight), **{k: torch.tensor(v) for k, v in extra.items()})
    assert list(ours.state_dict()) == list(theirs.state_dict())
    compare(ours, theirs, pairs(rng, kinds, "float32"), rng, "float32")


ATTENTION = [
    ({}, {}),
    ({"batch_first": True}, {"need_weights": False}),
    ({"batch_first": True, "bias": False}, {"average_attn_weights": False}),
    ({"add_bias_kv": True, "add_zero_attn": True, "batch_first": True}, {"need_weights": False}),
    ({"kdim": 6, "vdim": 10, "batch_first": True}, {}),
]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("options, call", ATTENTION, ids=[str(i) for i in range(len(ATTENTION))])
@pytest.mark.parametrize("masked", [False, True])
def test_multihead_attention(options, call, masked, dtype, rng):
    ours, theirs = twins("MultiheadAttention", (8, 2), options, dtype)
    batch, rows, length = 3, 5, 7
    shapes = [(rows, 8), (length, options.get("kdim", 8)), (length, options.get("vdim", 8))]
    first = options.get("batch_first", False)
    kinds = [(batch, *s) if first else (s[0], batch, s[1]) for s in shapes]
    masks = {}
    if masked:
        for name, shape in (("key_padding_mask", (batch, length)), ("attn_mask", (rows, length))):
            mask = Mask(*shape).draw(rng)
            masks[name] = (ic.tensor(mask), torch.tensor(mask))
    compare(ours, theirs, pairs(rng, kinds, dtype), rng, dtype, **call, **masks)


@pytest.mark.parametrize("need_weights", [False, True])
def test_self_attention(need_weights, rng):
    """One product for query, key and value; the causal mask; no batch."""
    ours, theirs = twins("MultiheadAttention", (8, 2), {"batch_first": True}, "float32")
    for shape in ((2, 5, 8), (5, 8)):
        (x,), (y,) = pairs(rng, [shape], "float32")
        mask = Causal(5).draw(rng).astype("float32")
        options = {"need_weights": need_weights, "is_causal": True}
        a, _ = ours(x, x, x, attn_mask=ic.tensor(mask), **options)
        b, _ = theirs(y, y, y, attn_mask=torch.tensor(mask), **options)
        same(a, b, "float32", "output")
        a.square().sum().backward()
        b.square().sum().backward()
        same(x.grad, y.grad, "float32", "gradient")


ARGS = {"dim_feedforward": 12, "dropout": 0.0}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
def test_transformer_layers(norm_first, batch_first, dtype, rng):
    options = {**ARGS, "norm_first": norm_first, "batch_first": batch_first, "activation": "gelu"}
    source, target = ((2, 5, 8), (2, 4, 8)) if batch_first else ((5, 2, 8), (4, 2, 8))
    ours, theirs = twins("TransformerEncoderLayer", (8, 2), options, dtype)
    causal = Causal(5).draw(rng).astype(dtype)
    padding = Mask(2, 5).draw(rng)
    compare(ours, theirs, pairs(rng, [source], dtype), rng, dtype)
    ours.zero_grad()
    theirs.zero_grad()
    masks = {"src_mask": (ic.tensor(causal), torch.tensor(causal)), "is_causal": True}
    compare(ours, theirs, pairs(rng, [source], dtype), rng, dtype, **masks)
    ours, theirs = twins("TransformerDecoderLayer", (8, 2), options, dtype)
    masks = {"memory_key_padding_mask": (ic.tensor(padding), torch.tensor(padding))}
    compare(ours, theirs, pairs(rng, [target, source], dtype), rng, dtype, **masks)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_transformer(rng):
    options = {**ARGS, "num_encoder_layers": 2, "num_decoder_layers": 1, "batch_first": True}
    ours, theirs = twins("Transformer", (8, 2), options, "float32")
    mask = ours.generate_square_subsequent_mask(4)
    np.testing.assert_array_equal(mask.numpy(), theirs.generate_square_subsequent_mask(4).numpy())
    kwargs = {"tgt_mask": (mask, torch.tensor(mask.numpy()))}
    compare(ours, theirs, pairs(rng, [(2, 5, 8), (2, 4, 8)], "float32"), rng, "float32", **kwargs)
    assert repr(ours).replace("NonDynamicallyQuantizable", "") == repr(theirs).replace("NonDynamicallyQuantizable", "")


@pytest.mark.filterwarnings("ignore:Support for mismatched")
def test_transformer_encoder_with_padding(rng):
    options = {**ARGS, "batch_first": True}
    their_layer = torch.nn.TransformerEncoderLayer(8, 2, **options)
    theirs = torch.nn.TransformerEncoder(their_layer, 2, torch.nn.LayerNorm(8), enable_nested_tensor=False)
    ours = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, **options), 2, nn.LayerNorm(8))
    assert ours.layers[0].linear1.weight is not ours.layers[1].linear1.weight
    copy_state(ours, theirs)
    padding, causal = Mask(2, 5).draw(rng), Causal(5).draw(rng).astype("float32")
    masks = {
        "src_key_padding_mask": (ic.tensor(padding), torch.tensor(padding)),
        "mask": (ic.tensor(causal), torch.tensor(causal)),
    }
    compare(ours, theirs, pairs(rng, [(2, 5, 8)], "float32"), rng, "float32", **masks)


@pytest.mark.parametrize(
    "name, options",
    [("ReLU", {}), ("LeakyReLU", {"negative_slope": -0.5}), ("SiLU", {}), ("Hardtanh", {}), ("ELU", {})],
)
def test_in_place_activations(name, options, rng):
    """The input holds the result, and gradients are those of the activation out of place."""
    ours, theirs = (getattr(m, name)(**options, inplace=True) for m in (nn, torch.nn))
    plain = getattr(torch.nn, name)(**options)
    (x,), (y,) = pairs(rng, [X], "float32")
    a = x * 2.0
    b = ours(a)
    assert b is a
    same(b, plain(y * 2.0), "float32", "output")
    b.square().sum().backward()
    plain(y * 2.0).square().sum().backward()
    same(x.grad, y.grad, "float32", "gradient")
    assert repr(ours) == repr(theirs)
    with ic.no_grad():
        c = x.detach().clone()
        assert ours(c) is c
    same(c, plain(y), "float32", "without gradients")


PADS = [("constant", (1, 2)), ("reflect", (2, 1, 1, 0)), ("replicate", (3, 1, 0, 2)), ("circular", (2, 3))]


@pytest.mark.parametrize("mode, pad", PADS)
def test_pad(mode, pad, rng):
    (x,), (y,) = pairs(rng, [(2, 3, 4, 5) if len(pad) == 4 else (2, 3, 5)], "float32")
    a, b = nn.functional.pad(x, pad, mode), torch.nn.functional.pad(y, pad, mode)
    same(a, b, "float32", "output")
    a.square().sum().backward()
    b.square().sum().backward()
    same(x.grad, y.grad, "float32", "gradient")
    with pytest.raises(ValueError, match="pad"):
        nn.functional.pad(x, (9, 9), "reflect")


def test_functions_without_a_module(rng):
    F, G = nn.functional, torch.nn.functional
    (x,), (y,) = pairs(rng, [X], "float32")
    for p in (1.0, 2.0):
        same(F.normalize(x, p), G.normalize(y, p), "float32", "normalize")
    ids = rng.integers(0, 4, (2, 3))
    same(F.one_hot(ic.tensor(ids), 5), G.one_hot(torch.tensor(ids), 5), "float32", "one_hot")
    weight = rng.uniform(0.5, 2, X).astype("float32")
    for name in ("mse_loss", "l1_loss", "huber_loss"):
        left = getattr(F, name)(x, x * 0.5, weight=ic.tensor(weight))
        same(left, getattr(G, name)(y, y * 0.5, weight=torch.tensor(weight)), "float32", name)
    q, k, v = (rng.standard_normal((2, 3, n, 4)).astype("float32") for n in (5, 6, 6))
    left = F.scaled_dot_product_attention(*map(ic.tensor, (q, k, v)))
    same(left, G.scaled_dot_product_attention(*map(torch.tensor, (q, k, v))), "float32", "attention")


def test_cosine_similarity_of_zero_rows():
    """A row of zeros has similarity 0, and gradients that are no NaN."""
    x, y = ic.zeros(2, 3).requires_grad_(), ic.ones(2, 3).requires_grad_()
    similarity = nn.functional.cosine_similarity(x, y)
    assert similarity.tolist() == [0.0, 0.0]
    similarity.sum().backward()
    assert np.isfinite(x.grad.numpy()).all() and np.isfinite(y.grad.numpy()).all()
