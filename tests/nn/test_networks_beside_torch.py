"""Attention, Transformers and recurrent networks in all their forms, beside PyTorch: see `beside.py`."""

import itertools

import pytest

pytest.importorskip("torch")

from .beside import check
from .beside import tried as err

CASES = {}


def case(function):
    """Note a case under its name."""
    CASES[function.__name__] = function
    return function


def fill(t, m):
    with t.no_grad():
        for k, (n, p) in enumerate(m.named_parameters()):
            p.copy_(((t.arange(p.numel(), dtype=t.float32) * 0.37 + k).sin() / 2).reshape(p.shape))
    return m


def S(t, *s, k=0):
    n = 1
    for v in s:
        n *= v
    return (t.arange(n, dtype=t.float32) * 0.7 + k).cos().reshape(s)


def g(t, m, *a, **kw):
    xs = [x.requires_grad_() if isinstance(x, t.Tensor) and x.is_floating_point() else x for x in a]
    y = m(*xs, **kw)
    out = [y]
    s = 0
    for v in y if isinstance(y, tuple) else (y,):
        for u in v if isinstance(v, tuple) else (v,):
            if u is not None and isinstance(u, t.Tensor) and u.requires_grad:
                s = s + (u * S(t, *u.shape, k=3)).sum()
    s.backward()
    return out + [x.grad for x in xs if isinstance(x, t.Tensor)] + [p.grad for p in m.parameters()]


def mha(t, **kw):
    return fill(t, t.nn.MultiheadAttention(4, 2, **kw)).eval()


@case
def mha_masks(t):
    out = []
    q, k = S(t, 3, 2, 4), S(t, 5, 2, 4, k=1)
    b = t.tensor([[True] * i + [False] * (5 - i) for i in (0, 1, 2)])
    f = S(t, 3, 5)
    for am, kp, nw, av in itertools.product(
        (None, b, f, b.expand(4, 3, 5), f.expand(4, 3, 5)),
        (None, t.tensor([[False] * 4 + [True], [False] * 3 + [True] * 2]), S(t, 2, 5)),
        (True, False),
        (True, False),
    ):
        m = mha(t)
        out.append(err(lambda: m(q, k, k, attn_mask=am, key_padding_mask=kp, need_weights=nw, average_attn_weights=av)))
    return out


@case
def mha_all_masked(t):
    m = mha(t)
    q = S(t, 3, 2, 4)
    b = t.ones(3, 3, dtype=t.bool)
    return m(q, q, q, attn_mask=b, need_weights=False)[0], m(q, q, q, attn_mask=b)


@case
def mha_pad_all(t):
    m = mha(t)
    q = S(t, 3, 2, 4)
    return m(q, q, q, key_padding_mask=t.tensor([[True] * 3, [False] * 3]))


@case
def mha_causal(t):
    m = mha(t)
    q = S(t, 3, 2, 4)
    c = t.nn.Transformer.generate_square_subsequent_mask(3)
    b = t.ones(3, 3, dtype=t.bool).triu(1)
    return (
        m(q, q, q, attn_mask=c, is_causal=True, need_weights=False),
        m(q, q, q, attn_mask=b, is_causal=True, need_weights=False),
        m(q, q, q, attn_mask=c, is_causal=True),
        err(lambda: m(q, q, q, is_causal=True)),
        err(lambda: m(q, q, q, is_causal=True, need_weights=False)),
        m(q, q, q, attn_mask=c, is_causal=True, key_padding_mask=t.tensor([[False, False, True]] * 2)),
    )


@case
def mha_causal_wrong_mask(t):
    m = mha(t)
    q = S(t, 3, 2, 4)
    f = S(t, 3, 3)
    return m(q, q, q, attn_mask=f, is_causal=True, need_weights=False)


