"""Pipeline stages for inference: each rank of a mesh's `pp` keeps some layers of a model, and what goes with them."""

from .. import nn


class Elsewhere(nn.Module):
    """In place of a module that another rank has."""

    def __init__(self, dtype):
        super().__init__()
        self.dtype, self.quantized = dtype, None

    def forward(self, *args):
        raise NotImplementedError("this module is on another rank")


def stack_of(decoder):
    """The layers."""
    return getattr(decoder, decoder.pieces[1])


def bounds(model, ranks):
    """Where the layers of each of `ranks` stages begin, and the end: stages of equal cost, as far as layers allow.

    The cost is that of reading weights, of which the last stage has the head too. ValueError for more ranks than
    layers.
    """
    config, layers = model.config, stack_of(model.decoder)
    if len(layers) < ranks:
        raise ValueError(f"`num_hidden_layers` ({len(layers)}) must be at least the {ranks} ranks of `pp`")
    layer = sum(parameter.numel() for parameter in layers[0].parameters())
    total = len(layers) + config.vocab_size * config.hidden_size / layer
    found = [0]
    for rank in range(1, ranks):
        wanted = round(total * rank / ranks)
        found.append(min(max(wanted, found[-1] + 1), len(layers) - (ranks - rank)))
    return [*found, len(layers)]


def keep_stage(model, group):
    """Keep this rank's stage of a model whose parameters are unset; names stay as they are."""
    if group.size == 1:
        return
    edges = bounds(model, group.size)
    first, stop = edges[group.rank], edges[group.rank + 1]
    decoder, dtype, last = model.decoder, model.dtype, group.rank == group.size - 1
    begin, _, end = decoder.pieces
    tied, stack = model.lm_head.weight is getattr(decoder, begin[0]).weight, stack_of(decoder)
    for number, layer in enumerate(stack):
        if first <= number < stop:
            layer.number(number - first)
        else:
            stack[number] = Elsewhere(dtype)
    decoder.span = first, stop
    gone = (() if group.rank == 0 or (tied and last) else begin) + (() if last else end)
    for name in gone:
        setattr(decoder, name, Elsewhere(dtype))
    if not last:
        model.lm_head = Elsewhere(dtype)
    model.use_config({"num_hidden_layers": stop - first})


def is_here(model, name):
    """Whether this rank has the parameter `name`."""
    module = model
    for part in name.split(".")[:-1]:
        module = module._modules[part]
        if isinstance(module, Elsewhere):
            return False
    return True
