# Known calls: calls whose layouts are known to be nothing but launches, made without Python. A part of `launch_cy.pyx`.
# What becomes known is decided in `dispatch/known.py`.

MOST_KNOWN = 4096  # layouts of an op; beyond, it starts afresh
# Owners of addresses that are no operand: new results from RESULT downwards, workspace, numbers from NUMBER downwards.
RESULT, SCRATCH, NUMBER = -1, -9, -10
# How numbers of a call lie in the memory that its block points to; or they stand in the block, each in its own type;
# 0: they have no place there.
FLOAT32, FLOAT64, INT64, INT32, IN_BLOCK = 1, 2, 3, 4, 5
cdef object _WORD = 2**63
cdef enum:
    MOST = 1024  # numbers of a block
    SMALL = 96  # those for which there is room on the stack
    NUMBERS = 4  # numbers of a call that its block points to
    TRIES = 64  # layouts whose calls could not be known, after which an op without others is left alone
    LARGE = 1 << 30  # integers from here on are seeds and the like


cdef struct Address:
    int place  # in the block
    int owner  # the number of an operand, or one of the above
    int64_t offset  # in bytes


cdef class Known:
    """A launch of an op's call for operands of certain layouts, all but the addresses, and the launch `after` it."""
    cdef int64_t kernel, n, grain
    cdef int64_t* block
    cdef Address* addresses
    cdef int count, address_count
    cdef Known after

    def __cinit__(self, int count, int address_count):
        self.count, self.address_count = count, address_count
        self.block = <int64_t*>malloc((count + 1) * sizeof(int64_t))
        self.addresses = <Address*>malloc((address_count + 1) * sizeof(Address))
        if self.block == NULL or self.addresses == NULL:
            raise MemoryError("no memory for a known call")

    def __dealloc__(self):
        free(self.block)
        free(self.addresses)


cdef class Shown:
    """A view of an operand: its layout, and where it begins, in elements."""
    cdef tuple shape, strides
    cdef int64_t numel, offset
    cdef bint contiguous


cdef Shown _shown(TensorBase x, result):
    """How `result` shows the memory of `x`; None if it does not."""
    cdef TensorBase t
    cdef Shown found
    if not isinstance(result, TensorBase) or result is x:
        return None
    t = <TensorBase>result
    if t.storage is not x.storage or t.dtype is not x.dtype:
        return None
    found = Shown()
    found.shape, found.strides, found.numel, found.contiguous = t.shape_, t.strides_, t.numel_, t.contiguous_
    found.offset = (t.address - x.address) // <int64_t>x.dtype.itemsize
    return found


cdef inline TensorBase _show(TensorBase x, Shown how):
    cdef TensorBase t = _make(x.storage, x.address + how.offset * <int64_t>x.dtype.itemsize, x.dtype, x.device,
                              how.shape, how.strides, how.numel, how.contiguous)
    if infinicore_mode & GRAD:
        t.base = x if x.base is None else x.base
    return t


cdef class Made:
    """A new result: its layout."""
    cdef object dtype
    cdef tuple shape, strides
    cdef int64_t numel, nbytes
    cdef bint contiguous
    cdef bint counted  # whether the call returns the first of its rows, as many as its launches counted


cdef class Answer:
    """What a known call does: its launches, then its results."""
    cdef Known first
    cdef object device, backend, saved
    cdef Made made  # the new result, where there is just one
    cdef tuple results  # else: of each, a `Made`, or the number of an operand; None: one result
    cdef tuple writes  # operands that it changes: (number, steps of its version)
    cdef tuple constants  # tensors whose addresses stand in the blocks
    cdef list errors  # (kernel, sentences of its error codes), for a device that reports them later; or None
    cdef int64_t scratch
    cdef int64_t counter  # where in the workspace its launches leave a number that says what is returned; or -1
    cdef int longest  # of its blocks
    cdef int numbers  # how they lie in memory


