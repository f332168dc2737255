"""Results that the dtype of the tensor they are written to cannot hold: bools hold no numbers, integers no floats."""

import pytest

import infinicore as ic


def numbers():
    """Integers beside which bools are computed as integers."""
    return ic.tensor([3, 4])


@pytest.mark.parametrize(
    "call",
    [
        lambda b: b.add_(1),
        lambda b: b.add_(numbers()),
        lambda b: b.mul_(2),
        lambda b: b.mul_(0.5),
        lambda b: b.sub_(1),
        lambda b: b.sub_(b.clone()),
        lambda b: b.div_(2),
        lambda b: b.pow_(2),
        lambda b: b.exp_(),
        lambda b: b.neg_(),
        lambda b: b.square_(),
        lambda b: b.bitwise_and_(1),
        lambda b: b.bitwise_or_(numbers()),
        lambda b: b.maximum_(numbers()),
        lambda b: b.add_(ic.ones(2).requires_grad_()),
        lambda b: ic.add(numbers(), numbers(), out=b),
        lambda b: ic.where(b.clone(), numbers(), numbers(), out=b),
    ],
)
def test_a_bool_tensor_holds_no_numbers(call):
    b = ic.tensor([True, False])
    with pytest.raises(TypeError) as caught:
        call(b)
    assert "\n" not in str(caught.value)
    assert b.tolist() == [True, False] and not b.requires_grad


def test_what_a_bool_tensor_takes_in_place():
    b = ic.tensor([True, False, False])
    assert b.clone().add_(True).tolist() == [True, True, True]
    assert b.clone().mul_(ic.tensor([False, True, True])).tolist() == [False, False, False]
    assert b.clone().bitwise_xor_(True).tolist() == [False, True, True]
    assert b.clone().logical_or_(ic.tensor([0.0, 2.0, 0.0])).tolist() == [True, True, False]
    assert ic.tensor([6, 7, 8]).bitwise_and_(b).tolist() == [0, 0, 0]
    assert ic.eq(numbers(), 3, out=ic.zeros(2, dtype="int8")).tolist() == [1, 0]
    assert b.copy_(ic.tensor([0, 2, 0])).tolist() == [False, True, False]


@pytest.mark.parametrize("call", [lambda x, y: x.add_(y), lambda x, y: x.__imul__(y), lambda x, y: x.sub_(0.5 * y)])
def test_an_integer_tensor_holds_no_gradient(call):
    x, y = numbers(), ic.ones(2).requires_grad_()
    with pytest.raises(TypeError, match=r"`self` has dtype .* cannot hold the result"):
        call(x, y)
    assert x.tolist() == [3, 4] and not x.requires_grad
