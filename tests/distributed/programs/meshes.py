"""The matrix of meshes: every way to divide training among up to 8 ranks, and the few that every run tries."""

import itertools
from typing import NamedTuple


class Case(NamedTuple):
    """A mesh, what is done on it, and the model. Written as `str`, read by `parse`."""

    dp: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    sp: int = 1
    sequence: int = 0
    zero: int = 0
    accumulate: int = 1
    micro: int = 1
    model: str = "gpt2"
    dtype: str = "float64"

    def __str__(self):
        return ",".join(f"{k}={v}" for k, v in self._asdict().items() if v != Case._field_defaults[k]) or "dp=1"

    @property
    def ranks(self):
        """How many ranks it needs."""
        return self.dp * self.tp * self.pp * self.cp


def parse(text):
    """The `Case` of a text such as "dp=2,zero=1,model=llama"."""
    pairs = (part.split("=") for part in text.split(","))
    return Case(**{key: value if key in ("model", "dtype") else int(value) for key, value in pairs})


FEW = [
    parse(text)
    for text in """
        dp=3,zero=3,accumulate=3,micro=4
        tp=3,sequence=1,model=llama
        pp=3,micro=4,accumulate=3
        cp=3,zero=2,model=llama
        dp=2,accumulate=3,micro=4
        dp=2,zero=2,micro=8,model=llama
        dp=2,zero=3,accumulate=3,micro=4
        tp=2,sequence=1,model=llama,accumulate=3
        tp=2,sequence=1,dtype=float32
        tp=2,model=odd
        pp=2,micro=8,accumulate=3,model=llama
        pp=2,micro=4,dtype=float32
        cp=2,micro=4
        cp=2,model=llama,accumulate=3
        cp=2,zero=1,accumulate=3
        cp=2,dtype=float32
        cp=2,model=odd
        dp=2,tp=2,sequence=1,accumulate=3
        dp=2,tp=2,zero=1,sequence=1,accumulate=3
        dp=2,tp=2,zero=2,model=llama
        dp=2,pp=2,micro=4,accumulate=3,dtype=float32
        dp=2,pp=2,zero=2,micro=4,model=llama
        dp=2,pp=2,zero=3,micro=4,accumulate=3
        pp=2,cp=2,zero=3,micro=8,model=llama,dtype=float32
        dp=2,cp=2,micro=4
        dp=2,cp=2,zero=2,model=llama,accumulate=3
        dp=2,cp=2,zero=3,model=llama
        dp=2,tp=2,zero=3,sequence=1,dtype=float32
        tp=2,pp=2,sequence=1,micro=4,model=llama
        tp=2,cp=2,sequence=1,model=llama,accumulate=3
        pp=2,cp=2,micro=4,accumulate=3,model=llama
        pp=2,cp=2
        cp=4,model=llama,micro=4
        cp=4,dtype=float32
        tp=4,pp=2,sequence=1
        tp=2,sp=2,accumulate=3
        tp=2,sp=2,model=llama,dtype=float32
        tp=3,sp=3,micro=4
        dp=2,tp=2,sp=2,zero=2,model=llama
        tp=2,pp=2,sp=2,micro=4,accumulate=3
        tp=2,cp=2,sp=2,model=llama
    """.split()
]


def every(ranks):
    """All cases of a number of ranks."""
    for tp, cp, pp in itertools.product(range(1, ranks + 1), repeat=3):
        if ranks % (tp * cp * pp):
            continue
        dp = ranks // (tp * cp * pp)
        for zero, sequence, accumulate, micro, model in itertools.product(
            (0, 1, 2, 3), (0, 1), (1, 3), (1, 4, 8), ("gpt2", "llama")
        ):
            if (zero and dp * cp == 1) or (sequence and tp == 1) or (tp > 4 and model == "llama"):
                continue
            yield Case(dp, tp, pp, cp, 1, sequence, zero, accumulate, micro, model)