cdef bint _describe(values, list parts, list operands, list numbers, bint training) except? -1:
    """Append what the key of a call says of `values`; False if it cannot."""
    cdef TensorBase t
    cdef object kind
    for x in values:
        if isinstance(x, TensorBase):  # parameters, too
            t = <TensorBase>x
            if _tracks(t):
                if not training:
                    return False
                parts.append(True)
            if operands and t.device is not (<TensorBase>operands[0]).device:
                return False
            operands.append(t)
            parts.append(t.dtype)
            parts.append(t.shape_)
            parts.append(t.strides_)
        elif x is None:
            parts.append(None)
        else:
            kind = type(x)
            parts.append(kind)
            if kind is int or kind is float:
                if numbers is not None:
                    numbers.append(x)
                    continue
                if kind is int:
                    if not -LARGE < x < LARGE:
                        return False
                elif x == 0.0:  # 0.0 and -0.0 are equal as keys
                    x = repr(x)
                elif x != x:  # and NaN is not equal to itself
                    return False
            elif isinstance(x, (tuple, list)):
                parts.append(len(x))
                Py_EnterRecursiveCall(_DEEP)
                try:
                    if not _describe(x, parts, operands, numbers, training):
                        return False
                finally:
                    Py_LeaveRecursiveCall()
                continue
            elif kind is not bool and kind is not str and kind is not _dtype_class:
                return False
            parts.append(x)
    return True


cdef tuple _key_of(tuple args, tuple names, bint training, list operands, list numbers):
    """The key of a call: device, layouts of its tensors, also of those in lists, its numbers and texts; None: no key.

    With `training`, also who is tracked; without, a call whose gradients are recorded has no key. `names` are those of
    keywords, whose values come last in `args`. The tensors are appended to `operands`. Of numbers, if `numbers` is a
    list, the key has the type, and the list gets the value.
    """
    cdef list parts = [_count(), names]
    cdef Py_ssize_t i, j
    if not _describe(args, parts, operands, numbers, training) or not operands:
        return None
    parts.append((<TensorBase>operands[0]).device)
    for i in range(1, len(operands)):
        for j in range(i):
            if operands[i] is operands[j]:  # whose address stands where could not be told of two others
                parts.append(-i)
                parts.append(j)
                break
    return tuple(parts)


cdef Made _made(TensorBase result):
    cdef Made made = Made()
    made.dtype, made.shape, made.strides = result.dtype, result.shape_, result.strides_
    made.numel, made.nbytes = result.numel_, result.numel_ * result.dtype.itemsize
    made.contiguous = result.contiguous_
    return made


def know(dict table, tuple args, tuple names, results, list launches, int64_t scratch, saved=None, writes=(),
         constants=(), int numbers=0, int64_t counter=-1, counted=()):
    """Let calls with these layouts, numbers and texts go straight to their launches.

    Of each: (kernel, its argument block, owners, n, grain, errors); owners say whose address stands where: (place,
    number of an operand, RESULT - k for the new result k, SCRATCH or NUMBER - k, offset in bytes). `results` is a new
    tensor, or a tuple of such, of numbers of operands, and of views as (number, tensor). `names` are those of keywords,
    whose values come last in `args`, and "out" where the caller gave it. `scratch` bytes of workspace. `saved`: for
    `recall`, what is kept for backward. `writes`: (number of an operand, by how much its version grows). `constants` are
    tensors to keep. `numbers`: how numbers of the call lie in memory, if the block points to them, or has them (on GPUs
    always); the key then has their types only. `counter`: where in the workspace (in bytes) the launches leave an int64:
    how many rows the new results at the places `counted` have (on another device, that of one result), or, without
    results, whether the call is true: each launch leaves it there, and no launch follows one that left 0.
    """
    cdef Known known, last = None
    cdef Answer answer = Answer()
    cdef list operands = [], values = [] if numbers else None
    cdef tuple key = _key_of(args, names, saved is not None, operands, values)
    if key is None or not (launches or type(results) is tuple) or (numbers and len(values) > NUMBERS):
        return
    answer.device, answer.scratch, answer.saved = (<TensorBase>operands[0]).device, scratch, saved
    answer.backend = None if answer.device is _cpu else answer.device.backend
    answer.writes, answer.constants, answer.numbers = tuple(writes), tuple(constants), numbers
    if numbers not in (0, IN_BLOCK) and answer.backend is not None and not answer.backend.numbers_in_block:
        return  # the numbers lie in the memory of the host
    answer.counter = counter
    if counter >= 0 and answer.backend is not None and not (isinstance(results, TensorBase) and 0 in counted):
        return
    if isinstance(results, TensorBase):
        answer.made = _made(results)
        answer.made.counted = 0 in counted
    else:
        answer.results = tuple([x if type(x) is int else (x[0], _shown(operands[x[0]], x[1])) if type(x) is tuple
                                else _made(x) for x in results])
        for place in counted:
            (<Made>answer.results[<Py_ssize_t>place]).counted = True
    if answer.backend is not None and not answer.backend.reports_at_once:
        answer.errors = [(kernel, errors) for kernel, *_, errors in launches if errors] or None
    for kernel, block, owners, n, grain, _ in launches:
        if len(block) > MOST:
            return
        known = Known(len(block), len(owners))
        answer.longest = max(answer.longest, known.count)
        known.kernel, known.n, known.grain = kernel, n, grain
        for i, value in enumerate(block):
            known.block[i] = value
        for i, (place, owner, offset) in enumerate(owners):
            known.addresses[i].place, known.addresses[i].owner, known.addresses[i].offset = place, owner, offset
        if last is None:
            answer.first = known
        else:
            last.after = known
        last = known
    if len(table) >= MOST_KNOWN:
        table.clear()
    table[key] = answer


