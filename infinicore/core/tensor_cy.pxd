cimport cython

cdef class Block:
    cdef public long long address
    cdef public long long size
    cdef public object owner
    cdef public object arena

cdef object _host

cdef class Storage:
    cdef public object backend
    cdef public long long address
    cdef public long long nbytes
    cdef public Block block
    cdef public object owner
    cdef public long long version

cdef list _small
cdef dict _large
cdef long long _cached
cdef long long _used
cdef long long _peak
cdef list _arenas

cdef class TensorBase:
    cdef object __weakref__
    cdef public Storage storage
    cdef public long long address
    cdef public object dtype
    cdef public object device
    cdef public tuple shape_
    cdef public tuple strides_
    cdef public long long numel_
    cdef public bint contiguous_
    cdef public bint tracked
    cdef public object gradient
    cdef public object node
    cdef public Py_ssize_t output
    cdef public object base
    cdef public object hooks
    cpdef set_layout(self, Storage storage, long long address, object dtype, object device,
                     tuple shape, tuple strides, long long numel, bint contiguous)

@cython.locals(step=cython.longlong)
cpdef long long size_class(long long nbytes)

@cython.locals(size="long long")
cpdef Block take_block(long long nbytes)

@cython.locals(free=list)
cdef Block _take(long long size)

@cython.locals(size="long long", free=list)
cpdef give_block(Block block)

@cython.locals(block=Block, storage=Storage)
cpdef Storage allocate(long long nbytes)

@cython.locals(storage=Storage, found=list)
cpdef list outside(object keep)
