"""Argument blocks: places of fields, and what fills them."""

import struct

import pytest
from infinicore.kernels.blocks import Block

import infinicore as ic


def test_fields_stand_where_the_block_fills_them():
    block = Block("x y? | size strides:3 more:2=0 eps:f64 parts=1 dims*")
    x = ic.zeros(4)
    values, tensors = block(x=x, size=7, strides=(1, 2, 3), eps=0.5, dims=(8, 9))
    assert tensors == (x, None)
    assert values[block.x] == x.data_ptr() and values[block.y] == 0 and values[block.size] == 7
    assert values[block.strides : block.strides + 3] == [1, 2, 3]
    assert values[block.more : block.more + 2] == [0, 0]
    assert values[block.eps] == struct.unpack("q", struct.pack("d", 0.5))[0]
    assert values[block.parts] == 1 and values[block.dims :] == [8, 9]
    assert block.places == ((block.x, "x"), (block.y, "y"))


def test_a_block_refuses_wrong_fields():
    block = Block("x | strides:3")
    with pytest.raises(TypeError, match="strides"):
        block(x=ic.zeros(1))
    with pytest.raises(IndexError):
        block(x=ic.zeros(1), strides=(1, 2))
    with pytest.raises(ValueError, match="each field once"):
        Block("x | x").names
    with pytest.raises(AttributeError, match="no field 'y', but x, strides"):
        block.y
