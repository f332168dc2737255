"""Convolutions of volumes, element by element, as their definition says.

The CPU convolves volumes by products of planes (`ops/conv_composed.py`); this is what other devices' own kernels are
compared with.
"""

from ...blocks.conv import VOLUMES
from ...build import jit
from ...lang.simd import load, ptr, store


@jit.inline
def three(args, field):
    """A field of depth, height and width."""
    return load(args, field), load(args, field + 1), load(args, field + 2)


@jit.inline
def meets(place, tap, args, d):
    """(whether a tap of the window of a result has an element of x in dim d, which one)."""
    at = place * load(args, VOLUMES.stride + d) - load(args, VOLUMES.pad + d) + tap * load(args, VOLUMES.gap + d)
    apart = load(args, VOLUMES.apart + d)
    whole = at // apart
    return whole * apart == at and 0 <= whole < load(args, VOLUMES.size + d), whole


@jit.inline
def sums(args, lo, hi, T, A):
    """Elements [lo, hi) of y, with sums of type A."""
    (D, H, W), (OD, OH, OW) = three(args, VOLUMES.size), three(args, VOLUMES.out)
    K_D, K_H, K_W = three(args, VOLUMES.kernel)
    inputs, outputs, groups = load(args, VOLUMES.inputs), load(args, VOLUMES.outputs), load(args, VOLUMES.groups)
    for index in range(lo, hi):
        plane, place = index // (OD * OH * OW), index % (OD * OH * OW)
        image, channel = plane // (groups * outputs), plane % (groups * outputs)
        group = channel // outputs
        x = ptr(load(args, VOLUMES.x), T) + (image * groups + group) * inputs * D * H * W
        weight = ptr(load(args, VOLUMES.weight), T) + (
            group * load(args, VOLUMES.of_group) + channel % outputs * load(args, VOLUMES.of_output)
        )
        total = A(0)
        if load(args, VOLUMES.bias) != 0:
            total = A(load(ptr(load(args, VOLUMES.bias), T), channel))
        for a in range(K_D):
            in_depth, o = meets(place // (OH * OW), a, args, 0)
            for b in range(K_H):
                in_height, i = meets(place // OW % OH, b, args, 1)
                for c in range(K_W):
                    in_width, j = meets(place % OW, c, args, 2)
                    if in_depth and in_height and in_width:
                        at, tap = (o * H + i) * W + j, (a * K_H + b) * K_W + c
                        for k in range(inputs):
                            one = load(weight, k * load(args, VOLUMES.of_input) + tap)
                            total += A(load(x, k * D * H * W + at)) * A(one)
        store(ptr(load(args, VOLUMES.y), T), index, total)
    return 0