cdef inline Storage _allocate(Answer answer, int64_t nbytes):
    return allocate(nbytes) if answer.backend is None else <Storage>answer.backend.allocate(nbytes)


cdef bint _takes(Answer answer, TensorBase out, list operands, bint elementwise):
    """Whether the result may be written to `out` at once: it is dense, and no operand shares its memory.

    An `elementwise` call may write to an operand that has the very layout of the result.
    """
    cdef Made made = answer.made
    cdef TensorBase t
    cdef Storage storage
    if made is None or out.dtype is not made.dtype or not out.contiguous_ or out.device is not answer.device:
        return False
    if out.tracked or not made.contiguous or out.shape_ != made.shape:
        return False
    for x in operands:
        t = <TensorBase>x
        storage = t.storage
        if storage.address < out.address + made.nbytes and out.address < storage.address + storage.nbytes:
            if not elementwise:
                return False
            if t.address == out.address and t.dtype is out.dtype and t.contiguous_ and t.shape_ == out.shape_:
                continue
            if t.contiguous_ and (t.address >= out.address + made.nbytes
                                  or out.address >= t.address + t.numel_ * <int64_t>t.dtype.itemsize):
                continue  # another part of the same memory
            return False
    return True


cdef bint _store_numbers(int kind, list numbers, double* memory):
    """Write the numbers of a call as its kernel reads them; False for integers that do not fit."""
    cdef int i
    cdef long long integer
    for i in range(len(numbers)):
        x = numbers[i]
        if kind == 5:  # IN_BLOCK
            if type(x) is float:
                memory[i] = x
            elif -_WORD <= x < _WORD:
                (<int64_t*>(memory + i))[0] = <int64_t>x
            else:
                return False
            continue
        (<int64_t*>(memory + i))[0] = 0
        if type(x) is float:
            if kind == 1:
                (<float*>(memory + i))[0] = <float><double>x
            elif kind == 2:
                memory[i] = x
            else:
                return False
            continue
        if not -LARGE < x < LARGE:
            return False
        integer = x
        if kind == 1:
            (<float*>(memory + i))[0] = <float>integer
        elif kind == 2:
            memory[i] = <double>integer
        elif kind == 3:
            (<int64_t*>(memory + i))[0] = integer
        else:
            (<int*>(memory + i))[0] = <int>integer
    return True


cdef TensorBase _rows(Answer answer, Made made, Storage storage, int64_t count):
    """The first `count` rows of a new result."""
    cdef tuple shape = (count, *made.shape[1:])
    cdef tuple found = _layout_of(shape)
    return _make(storage, storage.address, made.dtype, answer.device, shape, found[1], found[0], True)


cdef inline TensorBase _result(Answer answer, Made made, Storage storage, int64_t address, int64_t count):
    if made.counted:
        return _rows(answer, made, storage, count)
    return _make(storage, address, made.dtype, answer.device, made.shape, made.strides, made.numel, made.contiguous)


