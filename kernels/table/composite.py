"""Ops that are written with other ops, and have their derivatives from those."""

from .registry import FLOATS, declare


def composite(
    *,
    ref,
    samples,
    dtypes=FLOATS,
    tolerance=None,
    gradient="composed",
    grad_samples=None,
    fields=(),
    amp="as_is",
):
    """Declare an op by a function of tensors: `function(f, *inputs, **options)`, where `f` has all ops.

    What it calls is recorded, so it needs no derivative of its own, also for derivatives of derivatives; what it
    returns must not share memory with its inputs. With a parameter `out` it writes there itself, else its result is
    copied. Several results have the names `fields`. Mixed precision looks at `amp` alone, not at the ops inside.
    """
    return declare(
        "composite",
        dtypes=tuple(dtypes),
        ref=ref,
        samples=samples,
        tolerance=tolerance or {},
        gradient=gradient,
        fields=tuple(fields),
        grad_samples=grad_samples,
        amp=amp,
    )