@case
def mha_kv(t):
    out = []
    for kw in (
        {"add_bias_kv": True},
        {"add_zero_attn": True},
        {"bias": False},
        {"kdim": 3, "vdim": 5},
        {"kdim": 4, "vdim": 4},
        {"batch_first": True},
        {"add_bias_kv": True, "add_zero_attn": True, "batch_first": True, "bias": False},
    ):
        m = mha(t, **kw)
        bf = kw.get("batch_first")
        kd, vd = kw.get("kdim", 4), kw.get("vdim", 4)
        q, k, v = S(t, 2, 3, 4), S(t, 2, 3, kd, k=1), S(t, 2, 3, vd, k=2)
        if not bf:
            q, k, v = (x.transpose(0, 1).contiguous().detach() for x in (q, k, v))
        out.append(
            (
                g(t, m, q, k, v),
                [(n, tuple(p.shape)) for n, p in m.state_dict().items()],
                repr(m).replace("NonDynamicallyQuantizable", ""),
            )
        )
        out.append(
            m(
                q,
                k,
                v,
                key_padding_mask=t.tensor([[False, False, True], [False, True, True]]),
                attn_mask=t.ones(3, 3, dtype=t.bool).triu(1),
            )
        )
    return out


@case
def mha_unbatched(t):
    m = mha(t)
    q = S(t, 3, 4)
    return (
        m(q, q, q),
        m(q, q, q, key_padding_mask=t.tensor([False, False, True])),
        m(q, q, q, attn_mask=t.ones(3, 3, dtype=t.bool).triu(1)),
        m(q, q, q, attn_mask=S(t, 2, 3, 3)),
        m(q, q, q, average_attn_weights=False),
    )


@case
def mha_errors(t):
    m = mha(t)
    q = S(t, 3, 2, 4)
    b = t.bool
    return [
        err(lambda f=f: (f(), 1)[1])
        for f in (
            lambda: t.nn.MultiheadAttention(5, 2),
            lambda: t.nn.MultiheadAttention(0, 1),
            lambda: t.nn.MultiheadAttention(4, 0),
            lambda: m(q, q[:2], q),
            lambda: m(q[..., :3], q, q),
            lambda: m(q, q, q, attn_mask=t.ones(2, 3, dtype=b)),
            lambda: m(q, q, q, attn_mask=t.ones(3, 3, 3, dtype=b)),
            lambda: m(q, q, q, key_padding_mask=t.ones(3, 3, dtype=b)),
            lambda: m(q, q, q, attn_mask=t.ones(3, 3, dtype=t.int64)),
            lambda: m(q, q, q, key_padding_mask=t.ones(2, 3, dtype=t.int64)),
            lambda: m(q, q, q[..., :3]),
            lambda: m(q[0], q, q),
            lambda: m(q[None], q, q),
            lambda: m(q, q[:, :1], q[:, :1]),
            lambda: m(q, q, q, attn_mask=t.ones(1, 3, 3, dtype=b)),
            lambda: m(q, q, q, attn_mask=t.ones(3, dtype=b)),
        )
    ]


@case
def mha_attrs(t):
    m = t.nn.MultiheadAttention(4, 2, dropout=0.1, kdim=3)
    return (
        [
            getattr(m, n)
            for n in (
                "embed_dim",
                "kdim",
                "vdim",
                "num_heads",
                "dropout",
                "head_dim",
                "batch_first",
                "add_zero_attn",
                "_qkv_same_embed_dim",
            )
        ],
        m.in_proj_weight is None,
        m.bias_k is None,
        m.in_proj_bias,
    )


def enc(t, **kw):
    return fill(t, t.nn.TransformerEncoderLayer(4, 2, 6, 0.0, **kw))


