"""Sizes of kernels of convolutions, which the launches know too."""

THREADS = 128  # of a block
ROOM = 16 << 10  # bytes of weights that it has at a time
DEPTH = 16  # channels that the matrix units take at a time
