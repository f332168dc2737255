"""Argument blocks of norms over the channels of contiguous [N, C, L] (`n`, `c`, `length`).

`mean` and `inverse` (1 / deviation) are those of channels, or of the groups of all images, and written by the forward
pass.
"""

from . import Block

BATCH = Block("x w? b? y running_mean? running_var? mean inverse | n c length momentum:f64 eps:f64")
BATCH_GRAD = Block("g x w? mean inverse dx dw db | n c length")
GROUP = Block("x w? b? y mean inverse | groups channels length eps:f64")  # channels of a group
GROUP_GRAD = Block("g x w? mean inverse dx dw db | groups channels length")  # dw, db: of each image, [N, C]
