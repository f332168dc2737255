"""How much a module computes."""

from ..modules.embedding import Embedding


def product_weights(module):
    """How many weights a row is multiplied by: those of two dims or more, but for tables that are only looked up in.

    One that two modules share, such as the table that is the head too, counts once.
    """
    layers = [layer for layer in module.modules() if not isinstance(layer, Embedding)]
    found = {id(p): p.numel() for layer in layers for p in layer.parameters(recurse=False) if p.ndim >= 2}
    return sum(found.values())