@case
def encoder_layer(t):
    out = []
    x = S(t, 3, 2, 4)
    c = t.nn.Transformer.generate_square_subsequent_mask(3)
    for kw in (
        {},
        {"batch_first": True},
        {"norm_first": True},
        {"activation": "gelu"},
        {"activation": t.nn.functional.silu},
        {"activation": t.nn.GELU()},
        {"bias": False},
        {"layer_norm_eps": 0.1},
    ):
        m = enc(t, **kw)
        n = x.shape[1] if kw.get("batch_first") else 3
        mask = c[:n, :n]
        kp = t.zeros(3 if kw.get("batch_first") else 2, n, dtype=t.bool)
        kp[0, -1] = True
        for tr in (True, False):
            m.train(tr)
            out += [
                g(t, m, x.detach()),
                m(x, src_mask=mask),
                m(x, src_mask=mask, is_causal=True),
                m(x, src_key_padding_mask=kp),
                m(x, src_mask=mask.isinf(), src_key_padding_mask=kp),
                m(x, src_mask=mask, src_key_padding_mask=kp),
            ]
            with t.no_grad():
                out += [m(x), m(x, src_mask=mask, src_key_padding_mask=kp), m(x[:, 0])]
    return out


@case
def encoder_errors(t):
    m = enc(t)
    x = S(t, 3, 2, 4)
    return [
        err(lambda f=f: (f(), 1)[1])
        for f in (
            lambda: t.nn.TransformerEncoderLayer(4, 2, activation="tanh"),
            lambda: t.nn.TransformerEncoderLayer(5, 2),
            lambda: m(x[..., :3]),
            lambda: m(x, src_mask=t.ones(2, 2)),
            lambda: m(x, is_causal=True),
            lambda: m(x, src_key_padding_mask=t.ones(3, 2, dtype=t.bool)),
        )
    ]


@case
def encoder(t):
    out = []
    x = S(t, 3, 2, 4)
    c = t.nn.Transformer.generate_square_subsequent_mask(3)
    m = t.nn.TransformerEncoder(enc(t), 2, t.nn.LayerNorm(4), enable_nested_tensor=False)
    fill(t, m)
    kp = t.tensor([[False, False, True], [False] * 3])
    for tr in (True, False):
        m.train(tr)
        out += [
            m(x),
            m(x, c),
            m(x, c, is_causal=True),
            m(x, mask=c, src_key_padding_mask=kp),
            m(x, src_key_padding_mask=kp),
            m(x, c.isinf()),
            m(x, t.zeros(3, 3)),
            m(x, c, is_causal=False),
        ]
    return out, m.num_layers, list(m.state_dict()), err(lambda: m(x, is_causal=True))


@case
def decoder(t):
    x, mem = S(t, 3, 2, 4), S(t, 5, 2, 4, k=2)
    c = t.nn.Transformer.generate_square_subsequent_mask(3)
    out = []
    for kw in ({}, {"norm_first": True}, {"bias": False, "activation": "gelu"}):
        l = fill(t, t.nn.TransformerDecoderLayer(4, 2, 6, 0.0, **kw))
        m = fill(t, t.nn.TransformerDecoder(l, 2, t.nn.LayerNorm(4)))
        kp = t.tensor([[False, False, True], [False] * 3])
        mk = t.tensor([[False] * 4 + [True], [False] * 5])
        out += [
            g(t, l, x.detach(), mem.detach()),
            m(x, mem, c),
            m(x, mem, c, tgt_is_causal=True),
            m(x, mem, tgt_key_padding_mask=kp, memory_key_padding_mask=mk),
            m(x, mem, c, S(t, 3, 5)),
            m(x, mem, memory_mask=S(t, 3, 5) > 0.9),
            list(m.state_dict()),
        ]
    return out


@case
def transformer(t):
    out = []
    for kw in ({}, {"batch_first": True}, {"norm_first": True, "bias": False}):
        m = fill(t, t.nn.Transformer(4, 2, 1, 2, 6, 0.0, **kw))
        a, b = S(t, 3, 2, 4), S(t, 3 if kw.get("batch_first") else 5, 2, 4, k=2)
        n = 2 if kw.get("batch_first") else 5
        c = t.nn.Transformer.generate_square_subsequent_mask(n)
        out += [
            m(a, b, tgt_mask=c),
            m(a, b, tgt_mask=c, tgt_is_causal=True),
            m(a, b),
            list(m.state_dict()),
            [k for k in m.__dict__ if k in ("d_model", "nhead", "batch_first")],
        ]
    m = fill(t, t.nn.Transformer(4, 2, 1, 2, 6, 0.0))
    a = S(t, 3, 2, 4)
    return out, [
        err(lambda f=f: (f(), 1)[1])
        for f in (lambda: m(a, a[:, :1]), lambda: m(a, a[..., :3]), lambda: m(a[None], a[None]))
    ]