cdef object _call_known(Answer answer, list operands, list numbers, TensorBase out):
    """The results of a known call; None if a kernel reports an error, for which the whole call finds the words."""
    cdef int64_t small[SMALL]
    cdef int64_t* block = small
    cdef Address* at
    cdef double memory[NUMBERS]
    cdef int64_t starts[8]
    cdef int64_t address
    cdef Storage storage = None
    cdef Storage scratch = None
    cdef list storages
    cdef TensorBase t
    cdef Known step = answer.first
    cdef int i, owner, made = 0
    cdef int64_t failed = 0, count = 1
    cdef bint decides = answer.counter >= 0 and answer.made is None and not answer.results
    global infinicore_deeds
    if answer.numbers and not _store_numbers(answer.numbers, numbers, memory):
        return None
    if answer.errors is not None:
        answer.backend.expect(answer.errors)
    if out is not None:
        starts[0] = out.address
    elif answer.made is not None:
        storage = _allocate(answer, answer.made.nbytes)
        starts[0] = storage.address
    else:
        storages = []
        for x in answer.results:
            if type(x) is Made:
                storage = _allocate(answer, (<Made>x).nbytes)
                storages.append(storage)
                starts[made] = storage.address
                made += 1
    if answer.scratch:
        scratch = _allocate(answer, answer.scratch)
    if answer.longest > SMALL:
        block = <int64_t*>malloc(answer.longest * sizeof(int64_t))
        if block == NULL:
            raise MemoryError("no memory for an argument block")
    while step is not None and not failed and count:
        infinicore_deeds += 1
        memcpy(block, step.block, step.count * sizeof(int64_t))
        for i in range(step.address_count):
            at = step.addresses + i
            owner = at.owner
            if owner >= 0:
                address = (<TensorBase>operands[owner]).address
            elif owner > -9:
                address = starts[-1 - owner]
            elif owner == -9:
                address = scratch.address
            elif answer.backend is None and answer.numbers != 5:
                address = <int64_t>(memory + (-10 - owner))
            else:  # the number itself
                address = (<int64_t*>(memory + (-10 - owner)))[0]
            block[at.place] = address + at.offset
        if step.n > 0:
            failed = _run(step.kernel, block, step.count, step.n, _parts(step.kernel, step.n, step.grain))
        if decides:
            count = (<int64_t*>(scratch.address + answer.counter))[0]
        step = step.after
    if block != small:
        free(block)
    if failed:
        return None
    if answer.counter >= 0 and answer.backend is not None:
        t = _result(answer, answer.made, storage, storage.address, answer.made.shape[0])
        return answer.backend.first_rows(t, answer.backend.read_number(scratch.address + answer.counter))
    if answer.counter >= 0:
        infinicore_deeds += 1
        if decides:
            return count != 0
        count = (<int64_t*>(scratch.address + answer.counter))[0]
    if out is not None:
        out.storage.version += 1
        return out
    for x, steps in answer.writes:
        t = <TensorBase>operands[x]
        t.storage.version += <int64_t>steps
    if answer.made is not None:
        return _result(answer, answer.made, storage, storage.address, count)
    found, made = [], 0
    for x in answer.results:
        if type(x) is Made:
            storage = <Storage>storages[made]
            found.append(_result(answer, <Made>x, storage, storage.address, count))
            made += 1
        elif type(x) is tuple:
            found.append(_show(<TensorBase>operands[<Py_ssize_t>x[0]], <Shown>x[1]))
        else:
            found.append(operands[x])
    return found[0] if len(found) == 1 else tuple(found)


def recall(dict table, tuple args):
    """(result, what is kept for backward) of a call whose gradients are recorded, if it is a known one; else None."""
    cdef tuple key
    cdef list operands = []
    if not table or not _plain():
        return None
    key = _key_of(args, (), True, operands, None)
    answer = None if key is None else table.get(key)
    if answer is None:
        return None
    result = _call_known(<Answer>answer, operands, None, None)
    return None if result is None else (result, (<Answer>answer).saved)


