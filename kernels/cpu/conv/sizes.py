"""Sizes that the plans of convolutions and pools share with their kernels. Plain Python: no Numba here."""

SLACK = 64  # elements behind packed panels, whose last vector is filled up