@case
def square_mask(t):
    return (
        t.nn.Transformer.generate_square_subsequent_mask(3, dtype=t.float64),
        t.nn.Transformer.generate_square_subsequent_mask(0),
        t.nn.Transformer.generate_square_subsequent_mask(1, device="cpu"),
    )


# rnn
def kinds(t):
    yield from (
        ("RNN", {}),
        ("RNN", {"nonlinearity": "relu"}),
        ("GRU", {}),
        ("LSTM", {}),
        ("LSTM", {"proj_size": 2}),
    )


@case
def rnns(t):
    out = []
    for n, kw in kinds(t):
        for bi, bf, b in itertools.product((False, True), (False, True), (True, False)):
            m = fill(t, getattr(t.nn, n)(3, 4, 2, batch_first=bf, bidirectional=bi, bias=b, **kw))
            out.append(g(t, m, S(t, 5, 2, 3)))
            out.append(m(S(t, 5, 3)))
            h = S(t, 4 if bi else 2, 5 if bf else 2, kw.get("proj_size", 4))
            hx = (h, S(t, *h.shape[:2], 4, k=1)) if n == "LSTM" else h
            out.append(m(S(t, 5, 2, 3), hx))
            out += [list(m.state_dict()), repr(m), len(m.all_weights), [len(w) for w in m.all_weights]]
    return out


@case
def rnn_packed(t):
    R = t.nn.utils.rnn
    out = []
    for n, kw in kinds(t):
        for bi, bf, es in itertools.product((False, True), (False, True), (False, True)):
            m = fill(t, getattr(t.nn, n)(3, 4, 2, batch_first=bf, bidirectional=bi, **kw))
            x = S(t, 3, 5, 3) if bf else S(t, 5, 3, 3)
            x.requires_grad_()
            p = R.pack_padded_sequence(x, [5, 3, 1] if es else [3, 5, 1], bf, es)
            h = S(t, 4 if bi else 2, 3, kw.get("proj_size", 4))
            hx = (h, S(t, *h.shape[:2], 4, k=1)) if n == "LSTM" else h
            for a in ((p,), (p, hx)):
                y, s = m(*a)
                pad, ln = R.pad_packed_sequence(y, bf)
                out += [pad, ln, s, y.sorted_indices]
            (pad * S(t, *pad.shape)).sum().backward()
            out.append(x.grad)
            out += [q.grad for q in m.parameters()]
    return out


