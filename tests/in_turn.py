"""Cases of which CI runs a part: each dtype in each family, but not each dtype of each op.

A kernel is compiled anew for a dtype, and what differs between two dtypes of a kind is how elements are loaded and
stored, which all ops of a family share. So ops take dtypes of a kind in turn; `--long` runs what is left out.
"""

import itertools
from collections import defaultdict

import pytest

KINDS = {"bfloat16": "narrow", "float16": "narrow", **dict.fromkeys(("int32", "int64", "uint8", "bool"), "whole")}


def in_turn(pairs, kind=lambda dtype: KINDS.get(dtype, dtype)):
    """Parameters for (op, dtype) pairs: of each op one dtype of each kind, the others marked `long`."""
    turns, params = defaultdict(itertools.count), []
    for op, group in itertools.groupby(pairs, key=lambda pair: pair[0]):
        kinds = defaultdict(list)
        for _, dtype in group:
            kinds[kind(dtype)].append(dtype)
        for name, dtypes in kinds.items():
            chosen = next(turns[op.family, name, len(dtypes)]) % len(dtypes)
            for i, dtype in enumerate(dtypes):
                marks = () if i == chosen else (pytest.mark.long,)
                params.append(pytest.param(op, dtype, id=f"{op.name}-{dtype}", marks=marks))
    return params
