"""Kernels as plain Numba functions: call them on NumPy arrays, from Python or from your own @njit code."""

import numpy as np
from infinicore.kernels import arrays
from numba import njit


@njit
def next_word_probabilities(hidden, norm_weight, head, out):
    arrays.rms_norm(hidden, norm_weight, 1e-6, hidden)
    arrays.linear(hidden, head, out)
    arrays.softmax(out, out)


rng = np.random.default_rng(0)
hidden = rng.standard_normal((2, 64), dtype=np.float32)
head = rng.standard_normal((1000, 64), dtype=np.float32)
probabilities = np.empty((2, 1000), np.float32)
next_word_probabilities(hidden, np.ones(64, np.float32), head, probabilities)
print("sums to one:", np.allclose(probabilities.sum(1), 1), "likeliest:", probabilities.argmax(1))
