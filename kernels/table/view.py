"""Ops that show the memory of their input with another layout: the same on every device, since nothing moves."""

from .registry import ALL, declare


def view(*, ref, samples):
    """Declare a view by its layout: `function(v, input, *args)` gives (shape, strides, offset, back).

    Sizes, strides and the offset count elements; `v` has the layout algebra (`infinicore/core/layout_cy.py`). Strides
    of None: no view has that shape, so the elements are copied. `back` is (function, *args) where
    `function(*args, g)` gives the gradient of `input` from that of the view, or None for what is right wherever no
    element is shown twice: `g` where the view shows, zeros elsewhere. () adds up what comes for each element, however
    often it is shown. A list of (shape, strides, offset) stands for several views, which must show every element once.
    """
    return declare("view", dtypes=ALL, ref=ref, samples=samples, outputs=(), gradient="composed")
