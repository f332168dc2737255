"""`torch.utils.checkpoint`: parts of a model that are run again in backward."""

from ..autograd import checkpoint

__all__ = ["checkpoint", "checkpoint_sequential"]


def checkpoint_sequential(functions, segments, input, use_reentrant=None, **options):
    """The modules of a `Sequential` (or functions) one after the other, in `segments` parts that are checkpointed.

    All parts but the last are run again in backward; `use_reentrant` changes nothing.
    """
    functions = list(functions.children() if hasattr(functions, "children") else functions)
    if not 1 <= segments <= len(functions):
        raise ValueError(f"`segments` must be from 1 to the {len(functions)} functions, got {segments}")

    def part(start, end):
        def run(x):
            for function in functions[start:end]:
                x = function(x)
            return x

        return run

    size = len(functions) // segments
    for start in range(0, size * (segments - 1), size):
        input = checkpoint(part(start, start + size), input, **options)
    return part(size * (segments - 1), None)(input)
