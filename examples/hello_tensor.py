"""Tensors share memory with NumPy, and follow PyTorch's rules for dtypes, broadcasting and views."""

import numpy as np

import infinicore as ic

array = np.arange(6, dtype=np.float32).reshape(2, 3)
x = ic.from_numpy(array)  # the same memory
x *= 2.0
print(array[1])  # [ 6.  8. 10.]

y = ic.softmax(x.to(ic.bfloat16).T, dim=0)  # bfloat16 is stored in 16 bits and computed in float32
print(y.shape, y.dtype, y.sum(0).tolist())
print(x[:, 1:] @ ic.ones(2, 1))
