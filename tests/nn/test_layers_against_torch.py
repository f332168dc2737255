"""Modules of space, padding, margins and bags, and recurrent networks, beside PyTorch's."""

import numpy as np
import pytest

import infinicore as ic
from infinicore import nn

torch = pytest.importorskip("torch")

from .test_against_torch import IMAGE, SIGNAL, VOLUME, Chances, Ids, Inputs, compare, pairs, same, twins

rnn, torch_rnn = nn.utils.rnn, torch.nn.utils.rnn
CASES = [
    ("Conv3d", (3, 4, (3, 2, 3)), {"stride": (1, 2, 1), "padding": 1}, [VOLUME]),
    ("ConvTranspose1d", (4, 6, 3), {"stride": 2, "output_padding": 1, "groups": 2}, [SIGNAL]),
    ("ConvTranspose2d", (4, 6, 3), {"padding": 1, "dilation": 2, "bias": False}, [IMAGE]),
    ("ConvTranspose3d", (3, 2, 2), {"stride": (2, 1, 2)}, [VOLUME]),
    ("BatchNorm3d", (3,), {}, [VOLUME]),
    ("InstanceNorm1d", (4,), {"affine": True, "track_running_stats": True}, [SIGNAL]),
    ("InstanceNorm2d", (4,), {}, [IMAGE]),
    ("InstanceNorm3d", (3,), {"affine": True}, [VOLUME[1:]]),
    ("LocalResponseNorm", (2,), {"alpha": 0.2}, [IMAGE]),
    ("Unfold", (3,), {"padding": 1, "stride": 2}, [IMAGE]),
    ("Fold", ((4, 5), 2), {}, [(2, 12, 12)]),
    ("LPPool2d", (2, 3), {"stride": 2}, [Inputs(*IMAGE)]),
    ("Upsample", (), {"scale_factor": 2, "mode": "bilinear"}, [IMAGE]),
    ("Upsample", (), {"size": (3, 4)}, [IMAGE]),
    ("UpsamplingNearest2d", (), {"scale_factor": 2}, [IMAGE]),
    ("UpsamplingBilinear2d", (), {"size": 9}, [IMAGE]),
    ("ChannelShuffle", (2,), {}, [IMAGE]),
    ("Softmax2d", (), {}, [IMAGE]),
    ("ConstantPad2d", ((1, 2, 0, 3), 1.5), {}, [IMAGE]),
    ("ZeroPad1d", (2,), {}, [SIGNAL]),
    ("ReflectionPad1d", ((2, 1),), {}, [SIGNAL]),
    ("ReflectionPad3d", (1,), {}, [VOLUME]),
    ("ReplicationPad2d", ((1, 0, 2, 1),), {}, [IMAGE]),
    ("CircularPad1d", ((1, 2),), {}, [SIGNAL]),
    ("EmbeddingBag", (6, 3), {"mode": "sum", "padding_idx": 1}, [Ids(6, 4, 5)]),
    ("Embedding", (6, 3), {"scale_grad_by_freq": True, "padding_idx": 0}, [Ids(6, 4, 5)]),
    ("MultiMarginLoss", (), {"p": 2}, [(3, 4), Ids(4, 3)]),
    ("MultiLabelMarginLoss", (), {}, [(3, 4), Ids(4, 3, 4)]),
    ("MultiLabelSoftMarginLoss", (), {"reduction": "sum"}, [(3, 4), Chances(3, 4)]),
    ("TripletMarginWithDistanceLoss", (), {"swap": True}, [(3, 4), (3, 4), (3, 4)]),
    ("LinearCrossEntropyLoss", (4, 6), {"out_features": (2,), "bias": True}, [(3, 4), Ids(6, 3, 2)]),
    ("RNNCell", (3, 4), {"nonlinearity": "relu"}, [(2, 3), (2, 4)]),
    ("LSTMCell", (3, 4), {}, [(2, 3)]),
    ("GRUCell", (3, 4), {"bias": False}, [(3,), (4,)]),
]
NAMES = [f"{case[0]}-{i}" for i, case in enumerate(CASES)]


