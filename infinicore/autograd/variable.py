"""What was a tensor with a gradient before tensors had them."""


def Variable(data, requires_grad=False):
    """The tensor `data` itself, as a leaf that wants a gradient if `requires_grad`."""
    return data.requires_grad_(True) if requires_grad else data
