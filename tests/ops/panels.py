"""Random quantised weights, packed by NumPy from the words of `cpu/quant/panels.py`: an oracle beside the kernels."""

import ml_dtypes
import numpy as np
from infinicore.kernels.cpu.quant import panels as layout
from infinicore.kernels.cpu.quant.panels import LANES
from infinicore.kernels.lang.formats import FORMATS, SUPER, UNIT
from infinicore.kernels.ops.quant import QuantizedWeight

import infinicore as ic

FLOAT8 = {"float8_e4m3": ml_dtypes.float8_e4m3fn, "float8_e5m2": ml_dtypes.float8_e5m2}


def random_weight(name, n, k, rng, shift=0):
    """(QuantizedWeight, what it stands for in float64 [n, k])."""
    form = FORMATS[name]
    shift = 31 if form.flat else shift
    panels, units = [], -(-k // UNIT)
    exact = np.zeros((-(-n // LANES) * LANES, units * UNIT))
    for first in range(0, n, LANES):
        q = rng.integers(0, 2**form.bits, (LANES, units * UNIT), dtype=np.uint8)
        if form.float8:  # finite numbers
            q[~np.isfinite(q.view(FLOAT8[form.float8]).astype(np.float32))] = 1
        q[:, k:] = 0
        records, scales, minimums = _records(form, form.records(k, shift), rng)
        panel = b"".join(_planes(form, q[:, u * UNIT : (u + 1) * UNIT]) for u in range(units)) + records
        panels.append(panel.ljust(layout.panel_bytes(form, k, shift), b"\0"))
        each = form.group if form.parameters.startswith("super") else UNIT << min(shift, 20)
        spread = np.repeat(np.arange(scales.shape[1]), each)[: units * UNIT]
        exact[first : first + LANES] = _values(form, q) * scales[:, spread] + minimums[:, spread]
    data = np.frombuffer(b"".join(panels), np.uint8)
    return QuantizedWeight(ic.from_numpy(data), (n, k), name, shift), exact[:n, :k]


def _planes(form, q):
    """The planes of one unit of q [LANES, 32]."""
    quads = q.reshape(LANES, 8, 4).transpose(1, 0, 2).reshape(8, 4 * LANES)
    out, low = [], 0
    for bits in layout.planes(form):
        vectors = np.zeros((bits, 4 * LANES), np.uint8)
        for quad in range(8):
            part = (quads[quad] >> low) & ((1 << bits) - 1)
            vectors[quad % bits] |= (part << (quad // bits * bits)).astype(np.uint8)
        out.append(vectors.tobytes())
        low += bits
    return b"".join(out)


def _records(form, count, rng):
    """(bytes, scales [LANES, groups], minimums) of the parameters of a panel."""
    kind, out, scales, minimums = form.parameters, [], [], []
    for _ in range(count):
        scale = rng.uniform(0.01, 0.1, LANES).astype(np.float16)
        if kind.startswith("super"):
            signed, least = kind == "super", rng.uniform(0.01, 0.1, LANES).astype(np.float16) * (kind == "super_min")
            inner = rng.integers(-32 if signed else 0, 32, (SUPER // form.group, LANES)).astype(np.int8)
            mins = rng.integers(0, 64, inner.shape).astype(np.int8)
            scales.append(scale.astype(np.float64) * inner)
            minimums.append(-least.astype(np.float64) * mins)
            out += [scale, inner] if signed else [scale, least.astype(np.float16), inner, mins]
            continue
        if kind == "single":
            scale = rng.uniform(0.01, 0.1, LANES).astype(np.float32)
        if kind == "exponent":
            scale = rng.integers(118, 126, LANES).astype(np.uint8)
        out.append(scale)
        exact = 2.0 ** (scale.astype(np.float64) - 128) if kind == "exponent" else scale.astype(np.float64)
        least = np.zeros(LANES)
        if kind == "half_min":
            out.append(rng.uniform(-1, 1, LANES).astype(np.float16))
            least = out[-1].astype(np.float64)
        if kind == "half_zero":
            out.append(rng.integers(0, 2**form.bits, LANES).astype(np.uint8))
            least = -exact * out[-1]
        scales.append(exact[None])
        minimums.append(least[None])
    return b"".join(v.tobytes() for v in out), np.concatenate(scales).T, np.concatenate(minimums).T


def _values(form, q):
    """value(q) - zero, in float64."""
    if form.float8:
        return q.view(FLOAT8[form.float8]).astype(np.float64)
    values = np.array(form.table)[q] if form.table else q.astype(np.float64)
    return values - form.zero
