"""More calls drawn at random, as `drawn_calls.py`: what networks are made of, products, windows, losses and norms."""

import numpy as np

from .drawn import FLOATS, INTS, Spec


def matmuls(d):
    name = d.one(
        "matmul",
        "matmul",
        "mm",
        "bmm",
        "mv",
        "dot",
        "vdot",
        "inner",
        "outer",
        "addmm",
        "addmv",
        "addbmm",
        "baddbmm",
        "addr",
        "kron",
        "tensordot",
        "einsum",
        "linear",
        "chain_matmul",
        "cross",
        "cdist",
        "bilinear",
    )
    dt = d.dtype(*FLOATS, *INTS, "bool")
    m, k, n, b = (d.one(0, 1, 2, 3, 5, 8, 17, 1, 3, 4) for _ in range(4))
    dt2 = dt if d.maybe(0.93) else d.dtype()
    T = lambda *s, t=dt: d.tensor(s, t, special=0, low=-3, high=3)
    if d.maybe(0.04):
        k2 = k + 1
    else:
        k2 = k
    if name == "matmul":
        lead = d.shape(0, 2)
        a = T(*lead, m, k) if d.maybe(0.75) else T(k)
        c = T(*d.broadcast(lead), k2, n, t=dt2) if d.maybe(0.75) else T(k2, t=dt2)
        return (d.one("f", "m", "o"), name, [a, c], {})
    if name == "mm":
        return (d.one("f", "m", "o"), name, [T(m, k), T(k2, n, t=dt2)], {})
    if name == "bmm":
        return (d.one("f", "m", "o"), name, [T(b, m, k), T(b, k2, n, t=dt2)], {})
    if name == "mv":
        return (d.one("f", "m", "o"), name, [T(m, k), T(k2, t=dt2)], {})
    if name in ("dot", "vdot", "inner"):
        return (d.one("f", "m", "o"), name, [T(k), T(k2, t=dt2)], {})
    if name in ("outer",):
        return (d.one("f", "m", "o"), name, [T(m), T(n, t=dt2)], {})
    kw = {}
    if d.maybe():
        kw = {"beta": d.one(0, 1, 2, 0.5), "alpha": d.one(0, 1, 2, 0.5)}
    if name == "addmm":
        return (d.one("f", "m", "i", "o"), name, [T(*d.broadcast((m, n))), T(m, k), T(k2, n)], kw)
    if name == "addmv":
        return (d.one("f", "m", "i", "o"), name, [T(*d.broadcast((m,))), T(m, k), T(k2)], kw)
    if name == "addr":
        return (d.one("f", "m", "i", "o"), name, [T(*d.broadcast((m, n)), t=dt2), T(m), T(n)], kw)
    if name == "addbmm":
        return (d.one("f", "m", "i", "o"), name, [T(*d.broadcast((m, n))), T(b, m, k), T(b, k2, n)], kw)
    if name == "baddbmm":
        return (d.one("f", "m", "i", "o"), name, [T(*d.broadcast((b, m, n))), T(b, m, k), T(b, k2, n)], kw)
    if name == "kron":
        return ("f", name, [T(*d.shape(0, 2)), T(*d.shape(0, 2), t=dt2)], {})
    if name == "tensordot":
        return (
            "f",
            name,
            [T(m, k, b), T(k2, b, n, t=dt2)],
            {"dims": d.one(2, ([1, 2], [0, 1]), ([1], [0]), ([-1], [1]))},
        )
    if name == "einsum":
        eq, *sh = d.one(
            ("ij,jk->ik", (m, k), (k2, n)),
            ("bij,bjk->bik", (b, m, k), (b, k, n)),
            ("ii->i", (m, m)),
            ("ii", (m, m)),
            ("ij->ji", (m, k)),
            ("i,j->ij", (m,), (n,)),
            ("...i,...i->...", (b, m, k), (m, k)),
            ("ij,ij->", (m, n), (m, n)),
            ("ijk->k", (m, k, n)),
            ("bhid,bhjd->bhij", (2, b, m, k), (2, b, n, k)),
            ("ij,jk,kl->il", (m, k), (k, n), (n, b)),
            ("i...->...", (m, k)),
            ("ij,kj", (m, k), (n, k)),
        )
        return ("f", name, [eq, *[T(*s) for s in sh]], {})
    if name == "linear":
        return (
            "f",
            "nn.functional.linear",
            [T(*d.shape(0, 2), k), T(n, k2, t=dt2)] + ([T(n)] if d.maybe() else []),
            {},
        )
    if name == "chain_matmul":
        return ("f", "linalg.multi_dot", [[T(m, k), T(k, n), T(n, b)]], {})
    if name == "cross":
        return ("f", name, [T(m, 3), T(*d.broadcast((m, 3)), t=dt2)], {"dim": d.dim(2)} if d.maybe() else {})
    if name == "cdist":
        return ("f", name, [T(b, m, k), T(b, n, k2)], {"p": d.one(0.0, 1.0, 2.0, 3.0, float("inf"), 0.5)})
    return ("f", "nn.functional.bilinear", [T(b, m), T(b, k), T(n, m, k2)], {})