@pytest.mark.parametrize("name, args, options, kinds", CASES, ids=NAMES)
def test_module(name, args, options, kinds, rng):
    ours, theirs = twins(name, args, options, "float64")
    assert repr(ours) == repr(theirs)
    compare(ours, theirs, pairs(rng, kinds, "float64"), rng, "float64")


RECURRENT = [
    ("RNN", {"num_layers": 2}),
    ("RNN", {"nonlinearity": "relu", "bias": False, "bidirectional": True}),
    ("LSTM", {}),
    ("LSTM", {"num_layers": 2, "bidirectional": True, "batch_first": True}),
    ("LSTM", {"proj_size": 3, "bidirectional": True, "num_layers": 2}),
    ("GRU", {"num_layers": 2, "batch_first": True}),
    ("GRU", {"bidirectional": True, "bias": False}),
]


def flat(result):
    """Every tensor of a result, of packed ones the data."""
    if isinstance(result, (rnn.PackedSequence, torch_rnn.PackedSequence)):
        return [result.data]
    return [x for part in result for x in flat(part)] if isinstance(result, tuple) else [result]


def states(ours, batch, rng, dtype):
    """The first h and c, random, for both."""
    count = ours.num_layers * (1 + ours.bidirectional)
    widths = [ours.proj_size or ours.hidden_size] + [ours.hidden_size] * isinstance(ours, nn.LSTM)
    shapes = [(count, *batch, width) for width in widths]
    return pairs(rng, shapes, dtype)


def both(x):
    return x[0] if len(x) == 1 else tuple(x)


def check(ours, theirs, inputs, firsts, call, rng, dtype):
    results = [flat(call[0](inputs[0], both(firsts[0]))), flat(call[1](inputs[1], both(firsts[1])))]
    losses = [0.0, 0.0]
    for left, right in zip(*results, strict=True):
        same(left, right, dtype, "result")
        weight = rng.standard_normal(tuple(right.shape)).astype(dtype)
        losses = [losses[0] + (left * ic.tensor(weight)).sum(), losses[1] + (right * torch.tensor(weight)).sum()]
    for loss in losses:
        loss.backward()
    for left, right in zip([inputs[0], *firsts[0]], [inputs[1], *firsts[1]]):
        same(left.grad, right.grad, dtype, "gradient of an input")
    for (name, left), right in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        same(left.grad, right.grad, dtype, f"gradient of {name}")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name, options", RECURRENT)
def test_recurrent(name, options, dtype, rng):
    ours, theirs = twins(name, (3, 20), options, dtype)
    assert repr(ours) == repr(theirs)
    for batch in ((2,), ()):
        shape = (5, *batch, 3) if not options.get("batch_first") or not batch else (*batch, 5, 3)
        ((x,), (y,)), firsts = pairs(rng, [shape], dtype), states(ours, batch, rng, dtype)
        ours.zero_grad(), theirs.zero_grad()
        check(ours, theirs, (x, y), firsts, (ours, theirs), rng, dtype)
    same(ours(x)[0], theirs(y)[0], dtype, "without a first state")


@pytest.mark.parametrize("name, options", RECURRENT)
@pytest.mark.parametrize("lengths, sorted_", [((4, 2, 2, 1), True), ((1, 3, 5, 3), False)])
def test_packed(name, options, lengths, sorted_, rng):
    ours, theirs = twins(name, (3, 4), options, "float64")
    first = options.get("batch_first", False)
    shape = (4, 5, 3) if first else (5, 4, 3)
    ((x,), (y,)), firsts = pairs(rng, [shape], "float64"), states(ours, (4,), rng, "float64")

    def run(module, tools):
        def call(x, h):
            packed = tools.pack_padded_sequence(x, list(lengths), batch_first=first, enforce_sorted=sorted_)
            out, last = module(packed, h)
            return tools.pad_packed_sequence(out, batch_first=first, padding_value=-1.0, total_length=6), last

        return call

    check(ours, theirs, (x, y), firsts, (run(ours, rnn), run(theirs, torch_rnn)), rng, "float64")