@case
def rnn_errors(t):
    N = t.nn
    l, r = N.LSTM(3, 4), N.GRU(3, 4, 2)
    x = S(t, 5, 2, 3)
    z = t.zeros
    fs = [
        lambda: l(x, (z(1, 2, 4),)),
        lambda: l(x, z(1, 2, 4)),
        lambda: l(x, (z(1, 2, 5), z(1, 2, 4))),
        lambda: l(x, (z(1, 2, 4), z(1, 3, 4))),
        lambda: l(x, (z(2, 4), z(2, 4))),
        lambda: l(x[:, 0], (z(1, 1, 4), z(1, 1, 4))),
        lambda: r(x, z(2, 3, 4)),
        lambda: r(x, z(1, 2, 4)),
        lambda: r(x, z(2, 4)),
        lambda: r(x[:, 0], z(2, 1, 4)),
        lambda: r(x[..., :2]),
        lambda: r(x[None]),
        lambda: r(x[0, 0]),
        lambda: r(x.double()),
        lambda: r(x[:0]),
        lambda: r(x, (z(2, 2, 4),)),
        lambda: N.RNN(3, 4, nonlinearity="x"),
        lambda: N.RNN(3, 4, dropout=2.0),
        lambda: N.RNN(3, 4, dropout=-0.1),
        lambda: N.RNN(3, 4, dropout=True),
        lambda: N.RNN(3, 4, dropout="a"),
        lambda: N.RNN(3, 4, proj_size=1),
        lambda: N.LSTM(3, 4, proj_size=4),
        lambda: N.LSTM(3, 4, proj_size=-1),
        lambda: N.LSTM(0, 4),
        lambda: N.LSTM(3, 0),
        lambda: N.LSTM(3, 4, 0),
        lambda: N.LSTM(3.0, 4),
        lambda: N.LSTM(3, 4.0),
        lambda: N.GRU(3, 4, 1.0),
        lambda: N.LSTM(3, 4, bias=1),
        lambda: N.LSTM(3, 4, batch_first="x"),
        lambda: N.GRU(3, 4, proj_size=2),
        lambda: N.LSTM(-1, 4),
        lambda: N.RNN(3, 4, 2, "relu", True, False, 0.1, False),
        lambda: N.RNN(3, 4, 2, True),
        lambda: N.RNN(3, 4, bidirectional=1),
        lambda: N.RNNCell(3, 4)(z(2, 4)),
        lambda: N.RNNCell(3, 4)(z(2, 3), z(3, 4)),
        lambda: N.RNNCell(3, 4)(z(2, 3), z(2, 5)),
        lambda: N.LSTMCell(3, 4)(z(2, 3), (z(2, 4),)),
        lambda: N.LSTMCell(3, 4)(z(2, 3), z(2, 4)),
        lambda: N.GRUCell(3, 4)(z(2, 2, 3)),
        lambda: N.RNNCell(3, 4, nonlinearity="z")(z(2, 3)),
        lambda: N.RNNCell(3, 4)(z(3), z(1, 4)),
        lambda: N.RNNCell(3, 4)(z(1, 3), z(4)),
        lambda: N.GRUCell(3, 4)(z(2, 3).double()),
        lambda: N.LSTMCell(3, 4)(z(3), (z(4), z(5))),
        lambda: N.RNNCell(0, 4)(z(2, 0)),
        lambda: N.RNNCell(3, 0)(z(2, 3)),
        lambda: N.RNNCell(-3, 4),
    ]
    return [err(lambda f=f: (f(), 1)[1]) for f in fs]


@case
def rnn_dropout(t):
    m = fill(t, t.nn.LSTM(3, 4, 2, dropout=1.0))
    x = S(t, 5, 2, 3)
    a = m(x)
    m.eval()
    n = fill(t, t.nn.GRU(3, 4, 3, dropout=0.0, bidirectional=True))
    return a, m(x), n(x), repr(m), m.dropout


@case
def rnn_mixed_batch0(t):
    return err(lambda: t.nn.LSTM(3, 4)(t.zeros(5, 0, 3))[0].shape[1])


@case
def rnn_apply(t):
    m = fill(t, t.nn.LSTM(3, 4))
    m.flatten_parameters()
    m.double()
    return (
        m(S(t, 5, 2, 3).double())[0],
        [n for n, _ in m.named_parameters()],
        m._flat_weights_names,
        len(m._flat_weights),
        m.input_size,
        m.mode,
    )


@case
def cells(t):
    out = []
    for n in ("RNNCell", "GRUCell", "LSTMCell"):
        for b in (True, False):
            m = fill(t, getattr(t.nn, n)(3, 4, bias=b))
            h = S(t, 2, 4)
            hx = (h, S(t, 2, 4, k=2)) if n == "LSTMCell" else h
            out += [g(t, m, S(t, 2, 3)), m(S(t, 2, 3), hx), m(S(t, 3)), repr(m), list(m.state_dict())]
    return out


