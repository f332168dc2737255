"""What a tensor says about itself under PyTorch's older names."""

from .formats import strided


class Facts:
    """Methods of `Tensor` that compute nothing."""

    __slots__ = ()

    is_sparse = is_quantized = is_mps = is_xpu = is_meta = is_nested = False  # there are dense tensors alone
    is_sparse_csr = is_mkldnn = is_vulkan = is_xla = is_ipu = is_maia = is_mtia = False
    layout = strided
    name, volatile = None, False  # as every tensor of PyTorch says

    @property
    def is_cpu(self):
        """Whether it lies on the CPU."""
        return self.device.type == "cpu"

    @property
    def output_nr(self):
        """Which result of its node it is; 0 for a leaf."""
        return self.output

    def is_nonzero(self):
        """Whether the one element is not 0."""
        return bool(self)

    def is_inference(self):
        """False: tensors made under `inference_mode` are like others."""
        return False

    def is_shared(self):
        """Whether it lies on a GPU, whose memory PyTorch counts as shared."""
        return self.device.type != "cpu"

    def is_set_to(self, tensor):
        """Whether another tensor is the same memory in the same layout."""
        return (self.address, self.shape_, self.strides_) == (tensor.address, tensor.shape_, tensor.strides_)

    def ndimension(self):
        """Number of dims."""
        return len(self.shape_)

    def nelement(self):
        """Number of elements."""
        return self.numel_

    @property
    def itemsize(self):
        """Bytes of one element."""
        return self.dtype.itemsize

    def get_device(self):
        """The number of the GPU that the tensor lies on; -1 on the CPU."""
        return -1 if self.device.type == "cpu" else self.device.index

    def is_signed(self):
        """Whether the dtype has negative numbers."""
        return self.dtype.kind not in "ub"

    def is_same_size(self, other):
        """Whether another tensor has the same shape."""
        return self.shape_ == other.shape_

    def dim_order(self):
        """The dims from the outermost in memory to the innermost."""
        return tuple(sorted(range(len(self.shape_)), key=lambda d: -self.strides_[d]))

    def share_memory_(self):
        """Itself: processes of `DataLoader` send copies."""
        return self

    def is_distributed(self):
        """False: each process has tensors of its own."""
        return False

    def record_stream(self, stream):
        """Nothing: memory that a stream still reads is not given out again."""

    def to_dense(self, dtype=None, *, masked_grad=True):
        """Itself, or in another dtype: there are dense tensors alone."""
        return self if dtype is None else self.to(dtype)

    def apply_(self, callable):
        """Put `callable(x)` in the place of each number x, one by one in Python; returns self."""
        return self._mapped(callable, [self])

    def map_(self, tensor, callable):
        """Put `callable(x, y)` in the place of each x, y of `tensor`, which broadcasts; returns self."""
        return self._mapped(callable, [self, tensor])

    def map2_(self, x, y, callable):
        """Put `callable(own, x, y)` in the place of each number; x and y broadcast. Returns self."""
        return self._mapped(callable, [self, x, y])

    def _mapped(self, callable, tensors):
        columns = [x.detach().expand(self.shape_).reshape(-1).tolist() for x in tensors]
        values = [callable(*numbers) for numbers in zip(*columns)]
        return self.copy_(self.new_tensor(values).reshape(self.shape_)) if values else self