def test_second_derivatives_and_dropout(rng):
    for name in ("LSTM", "GRU", "RNN"):
        ours, theirs = twins(name, (3, 4), {"num_layers": 2}, "float64")
        (x,), (y,) = pairs(rng, [(3, 2, 3)], "float64")
        (g,) = ic.autograd.grad(ours(x)[0].square().sum(), [x], create_graph=True)
        (h,) = torch.autograd.grad(theirs(y)[0].square().sum(), [y], create_graph=True)
        same(g, h, "float64", name)
        g.square().sum().backward()
        h.square().sum().backward()
        same(x.grad, y.grad, "float64", name)
    ours = nn.LSTM(3, 4, 2, dropout=0.5)
    assert not np.allclose(ours(ic.ones(3, 2, 3))[0].detach(), ours(ic.ones(3, 2, 3))[0].detach())
    with ic.autocast():
        out, _ = ours(ic.ones(3, 2, 3).bfloat16())
    assert out.dtype is ic.float32
    out.mean().backward()
    result, _ = ours(ic.ones(3, 2, 3))
    result.detach().mul_(2.0)
    with pytest.raises(ValueError, match="changed in place"):
        result.sum().backward()


def test_sequences(rng):
    rows = [rng.standard_normal((n, 2)) for n in (3, 5, 1)]
    ours, theirs = [ic.from_numpy(r) for r in rows], [torch.from_numpy(r) for r in rows]
    for side in ("left", "right"):
        options = {"batch_first": True, "padding_value": 2.0, "padding_side": side}
        same(rnn.pad_sequence(ours, **options), torch_rnn.pad_sequence(theirs, **options), "float64", side)
    a, b = rnn.pack_sequence(ours, False), torch_rnn.pack_sequence(theirs, False)
    for name in ("data", "batch_sizes", "sorted_indices", "unsorted_indices"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
    for one, row in zip(rnn.unpack_sequence(a), rows):
        np.testing.assert_array_equal(one, row)


WRONG = [
    (lambda: nn.LSTM(3, 0), ValueError, "`hidden_size`"),
    (lambda: nn.LSTM(3, 4.0), TypeError, "`hidden_size`"),
    (lambda: nn.LSTM(3, 4, proj_size=4), ValueError, "`proj_size`"),
    (lambda: nn.GRU(3, 4, proj_size=2), ValueError, "`proj_size`"),
    (lambda: nn.RNN(3, 4, nonlinearity="step"), ValueError, "`nonlinearity`"),
    (lambda: nn.LSTM(3, 4, dropout=2), ValueError, "`dropout`"),
    (lambda: nn.LSTM(3, 4)(ic.ones(2, 2, 4)), ValueError, "`input`"),
    (lambda: nn.LSTM(3, 4)(ic.ones(2, 2, 3), ic.ones(1, 2, 4)), ValueError, "`hx`"),
    (lambda: nn.GRU(3, 4)(ic.ones(2, 2, 3), ic.ones(1, 3, 4)), ValueError, "`h_0`"),
    (lambda: nn.LSTM(3, 4)(ic.ones(2, 2, 3).double()), TypeError, "`input`"),
    (lambda: nn.GRUCell(3, 4)(ic.ones(2, 3), ic.ones(3, 4)), ValueError, "`hx`"),
    (lambda: rnn.pack_padded_sequence(ic.ones(3, 2, 1), [1, 3]), ValueError, "`lengths`"),
    (lambda: rnn.pack_padded_sequence(ic.ones(3, 2, 1), [3, 0]), ValueError, "`lengths`"),
    (lambda: nn.ConvTranspose2d(2, 2, 2, padding_mode="reflect"), ValueError, "`padding_mode`"),
    (lambda: nn.ConvTranspose2d(4, 2, 2, 2)(ic.ones(IMAGE), (99, 99)), ValueError, "`output_size`"),
    (lambda: nn.InstanceNorm2d(3, affine=True)(ic.ones(IMAGE)), ValueError, "`num_features`"),
    (lambda: nn.ReflectionPad2d((1, 2)), ValueError, "`padding`"),
]


@pytest.mark.parametrize("call, error, match", WRONG)
def test_wrong(call, error, match):
    with pytest.raises(error, match=match):
        call()
