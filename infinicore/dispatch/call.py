"""One call of an op, as its paragraph in `kernels/ops` sees it: outputs, intermediate results, launches.

A paragraph knows no device: it fills named blocks or describes problems, and the backend of its operands chooses.
"""

import ctypes

import numpy as np

from .. import kernels
from ..core import launch as core_launch
from ..core.tensor_cy import TensorBase
from ..device import CPU
from ..dtype import DType, can_cast
from . import fourier
from .elementwise import copy_into, elementwise, new_strides, result_type
from .launcher import Launcher
from .tensors import as_dtype, check_fits, empty, from_array, view, writable
from .tensors import overlap as how_they_overlap


class Call(Launcher):
    """One call of an op, as its paragraph sees it."""

    __slots__ = ("_copies", "given", "inputs", "op", "saved", "training")

    def __init__(self, op, given, inputs, training=False, device=CPU):
        self.op = op
        self.given = given  # output name -> tensor passed by the caller
        self.inputs = inputs
        self.training = training  # whether a gradient of this call will be wanted
        self.device = device
        self.name = op.name
        self.launched = []
        self.workspaces = []
        self.constants = []
        self.counter, self.counted, self.copies, self.read_after, self.numbers = None, {}, 0, 0, ()
        self.saved = {}
        self._copies = []

    def save(self, **values):
        """Keep values that derivative rules ask for by name; nothing happens unless `training`."""
        if self.training:
            self.saved.update(values)

    def wants(self, x):
        """Whether the derivative will be asked for the gradient of this input."""
        return self.training and x is not None and x.tracked

    def out(self, shape, dtype, key="out", overlap="never", casts=False, like=None):
        """The output tensor: the caller's (checked), or a new one.

        `overlap="same"` says that the kernel is right when the output is exactly one of the inputs; any other overlap
        goes through a temporary, or is an error where `overlap` is "refused". With `casts`, the output may have another
        dtype that the result can be cast to. A new one is row-major, or, where it has the shape of an input `like`
        that is dense but permuted, laid out as that.
        """
        shape, dtype = tuple(shape), dtype if type(dtype) is DType else as_dtype(dtype)
        given = self.given.get(key) if self.given else None
        if given is None:
            if like is not None and not like.contiguous_:
                return empty(shape, dtype, new_strides(like.shape_, like.strides_, shape), self.device)
            return core_launch.new_tensor(shape, dtype, self.device)
        if not isinstance(given, TensorBase):
            raise TypeError(f"`{key}` must be a tensor, got {type(given).__name__}")
        if given.shape_ != shape:
            raise ValueError(f"`{key}` has shape {given.shape_}, but the result of `{self.op.name}` has shape {shape}")
        if given.dtype is not dtype and not (casts and can_cast(dtype, given.dtype)):
            raise TypeError(f"`{key}` has dtype {given.dtype}, but the result of `{self.op.name}` has dtype {dtype}")
        if given.device is not self.device:
            raise ValueError(
                f"`{key}` lies on {given.device}, but the operands of `{self.op.name}` on {self.device}: "
                "move it with `.to()`"
            )
        writable(given, key)
        direct = given.contiguous_ and given.dtype is dtype
        for x in self.inputs:
            how = how_they_overlap(x, given)
            if overlap == "refused" and how != "none":
                raise ValueError(
                    f"`{key}` of `{self.op.name}` must not share memory with an input: give another tensor"
                )
            if how == "partial" or (how == "same" and overlap != "same"):
                direct = False
        given.storage.version += 1
        if direct:
            return given
        temporary = empty(shape, dtype, None, self.device)
        self._copies.append((given, temporary))
        return temporary

    def written_as(self, dtype, key="out"):
        """The dtype that results of `dtype` are written as: the caller's output's, where they can be cast to it."""
        given = self.given.get(key) if self.given else None
        return given.dtype if isinstance(given, TensorBase) and can_cast(dtype, given.dtype) else dtype

    def empty(self, shape, dtype, strides=None):
        """A new uninitialised tensor, for an intermediate result; `strides` are a permutation of row-major ones."""
        x = empty(tuple(shape), as_dtype(dtype), strides, self.device)
        self.workspaces.append(x)
        return x

    @staticmethod
    def view(x, shape, strides, offset=0):
        """The memory of a new tensor with another layout; `offset` in elements."""
        return view(x, shape, strides, offset)

    result_type = staticmethod(result_type)
    check_fits = staticmethod(check_fits)

    def elementwise(self, name, *inputs, out=None):
        """Run an elementwise op as a part of this one."""
        return elementwise(kernels.OPS[name], inputs, out, call=self)

    def lapack(self, function, *inputs):
        """Results of NumPy's linear algebra or Fourier transforms as the op's: `function` takes and returns arrays.

        For what the host's LAPACK and pocketfft compute, one array or several. Outputs take the arrays in the order of
        `op.outputs`; a matrix that has no result is a ValueError.
        """
        try:
            with np.errstate(all="ignore"):
                results = function(*[x._values() for x in inputs])
        except np.linalg.LinAlgError as error:
            shapes = " and ".join(str(x.shape_) for x in inputs)
            raise ValueError(f"`{self.op.name}` has no result for a matrix of {shapes}: {str(error).lower()}") from None
        several = isinstance(results, tuple)
        made = []
        for key, array in zip(self.op.outputs, results if several else (results,)):
            y, array = self.out(array.shape, array.dtype, key=key), np.asarray(array, order="C")
            if y.device is CPU and not self.given:  # 0.7 us; by a launch 4
                ctypes.memmove(y.address, array.__array_interface__["data"][0], array.nbytes)
            elif y.numel_:
                copy_into(y, from_array(array, self.device))
            made.append(y)
        return tuple(made) if several else made[0]

    def fourier(self, input, steps, factor, dtype):
        """The output of Fourier transforms one after the other, times a factor, as `fourier.transformed` has them."""
        threads = core_launch.threads()
        if threads == 1 or input.numel_ < 2 * fourier.SHARE or self.device is not CPU:
            return self.lapack(lambda a: fourier.transformed(a, steps, dtype, factor), input)
        shape = input.shape_
        for step in steps:
            shape = fourier.shape_behind(shape, *step)
        y = self.out(shape, dtype)
        fourier.transform_into(y._values(), input._values(), steps, factor, threads)
        return y

    def finish(self, result):
        """Copy temporaries to the outputs they stand for."""
        if not self._copies:
            return result
        for given, temporary in self._copies:
            copy_into(given, temporary)
        swap = {id(temporary): given for given, temporary in self._copies}
        if isinstance(result, tuple):
            return tuple(swap.get(id(x), x) for x in result)
        return swap.get(id(result), result)
