cdef class Block:
    cdef public long long address
    cdef public long long size
    cdef public object owner

cdef class Storage:
    cdef public long long address
    cdef public long long nbytes
    cdef public Block block
    cdef public object owner

cdef dict _free
cdef dict _stats

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
    cpdef set_layout(self, Storage storage, long long address, object dtype, object device,
                     tuple shape, tuple strides, long long numel, bint contiguous)

cpdef Block take_block(long long nbytes)
cpdef give_block(Block block)
cpdef Storage allocate(long long nbytes)