cdef bint _apart(list operands):
    """Whether the first operand shares its memory with no other one."""
    cdef Storage first, other
    cdef Py_ssize_t i
    if operands:
        first = (<TensorBase>operands[0]).storage
        for i in range(1, len(operands)):
            other = (<TensorBase>operands[i]).storage
            if other.address < first.address + first.nbytes and first.address < other.address + other.nbytes:
                return False
    return True


cdef _see(dict table, tuple key):
    """Note that a call came; it is learned when it comes again, since learning takes 10 us that one call is not worth."""
    if len(table) >= MOST_KNOWN:
        table.clear()
    table[key] = True


def make_known(dict table, slow, learn, others, bint apart=False, bint for_any_numbers=False):
    """`slow`, but calls of layouts that `table` has go straight to their launches.

    Calls of other layouts go to `slow`, and the second time to `learn`, which does what `slow` does for operands
    outside of a graph, and may let the table `know` the call. Calls with one of the keywords `others` are left to
    `slow`, and so are, if they must lie `apart`, calls whose first operand shares memory with another one. What is known
    `for_any_numbers` has numbers of the call in its block (IN_BLOCK).
    """
    cdef int failed = 0
    def function(*args, **kwargs):
        nonlocal failed
        cdef tuple key, names = (), values = args
        cdef list operands, numbers = [] if for_any_numbers else None
        out = None
        if failed >= TRIES and not table:  # all that could not be known is forgotten
            failed = 0
        if failed < TRIES and _plain():
            if kwargs:
                for name in kwargs:
                    if name in others:
                        return slow(*args, **kwargs)
                out = kwargs.get("out")
                if out is None:
                    kwargs.pop("out", None)
                elif type(out) is not _tensor:
                    return slow(*args, **kwargs)
                names = tuple(kwargs)
                values = args + tuple([None if name == "out" else x for name, x in kwargs.items()])
            operands = []
            key = _key_of(values, names, False, operands, numbers)
            if key is not None and (not apart or _apart(operands)):
                known = table.get(key, False)
                if known is False:
                    _see(table, key)
                    return slow(*args, **kwargs)
                if known is True:
                    table[key] = None  # unless `learn` knows better
                    answer = learn(args, kwargs, values, names)
                    failed = failed + 1 if table.get(key) is None else -MOST_KNOWN
                    return answer
                if known is not None and (out is None or _takes(<Answer>known, <TensorBase>out, operands, False)):
                    result = _call_known(<Answer>known, operands, numbers, <TensorBase>out)
                    if result is not None:
                        return result
        return slow(*args, **kwargs)
    function.__name__ = function.__qualname__ = slow.__name__
    function.__doc__ = slow.__doc__
    function.__signature__ = getattr(slow, "__signature__", None)
    return function


cdef tuple _plain_integers(tuple values):
    """`values` as a part of a key, if they are integers, None, and flat tuples and lists of them; else None."""
    cdef list parts = []
    cdef object kind
    for x in values:
        kind = type(x)
        if kind is tuple or kind is list:
            for y in x:
                if type(y) is not int:
                    return None
            parts.append((kind, *x))
        elif kind is int or x is None:
            parts.append(x)
        else:
            return None
    return tuple(parts)


def make_known_view(dict table, slow):
    """`slow`, whose results show the memory of their input; of layouts that `table` has, without Python.

    Where gradients flow, it is always `slow` that makes the view.
    """
    def function(input, *args, **kwargs):
        cdef tuple key = None, numbers
        cdef TensorBase x
        if not kwargs and type(input) is _tensor:
            x = <TensorBase>input
            numbers = None if _tracks(x) else _plain_integers(args)
            if numbers is not None:
                key = (x.shape_, x.strides_, numbers)
                known = table.get(key)
                if known is not None:
                    if type(known) is Shown:
                        return _show(x, <Shown>known)
                    return tuple([_show(x, <Shown>each) for each in known])
        result = slow(input, *args, **kwargs)
        if key is not None:
            if len(table) >= MOST_KNOWN:
                table.clear()
            known = [_shown(x, each) for each in result] if type(result) is tuple else _shown(x, result)
            if known is not None and (type(known) is not list or (known and None not in known)):
                table[key] = known
        return result
    function.__name__ = function.__qualname__ = slow.__name__
    function.__doc__ = slow.__doc__
    function.__signature__ = slow.__signature__
    return function
