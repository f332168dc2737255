cimport cython

from infinicore.core.node_cy cimport Node
from infinicore.core.tensor_cy cimport TensorBase as Operand

cdef class ElementwiseCall(Node):
    cdef public object op
    cdef public dict saved
    cdef public list wanted

cdef class ElementwiseRecorder:
    cdef public object op
    cdef public object kind
    cdef public dict asked
    @cython.locals(edges=list, wanted=list, saved=dict, made=ElementwiseCall, t=Operand)
    cpdef record(self, inputs, out)

cdef class Need:
    cdef public frozenset names
    cdef public list rules
    cdef public tuple saved
    cdef public bint several
    cdef public bint into
    cdef public list outputs

cdef class OpNode(Node):
    cdef public Recorder recorder
    cdef public Need need
    cdef public list slots
    cdef public dict saved

cdef class Recorder:
    cdef public object op
    cdef public object functions
    cdef public object names
    cdef public object defaults
    cdef public dict needs
    @cython.locals(values=dict, slots=list, edges=list, wanted=list, need=Need, made=Node, call=OpNode, t=Operand)
    cpdef record(self, kept, args, kwargs, result)