@case
def misc_errors(t):
    N = t.nn
    z = t.zeros
    F = N.functional
    fs = [
        lambda: N.BatchNorm1d(3, eps=0.0)(z(4, 3)),
        lambda: N.BatchNorm1d(3, eps=-1.0)(z(4, 3)),
        lambda: N.HuberLoss(delta=1j)(z(2), z(2)),
        lambda: N.CrossEntropyLoss(ignore_index=1)(z(2, 3), z(2, 3)),
        lambda: F.batch_norm(z(4, 3), z(3), z(3) + 1, training=False, eps=0.0),
        lambda: F.batch_norm(z(4, 3), None, None, training=True, eps=-1.0),
        lambda: F.instance_norm(z(4, 3, 2), eps=-1.0),
        lambda: F.layer_norm(z(4, 3), (3,), eps=-1.0),
        lambda: F.group_norm(z(4, 4), 2, eps=-1.0),
        lambda: N.Linear(3, -1),
        lambda: N.Embedding(3, 4, padding_idx=3),
        lambda: N.Embedding(3, 4, padding_idx=-4),
        lambda: N.Embedding.from_pretrained(z(3)),
        lambda: N.Embedding(3, 4)(t.tensor([3])),
        lambda: N.Dropout(1.5),
        lambda: N.Dropout(-0.1),
        lambda: N.AlphaDropout(2),
        lambda: N.Conv2d(3, 4, 3, groups=2),
        lambda: N.Conv2d(3, 4, 3, padding="x"),
        lambda: N.Conv2d(3, 4, 3, 2, padding="same"),
        lambda: N.Conv2d(3, 4, 3, padding_mode="x"),
        lambda: N.Conv2d(3, 4, 0),
        lambda: N.Conv2d(3, 4, 3, groups=0),
        lambda: N.Conv2d(3, 4, 3, groups=-1),
        lambda: N.MaxPool2d(2, padding=2)(z(1, 1, 4, 4)),
        lambda: N.ConvTranspose2d(3, 4, 3, padding_mode="reflect"),
        lambda: N.GroupNorm(2, 3),
        lambda: N.Softmax2d()(z(2, 3)),
        lambda: N.Unflatten(1, (2, 2))(z(2, 3)),
        lambda: N.PixelShuffle(2)(z(1, 3, 2, 2)),
        lambda: N.Upsample(scale_factor=2, mode="x")(z(1, 1, 2, 2)),
        lambda: N.ReflectionPad1d(3)(z(1, 2, 3)),
        lambda: N.Hardtanh(2.0, 1.0),
        lambda: N.L1Loss(reduction="x")(z(2), z(2)),
        lambda: N.CrossEntropyLoss(label_smoothing=2.0)(z(2, 3), t.tensor([0, 1])),
        lambda: N.MarginRankingLoss()(z(2), z(3), z(2)),
        lambda: N.CosineEmbeddingLoss()(z(2, 3), z(2, 3), z(3)),
        lambda: N.GaussianNLLLoss()(z(2), z(2), z(2) - 1),
        lambda: N.TripletMarginLoss(margin=-1.0),
        lambda: N.BCELoss()(z(2) + 2, z(2)),
        lambda: N.Bilinear(0, 1, 2),
        lambda: N.GLU()(z(3)),
        lambda: N.ChannelShuffle(0),
        lambda: N.LocalResponseNorm(2)(z(2)),
        lambda: N.FractionalMaxPool2d(2),
        lambda: N.FractionalMaxPool2d(2, output_size=2, output_ratio=0.5),
        lambda: N.FractionalMaxPool2d(2, output_ratio=1.5),
        lambda: N.AdaptiveLogSoftmaxWithLoss(4, 5, [5]),
        lambda: N.AdaptiveLogSoftmaxWithLoss(4, 5, [2, 1]),
        lambda: N.PReLU(2)(z(2, 3)),
        lambda: N.RReLU(0.5, 0.1)(z(2)),
        lambda: N.MultiMarginLoss(p=3),
        lambda: N.MultiMarginLoss(weight=z(2, 2)),
        lambda: N.Flatten(2, 1)(z(2, 2, 2)),
        lambda: N.EmbeddingBag(3, 2, mode="x")(t.tensor([[0]])),
        lambda: N.EmbeddingBag(3, 2)(t.tensor([0])),
        lambda: N.Fold(2, 2)(z(1, 3, 1)),
    ]
    return [err(lambda f=f: (f(), 1)[1]) for f in fs]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_beside_torch(name):
    check(CASES[name])
