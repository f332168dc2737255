from infinicore.core.tensor_cy cimport TensorBase as Operand

cdef class Node:
    cdef object __weakref__
    cdef public object called
    cdef public object edges
    cdef public object outputs
    cdef public object order
    cdef public object prehooks
    cdef public object hooks
    cdef public object retained
    cdef public object where

cdef class Saved:
    cdef public object node
    cdef public Py_ssize_t output
    cdef public object unpack
    cdef public object value
    cdef public long long version

cpdef edge(Operand x)

cpdef attach(Operand x, node, Py_ssize_t output=*)
