"""Sizes that the plans of convolutions and pools share with their kernels. Plain Python: no Numba here."""

SLACK = 64  # elements behind packed panels, whose last vector is filled up
SLACK_COLUMNS = 256  # elements behind a padded image: the widest tile reads 128 columns from its last one on
