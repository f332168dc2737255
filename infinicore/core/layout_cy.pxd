cimport cython

@cython.locals(n="long long")
cpdef long long count(shape)

@cython.locals(step="long long", size="long long", i=cython.Py_ssize_t)
cpdef bint is_contiguous(tuple shape, tuple strides)