def windows(d):
    dims = d.int(1, 3)
    name = d.one(
        "conv",
        "conv",
        "conv_transpose",
        "max_pool",
        "avg_pool",
        "lp_pool",
        "adaptive_avg_pool",
        "adaptive_max_pool",
        "unfold",
        "fold",
        "pad",
        "pad",
        "interpolate",
        "pixel_shuffle",
        "pixel_unshuffle",
        "channel_shuffle",
        "max_unpool",
    )
    dt = d.dtype(*FLOATS[:2], *FLOATS, "int64")
    T = lambda *s, t=dt: d.tensor(s, t, special=0, low=-3, high=3)
    space = [d.int(1, 9) for _ in range(dims)]
    batch = (d.int(0 if d.maybe(0.2) else 1, 2),) if d.maybe(0.8) else ()

    def opt(a, b):
        return d.int(a, b) if d.maybe(0.6) else tuple(d.int(a, b) for _ in range(dims))

    groups = d.one(1, 1, 1, 2, 3)
    ci, co = groups * d.int(1, 3), groups * d.int(1, 3)
    if d.maybe(0.03):
        ci += 1
    kernel = [d.int(1, 4) for _ in range(dims)]
    if name == "conv":
        w = T(co, max(ci // groups, 1), *kernel)
        pad = opt(0, 2) if d.maybe(0.8) else d.one("same", "valid")
        return (
            "f",
            f"nn.functional.conv{dims}d",
            [T(*batch, ci, *space), w, T(co) if d.maybe() else None],
            {
                "stride": opt(1, 3) if pad != "same" or d.maybe(0.1) else 1,
                "padding": pad,
                "dilation": opt(1, 2),
                "groups": groups,
            },
        )
    if name == "conv_transpose":
        w = T(ci, max(co // groups, 1), *kernel)
        return (
            "f",
            f"nn.functional.conv_transpose{dims}d",
            [T(*batch, ci, *space), w, T(max(co // groups, 1) * groups) if d.maybe() else None],
            {
                "stride": opt(1, 3),
                "padding": opt(0, 2),
                "output_padding": opt(0, 1),
                "dilation": opt(1, 2),
                "groups": groups,
            },
        )
    if name == "max_pool":
        return (
            "f",
            f"nn.functional.max_pool{dims}d",
            [T(*batch, ci, *space), opt(1, 4)],
            {
                "stride": d.one(None, opt(1, 3)),
                "padding": opt(0, 2),
                "dilation": opt(1, 2),
                "ceil_mode": d.maybe(),
                "return_indices": d.maybe(),
            },
        )
    if name == "avg_pool":
        kw = {
            "stride": d.one(None, opt(1, 3)),
            "padding": opt(0, 2),
            "ceil_mode": d.maybe(),
            "count_include_pad": d.maybe(),
        }
        if dims > 1 and d.maybe(0.3):
            kw["divisor_override"] = d.int(1, 3)
        return ("f", f"nn.functional.avg_pool{dims}d", [T(*batch, ci, *space), opt(1, 4)], kw)
    if name == "lp_pool":
        return (
            "f",
            f"nn.functional.lp_pool{dims}d",
            [T(*batch, ci, *space), d.one(1.0, 2.0, 3.0), opt(1, 4)],
            {"stride": d.one(None, opt(1, 3)), "ceil_mode": d.maybe()},
        )
    if name.startswith("adaptive"):
        return (
            "f",
            f"nn.functional.{name}{dims}d",
            [
                T(*batch, ci, *space),
                opt(1, 6) if d.maybe(0.8) or dims == 1 else tuple(d.one(None, 2, 3) for _ in range(dims)),
            ],
            {},
        )
    if name == "unfold":
        return (
            "f",
            "nn.functional.unfold",
            [T(*batch, ci, d.int(1, 9), d.int(1, 9)), (d.int(1, 4), d.int(1, 4))],
            {"dilation": d.int(1, 2), "padding": d.int(0, 2), "stride": d.int(1, 3)},
        )
    if name == "fold":
        h, w, k, st, p, dl = d.int(1, 9), d.int(1, 9), d.int(1, 3), d.int(1, 3), d.int(0, 2), d.int(1, 2)
        L = 1
        for q in (h, w):
            L *= max((q + 2 * p - dl * (k - 1) - 1) // st + 1, 0)
        return (
            "f",
            "nn.functional.fold",
            [T(*batch, 2 * k * k, L), (h, w), k],
            {"dilation": dl, "padding": p, "stride": st},
        )
    if name == "pad":
        x = T(*batch, ci, *space)
        mode = d.one("constant", "constant", "reflect", "replicate", "circular")
        k = d.int(1, len(x.shape)) if mode == "constant" else dims
        kw = {"value": d.one(1.5, 0, -2)} if mode == "constant" and d.maybe() else {}
        return ("f", "nn.functional.pad", [x, [d.int(-2 if d.maybe(0.3) else 0, 3) for _ in range(2 * k)], mode], kw)
    if name == "interpolate":
        mode = d.one(
            "nearest", "nearest-exact", "area", {1: "linear", 2: d.one("bilinear", "bicubic"), 3: "trilinear"}[dims]
        )
        kw = {"size": opt(1, 12)} if d.maybe() else {"scale_factor": d.one(2, 0.5, 1.5, 3.0, 0.7)}
        if "linear" in mode or mode == "bicubic":
            kw["align_corners"] = d.one(None, True, False)
        if "scale_factor" in kw and d.maybe(0.3):
            kw["recompute_scale_factor"] = True
        if mode in ("bilinear", "bicubic") and d.maybe(0.3):
            kw["antialias"] = True
        return (
            "f",
            "nn.functional.interpolate",
            [d.tensor((d.int(1, 2), ci, *space), dt if dt != "int64" else "float32", special=0)],
            {"mode": mode, **kw},
        )
    if name == "pixel_shuffle":
        return ("f", "nn.functional.pixel_shuffle", [T(*d.shape(0, 1), 4 * ci if d.maybe(0.9) else 3, 2, 3), 2], {})
    if name == "pixel_unshuffle":
        return ("f", "nn.functional.pixel_unshuffle", [T(*d.shape(0, 1), ci, 4, 6 if d.maybe(0.9) else 5), 2], {})
    if name == "channel_shuffle":
        return ("f", "nn.functional.channel_shuffle", [T(1, 6, 2, 3), d.one(1, 2, 3, 4)], {})
    return ("f", f"nn.functional.max_pool{dims}d", [T(*batch, ci, *space), 2], {"return_indices": True})


def losses(d):
    name = d.one(
        "mse_loss",
        "l1_loss",
        "smooth_l1_loss",
        "huber_loss",
        "cross_entropy",
        "nll_loss",
        "binary_cross_entropy",
        "binary_cross_entropy_with_logits",
        "kl_div",
        "hinge_embedding_loss",
        "margin_ranking_loss",
        "soft_margin_loss",
        "multi_margin_loss",
        "multilabel_margin_loss",
        "multilabel_soft_margin_loss",
        "triplet_margin_loss",
        "cosine_embedding_loss",
        "poisson_nll_loss",
        "gaussian_nll_loss",
        "layer_norm",
        "group_norm",
        "batch_norm",
        "instance_norm",
        "normalize",
        "cosine_similarity",
        "pairwise_distance",
        "softmin",
        "glu",
        "local_response_norm",
        "prelu",
        "scaled_dot_product_attention",
        "rms_norm",
        "threshold",
        "ctc",
    )
    dt = d.dtype(*FLOATS[:2], *FLOATS)
    s = d.shape(1, 3)
    x = d.tensor(s, dt, special=0)
    N = f"nn.functional.{name}"
    red = {"reduction": d.one("mean", "sum", "none")}

    def like(t=dt, **k):
        return d.tensor(s if d.maybe(0.95) else d.broadcast(s), t, special=0, **k)

    if name in ("mse_loss", "l1_loss"):
        return ("f", N, [x, like(dt if d.maybe(0.8) else d.dtype())], red)
    if name == "smooth_l1_loss":
        return ("f", N, [x, like()], {**red, "beta": d.one(1.0, 0.5, 0.0)})
    if name == "huber_loss":
        return ("f", N, [x, like()], {**red, "delta": d.one(1.0, 0.5)})
    if name in ("cross_entropy", "nll_loss"):
        b, c = d.int(0 if d.maybe(0.2) else 1, 5), d.int(1, 6)
        rest = d.shape(0, 2) if d.maybe(0.4) else ()
        lead = (b,) if rest or d.maybe(0.85) else ()
        y = d.tensor((*lead, c, *rest), dt, special=0)
        t = d.tensor((*lead, *rest), "int64", low=0, high=c - 1 + (d.maybe(0.03)), special=0)
        kw = dict(red)
        if d.maybe(0.4):
            kw["weight"] = d.tensor((c,), dt, low=1, high=5, special=0)
        if d.maybe(0.4):
            kw["ignore_index"] = d.int(-1, c)
        if name == "cross_entropy" and d.maybe(0.4):
            kw["label_smoothing"] = 0.1
        if name == "cross_entropy" and d.maybe(0.2):
            t = d.tensor((*lead, c, *rest), dt, low=0, high=1, special=0)
            kw.pop("ignore_index", None)
        return ("f", N, [y, t], kw)
    if name == "binary_cross_entropy":
        return ("f", N, [d.tensor(s, dt, low=0, high=2, special=0), d.tensor(s, dt, low=0, high=2, special=0)], red)
    if name == "binary_cross_entropy_with_logits":
        return (
            "f",
            N,
            [x, like(low=0, high=2)],
            {**red, **({"pos_weight": d.tensor(s[-1:], dt, low=1, special=0)} if d.maybe() else {})},
        )
    if name == "kl_div":
        return (
            "f",
            N,
            [x, like(low=0, high=2)],
            {"reduction": d.one("mean", "sum", "none", "batchmean"), "log_target": d.maybe()},
        )
    if name in ("hinge_embedding_loss", "soft_margin_loss"):
        return ("f", N, [x, like()], red)
    if name == "margin_ranking_loss":
        return ("f", N, [x, like(), like()], {**red, "margin": d.one(0, 0.5)})
    if name in ("multi_margin_loss", "multilabel_margin_loss"):
        b, c = d.int(1, 4), d.int(1, 5)
        return (
            "f",
            N,
            [
                d.tensor((b, c), dt, special=0),
                d.tensor(
                    (b,) if name == "multi_margin_loss" else (b, c),
                    "int64",
                    low=0 if name[5:6] == "_" else -1,
                    high=c - 1,
                    special=0,
                ),
            ],
            red,
        )
    if name == "multilabel_soft_margin_loss":
        return ("f", N, [x, like(low=0, high=2)], red)
    if name == "triplet_margin_loss":
        return ("f", N, [x, like(), like()], {**red, "p": d.one(1.0, 2.0), "swap": d.maybe()})
    if name == "cosine_embedding_loss":
        s2 = (d.int(1, 4), d.int(1, 5))
        return (
            "f",
            N,
            [
                d.tensor(s2, dt, special=0),
                d.tensor(s2, dt, special=0),
                Spec(np.where(d.r.random(s2[0]) < 0.5, -1, 1), "int64"),
            ],
            {**red, "margin": d.one(0.0, 0.3)},
        )
    if name == "poisson_nll_loss":
        return ("f", N, [x, like(low=0)], {**red, "log_input": d.maybe(), "full": d.maybe()})
    if name == "gaussian_nll_loss":
        return ("f", N, [x, like(), like(low=1)], {**red, "full": d.maybe()})
    if name in ("layer_norm", "rms_norm"):
        k = d.int(1, len(s))
        sh = s[-k:]
        a = [x, sh]
        if d.maybe():
            a.append(d.tensor(sh, dt, special=0))
        if name == "layer_norm" and len(a) == 3 and d.maybe():
            a.append(d.tensor(sh, dt, special=0))
        return ("f", N, a, {"eps": 1e-3})
    if name == "group_norm":
        g = d.int(1, 3)
        c = g * d.int(1, 3)
        return (
            "f",
            N,
            [d.tensor((d.int(0, 3), c, *d.shape(0, 2)), dt, special=0), g]
            + ([d.tensor((c,), dt, special=0)] if d.maybe() else []),
            {"eps": 1e-3},
        )
    if name in ("batch_norm", "instance_norm"):
        c = d.int(1, 4)
        y = d.tensor((d.int(1, 3), c, *d.shape(0 if name[0] == "b" else 1, 2)), dt, special=0)
        if name[0] == "b":
            return (
                "f",
                N,
                [y, d.tensor((c,), dt, special=0), d.tensor((c,), dt, low=1, special=0)],
                {"training": d.maybe(), "eps": 1e-3, "momentum": 0.3},
            )
        return ("f", N, [y], {"eps": 1e-3})
    if name == "normalize":
        return ("f", N, [x], {"p": d.one(1.0, 2.0, 3.0), "dim": d.dim(len(s))})
    if name in ("cosine_similarity",):
        return ("f", N, [x, like()], {"dim": d.dim(len(s))})
    if name == "pairwise_distance":
        return ("f", N, [x, like()], {"p": d.one(1.0, 2.0), "keepdim": d.maybe()})
    if name in ("softmin", "glu"):
        return ("f", N, [x], {"dim": d.dim(len(s))})
    if name == "local_response_norm":
        return ("f", N, [x, d.int(1, 4)], {})
    if name == "prelu":
        return ("f", N, [x, d.tensor((s[1] if len(s) > 1 and d.maybe() else 1,), dt, special=0)], {})
    if name == "scaled_dot_product_attention":
        b, q, k, e, v = (d.int(1, 5) for _ in range(5))
        lead = d.shape(0, 2)
        kw = {}
        M = d.one(None, "b", "f", "c")
        if M == "c":
            kw["is_causal"] = True
        elif M:
            kw["attn_mask"] = d.tensor((q, k), "bool" if M == "b" else dt, special=0)
        if d.maybe(0.3):
            kw["scale"] = 0.3
        return (
            "f",
            N,
            [
                d.tensor((*lead, q, e), dt, special=0),
                d.tensor((*lead, k, e), dt, special=0),
                d.tensor((*lead, k, v), dt, special=0),
            ],
            kw,
        )
    if name == "threshold":
        return ("f", N, [d.tensor(), d.one(1, 0.5), d.one(7, 20)], {})
    return ("f", "nn.functional.softmax", [d.tensor(s)], {"dim": d.dim(len(s)), "dtype": ("dtype", d.dtype(*FLOATS))})


FAMILIES = {f.__name__: f for f in (matmuls, windows, losses)}
