"""Kernels of one's own for GPUs, on our tensors and in our streams: by our compiler, and by Numba's `@cuda.jit`.

Needs a GPU and `pip install infinicore-numba[cuda]`; elsewhere it says so.
"""

from infinicore.kernels.blocks import Block
from infinicore.kernels.cuda.block import block_max, block_sum
from infinicore.kernels.lang import functions as m
from infinicore.kernels.lang.ptx import thread, threads
from infinicore.kernels.lang.simd import load, ptr, store
from numba import types

import infinicore as ic

ROWS = Block("x y | columns")  # what the kernel is called with: the addresses of two tensors, a number
LEAST = -3.4e38


@ic.cuda.kernel(ROWS, item="block", threads=256, writes=["y"])
def softmax_rows(args, lo, hi):
    """Softmax of the rows [lo, hi) of a float32 matrix, a block of threads for each."""
    columns = load(args, ROWS.columns)
    for row in range(lo, hi):
        x = ptr(load(args, ROWS.x), types.float32) + row * columns
        y = ptr(load(args, ROWS.y), types.float32) + row * columns
        largest = types.float32(LEAST)
        for i in range(thread(), columns, threads()):
            largest = max(largest, load(x, i))
        largest = block_max(largest)
        total = types.float32(0.0)
        for i in range(thread(), columns, threads()):
            total += m.exp(load(x, i) - largest)  # the exp that our own kernels call
        total = block_sum(total)
        for i in range(thread(), columns, threads()):
            store(y, i, m.exp(load(x, i) - largest) / total)
    return 0


def doubled(x):
    """2 x by Numba's own `@cuda.jit`, which takes our tensors by `__cuda_array_interface__`."""
    from numba import cuda

    @cuda.jit
    def double(x, y):
        i = cuda.grid(1)
        if i < x.size:
            y[i] = 2.0 * x[i]

    y = ic.empty_like(x)
    stream = cuda.external_stream(ic.cuda.current_stream().handle)  # in order with what is computed before and after
    double[-(-x.numel() // 256), 256, stream](x, y)
    return y


def main():
    if not ic.cuda.is_available():
        try:
            ic.zeros(1, device="cuda")
        except NotImplementedError as reason:
            print(f"no GPU: {reason}")
        return
    x = ic.randn(512, 3000).to("cuda")
    y = ic.empty_like(x)
    softmax_rows(len(x), x=x, y=y, columns=x.shape[1])
    print("like softmax:", (y - ic.softmax(x, -1)).abs().max().item() < 1e-6)
    x = ic.arange(10, dtype="float32", device="cuda")
    print("doubled:", doubled(x + 1.0).tolist()[:3])


if __name__ == "__main__":
    main()
